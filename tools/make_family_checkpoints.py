#!/usr/bin/env python3
"""Tiny random checkpoints of every architecture and every RoPE type, and what transformers computes with them.

    python3 -m venv venv && venv/bin/pip install torch transformers
    venv/bin/python tools/make_family_checkpoints.py                      writes tests/golden/families
    venv/bin/python tools/make_family_checkpoints.py --random 20 -o DIR   other sizes and seeds, for a wider check

Some have heads of 64 channels and widths of 32, which the GPU backend runs as well. One folder per case: config.json
as the library writes it, model.safetensors (bfloat16 values, so that the files are small; the reference computes with
the same rounded values in float32), and reference.safetensors with
    prompt_ids      i32 [P]
    generated_ids   i32 [65]          greedy: generated_ids[s] is the arg-max of logits[s]
    prompt_logits   f32 [P', vocab]   of the prompt's last P' = 4 positions, computed in one pass
    logits          f32 [65, vocab]   of the prompt's last position, then of every decode step
computed on the CPU with the library's KV cache: where the rotation depends on the length, keys stay as they were
cached. A case is refused when a float64 run chooses other ids or two best logits come closer than SMALLEST_GAP, for
then "equal ids" would be a matter of rounding; the next seed is tried.

MiniCPM4 and NOSA have no class in the library: their reference is its Llama with the muP scales folded into the weights
(embedding times scale_emb, o_proj and down_proj times scale_depth / sqrt(layers), head divided by hidden /
dim_model_base), while the checkpoint holds the unfolded weights and the keys.
"""

import argparse
import json
import math
import pathlib
import random
import shutil

import torch
import transformers
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/families"
STEPS = 64
SMALLEST_GAP = 1e-3
KEPT_PROMPT_LOGITS = 4
VOCAB = 48
FEWEST_IDS = 6  # different ones among the generated, or the weights only repeat what they are fed

BASE = dict(vocab_size=VOCAB, hidden_size=24, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=False,
            bos_token_id=0, eos_token_id=1)
LATENT = dict(kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=12, num_key_value_heads=4)
EXPERTS = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=8, n_shared_experts=2,
               first_k_dense_replace=1)


def rope(kind, dim=8, original=128, **more):
    values = {"rope_type": kind, "rope_theta": 10000.0}
    if kind in ("linear", "dynamic"):
        values["factor"] = 4.0
    if kind == "llama3":
        values.update(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=original)
    if kind == "yarn":
        values.update(factor=4.0, original_max_position_embeddings=original)
    if kind == "longrope":
        values.update(original_max_position_embeddings=original,
                      short_factor=[1.0 + 0.05 * i for i in range(dim // 2)],
                      long_factor=[1.0 + 0.9 * i for i in range(dim // 2)])
    values.update(more)
    return {"rope_parameters": values}


def case(kind, prompt=150, sparse=None, mup=None, eviction=False, **config):
    heads = {} if "kv_lora_rank" in config else {"head_dim": 8}
    return {"kind": kind, "prompt": prompt, "config": {**BASE, **heads, **config}, "sparse": sparse, "mup": mup,
            "eviction": eviction}


MUP = {"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}
SPARSE = {"kernel_size": 32, "kernel_stride": 16, "init_blocks": 1, "block_size": 16, "window_size": 32, "topk": 4,
          "use_nope": False, "dense_len": 0}

CASES = {
    "llama2-mha": case("Llama", num_key_value_heads=4, **rope("default")),
    "llama3-gqa-bias": case("Llama", attention_bias=True, mlp_bias=True, **rope("default", rope_theta=500000.0)),
    "llama-mqa-tied": case("Llama", num_key_value_heads=1, tie_word_embeddings=True, head_dim=20, **rope("default")),
    "llama-linear": case("Llama", **rope("linear")),
    "llama-dynamic": case("Llama", max_position_embeddings=128, **rope("dynamic")),
    "llama-dynamic-grows": case("Llama", prompt=100, max_position_embeddings=128, **rope("dynamic")),
    "llama-llama3": case("Llama", **rope("llama3")),
    "llama-longrope": case("Llama", **rope("longrope")),
    "llama-longrope-grows": case("Llama", prompt=100, **rope("longrope")),
    "llama-yarn": case("Llama", **rope("yarn")),
    "smollm2": case("Llama", num_attention_heads=9, num_key_value_heads=3, hidden_size=36, num_hidden_layers=2,
                    tie_word_embeddings=True, **rope("default", rope_theta=100000.0)),
    "mistral": case("Mistral", sliding_window=None, head_dim=12, **rope("default")),
    "mistral-window": case("Mistral", sliding_window=40, **rope("default")),
    "qwen2": case("Qwen2", tie_word_embeddings=True, hidden_size=32, num_attention_heads=2, num_key_value_heads=1,
                  head_dim=64, **rope("default", rope_theta=1000000.0)),
    "qwen2-windows": case("Qwen2", use_sliding_window=True, sliding_window=50, max_window_layers=1, **rope("yarn")),
    "qwen3": case("Qwen3", hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=64, **rope("default", rope_theta=1000000.0)),
    "minicpm4": case("Llama", mup=MUP, sparse={**SPARSE, "topk": 6}, hidden_size=32, num_attention_heads=2,
                     num_key_value_heads=1, head_dim=64, **rope("longrope", dim=64)),
    "minicpm-longrope": case("Llama", mup=MUP, hidden_size=32, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                             **rope("longrope", dim=16, original=512)),
    "nosa": case("Llama", mup=None, sparse={**SPARSE, "select_blocks": 3}, eviction=True, head_dim=16,
                 **rope("longrope", dim=16)),
    "minicpm3": case("MiniCPM3", q_lora_rank=24, scale_emb=12, scale_depth=1.4, dim_model_base=16,
                     tie_word_embeddings=True, **LATENT, **rope("default")),
    "minicpm3-released": case("MiniCPM3", q_lora_rank=24, scale_emb=12, scale_depth=1.4, dim_model_base=256,
                              **LATENT, **rope("default")),
    "deepseek2-lite": case("DeepseekV2", q_lora_rank=None, **LATENT, **EXPERTS,
                           **rope("yarn", mscale=0.707, mscale_all_dim=0.707)),
    "deepseek2-groups": case("DeepseekV2", q_lora_rank=24, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                             routed_scaling_factor=1.5, **LATENT, **EXPERTS, **rope("default")),
    "deepseek3": case("DeepseekV3", q_lora_rank=24, n_group=2, topk_group=1, routed_scaling_factor=2.5,
                      norm_topk_prob=True, attention_bias=True, **LATENT, **EXPERTS,
                      **rope("yarn", mscale=1.0, mscale_all_dim=1.0)),
    "glm4-lite": case("Glm4MoeLite", q_lora_rank=24, n_group=1, topk_group=1, routed_scaling_factor=1.8, **LATENT,
                      **{k: v for k, v in EXPERTS.items() if k != "first_k_dense_replace"}, **rope("default")),
    "deepseek32": case("DeepseekV32", q_lora_rank=24, n_group=2, topk_group=1, routed_scaling_factor=2.5,
                       index_topk=512, index_n_heads=4, index_head_dim=16, **LATENT, **EXPERTS,
                       **rope("yarn", mscale=1.0, mscale_all_dim=1.0)),
    "glm-dsa": case("GlmMoeDsa", q_lora_rank=24, n_group=1, topk_group=1, num_hidden_layers=3, index_topk=512,
                    index_n_heads=4, index_head_dim=16, indexer_types=["full", "shared", "full"], **LATENT, **EXPERTS,
                    **rope("default")),
    "mixtral": case("Mixtral", num_local_experts=4, num_experts_per_tok=2, **rope("default")),
    "qwen2-moe": case("Qwen2Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                      shared_expert_intermediate_size=24, **rope("default")),
    "qwen3-moe-normed": case("Qwen3Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=16,
                             norm_topk_prob=True, **rope("default")),
    "qwen3-moe": case("Qwen3Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16, head_dim=16,
                      norm_topk_prob=True, mlp_only_layers=[0], **rope("default")),
}


def random_case(rng):
    """Another size of a random family, in one of the forms in which checkpoints are published."""
    heads = rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 20, 32])
    kv = rng.choice([h for h in range(1, heads + 1) if heads % h == 0])
    hidden = heads * rng.choice([6, 8, 10, 16])
    config = {**BASE, "hidden_size": hidden, "intermediate_size": rng.choice([5, 24, 37, 40, 64, 96, 333]),
              "num_hidden_layers": rng.choice([1, 2, 3, 4]), "num_attention_heads": heads, "num_key_value_heads": kv,
              "vocab_size": rng.choice([64, 97, 200, 251, 513, 1001]), "rms_norm_eps": rng.choice([1e-5, 1e-6, 1e-3, 1e-12]),
              "tie_word_embeddings": rng.random() < 0.4}
    kind = rng.choice(["Llama", "NOSA", "Mistral", "Qwen2", "Qwen3", "MiniCPM", "MiniCPM3", "DeepseekV2", "DeepseekV3",
                       "Glm4MoeLite", "Mixtral", "Qwen2Moe", "Qwen3Moe"])
    result = {"kind": kind, "prompt": rng.choice([1, 3, 40, 64, 65, 130, 200, 600, 1500]), "sparse": None, "mup": None,
              "eviction": False, "config": config, "dtype": rng.choice(["bfloat16", "float16", "float32"]),
              "shards": rng.choice([1, 1, 3, 5]), "older_keys": rng.random() < 0.5, "mixed": rng.random() < 0.3}
    dim = hidden // heads
    if kind in ("MiniCPM3", "DeepseekV2", "DeepseekV3", "Glm4MoeLite"):
        dim = rng.choice([2, 4, 8, 16, 64])
        config.update(kv_lora_rank=rng.choice([8, 20, 48, 256]), qk_nope_head_dim=rng.choice([6, 16, 24, 128]),
                      qk_rope_head_dim=dim, v_head_dim=rng.choice([1, 5, 16, 20, 128]), num_key_value_heads=heads,
                      q_lora_rank=rng.choice([None, 12, 30]))
    elif rng.random() < 0.6 or kind == "Qwen3":
        dim = config["head_dim"] = rng.choice([2, 4, 8, 10, 16, 22, 32, 64, 80] + [96, 120, 192, 256] * (heads < 9))
        if kind in ("Mistral", "Qwen2", "Qwen3", "Mixtral", "Qwen3Moe"):  # their heads need not divide the width
            config["hidden_size"] = rng.choice([hidden, 27, 50])
    if kind == "Mixtral":  # without it the library's yarn fails
        config.setdefault("head_dim", dim)
    if kind in ("Llama", "NOSA", "MiniCPM", "Qwen3", "Qwen3Moe", "MiniCPM3", "DeepseekV2", "DeepseekV3", "Glm4MoeLite"):
        config["attention_bias"] = rng.random() < 0.3
    if kind in ("Llama", "NOSA", "DeepseekV2"):
        config["mlp_bias"] = rng.random() < 0.3
    if kind in ("DeepseekV2", "DeepseekV3", "Glm4MoeLite"):
        groups, each = rng.choice([(1, 7), (2, 3), (3, 5), (4, 4), (8, 2)])
        used = rng.randint(1, groups)
        config.update(n_routed_experts=groups * each, num_experts_per_tok=rng.randint(1, used * each),
                      moe_intermediate_size=rng.choice([1, 8, 20]), n_shared_experts=rng.choice([1, 2, 3]), n_group=groups,
                      topk_group=used, routed_scaling_factor=rng.choice([0.3, 1.0, 2.5]), norm_topk_prob=rng.random() < 0.5)
        if kind != "DeepseekV2" and rng.random() < 0.3:
            config["rope_interleave"] = False
        if kind == "Glm4MoeLite":
            config["mlp_layer_types"] = rng.choices(["dense", "sparse"], k=config["num_hidden_layers"])
        else:
            config["first_k_dense_replace"] = rng.choice([0, 1, 2])
        if kind == "DeepseekV2":
            config["topk_method"] = rng.choice(["greedy", "group_limited_greedy"])
            config["norm_topk_prob"] = False
    if kind == "Mixtral":
        config.update(num_local_experts=rng.choice([2, 5]), num_experts_per_tok=rng.choice([1, 2]),
                      sliding_window=rng.choice([None, 30]))
    if kind in ("Qwen2Moe", "Qwen3Moe"):
        config.update(num_experts=rng.choice([3, 8]), num_experts_per_tok=rng.choice([1, 3]),
                      moe_intermediate_size=rng.choice([12, 20]), norm_topk_prob=rng.random() < 0.5,
                      decoder_sparse_step=rng.choice([1, 2]), mlp_only_layers=rng.choice([[], [0]]))
    if kind == "Qwen2Moe":
        config.update(shared_expert_intermediate_size=rng.choice([10, 24]), qkv_bias=rng.random() < 0.7)
    if kind == "MiniCPM3":
        config.update(scale_emb=rng.choice([1, 12]), scale_depth=rng.choice([1.4, 3.0]), dim_model_base=rng.choice([8, hidden]))
    if kind == "MiniCPM":
        result.update(kind="Llama", mup={"scale_emb": rng.choice([1, 8, 12]), "scale_depth": rng.choice([0.7, 1.4]),
                                         "dim_model_base": rng.choice([8, 16, hidden])})
    if kind == "NOSA":
        result.update(kind="Llama", eviction=True, sparse={**SPARSE, "select_blocks": 3})
    if kind == "Mistral":
        config["sliding_window"] = rng.choice([None, 2, 16, 33, 100, 4096, result["prompt"] + 1, result["prompt"] + 30])
    if kind in ("Qwen2", "Qwen3", "Qwen2Moe", "Qwen3Moe") and rng.random() < 0.5:
        config.update(use_sliding_window=True, sliding_window=rng.choice([20, 64]), max_window_layers=rng.choice([0, 1]))
        if kind in ("Qwen2", "Qwen3") and rng.random() < 0.5:
            config["layer_types"] = rng.choices(["full_attention", "sliding_attention"], k=config["num_hidden_layers"])
    types = ["default", "linear", "llama3", "longrope", "yarn"] + (["dynamic"] if dim > 2 else [])
    chosen = rng.choice(types)
    more = {"rope_theta": rng.choice([10.0, 1000.0, 10000.0, 123456.7, 5e6])}
    if chosen in ("linear", "dynamic", "yarn") and rng.random() < 0.5:
        more["factor"] = rng.choice([1.0, 1.5, 3.7, 8.0, 40.0])
    if chosen == "yarn" and rng.random() < 0.5:
        more.update(mscale=rng.choice([0.707, 1.0]), mscale_all_dim=rng.choice([0.707, 1.0]))
    if chosen == "yarn" and rng.random() < 0.3:
        more.update(truncate=False, beta_fast=16, beta_slow=2)
    if chosen == "longrope" and rng.random() < 0.5:
        more.update(short_factor=[rng.uniform(0.9, 1.5) for _ in range(dim // 2)],
                    long_factor=[rng.uniform(1, 40) for _ in range(dim // 2)])
    if chosen == "longrope" and rng.random() < 0.3:
        more["factor"] = 5.0
    if chosen in ("longrope", "yarn") and rng.random() < 0.3:
        more["attention_factor"] = 1.2
    if chosen == "llama3" and rng.random() < 0.5:
        more.update(factor=4.0, low_freq_factor=0.5, high_freq_factor=3.0)
    config.update(rope(chosen, dim=dim, original=rng.choice([64, 128, 256]), **more))
    config["max_position_embeddings"] = rng.choice([128, 256]) if chosen == "dynamic" else rng.choice([700, 1024, 2048])
    if result["prompt"] * heads > 6000:  # the library keeps every score
        result["prompt"] = 200
    if chosen == "dynamic":  # the context is what the scaling reaches
        reach = int(config["max_position_embeddings"] * config["rope_parameters"]["factor"])
        result["prompt"] = max(1, min(result["prompt"], reach - STEPS - 1))
    elif result["prompt"] > 600:
        config["max_position_embeddings"] = 2048
    return result


def to_older_keys(config, kind, own_class):
    """A configuration as files before transformers 5 write it; what they leave to defaults is left out. own_class: of
    the checkpoint, which the library has no defaults for."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    config["rope_scaling"] = parameters if parameters["rope_type"] != "default" else None
    config["torch_dtype"] = config.pop("dtype", "float32")
    config.pop("layer_types", None) if kind == "Llama" else None
    if config.get("head_dim") == config["hidden_size"] // config["num_attention_heads"] and kind not in ("Qwen3", "Mixtral"):
        config.pop("head_dim")  # Mixtral's yarn needs it
    if kind == "Llama" and not own_class and config["num_key_value_heads"] == config["num_attention_heads"]:
        config.pop("num_key_value_heads")


def embedding_size(spec):
    """Small enough that the layers have a say beside the token itself, above all when the head is tied."""
    scale = {**spec["config"], **(spec["mup"] or {})}.get("scale_emb", 1)
    return (0.2 if spec["config"].get("tie_word_embeddings") else 1.0) / scale


def make_model(spec, seed):
    kind, dtype = spec["kind"], getattr(torch, spec.get("dtype", "bfloat16"))
    config = getattr(transformers, f"{kind}Config")(**spec["config"])
    model = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="eager", experts_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted([*model.named_parameters(), *model.named_buffers()]):
            if "inv_freq" in name or "embed_scale" in name:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(1 + 0.2 * noise)
            elif name.endswith("bias"):
                weight.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                weight.copy_(noise * embedding_size(spec))
            else:  # keeps the size of activations, and makes attention look at few positions
                sharp = any(part in name for part in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj"))
                weight.copy_((1.6 if sharp else 1.0) * noise / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(dtype).float())
    return model


def fold(model, mup):
    """muP scales into the weights of a plain Llama."""
    layers, hidden = model.config.num_hidden_layers, model.config.hidden_size
    if model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    with torch.no_grad():
        model.model.embed_tokens.weight *= mup["scale_emb"]
        for layer in model.model.layers:
            for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
                for parameter in projection.parameters():
                    parameter *= mup["scale_depth"] / math.sqrt(layers)
        model.lm_head.weight *= mup["dim_model_base"] / hidden
    return model


@torch.no_grad()
def decode(model, prompt):
    """Greedy, with the library's cache. The cache of sliding layers is kept whole; the mask hides what is too old."""
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    kept = out.logits[0, -KEPT_PROMPT_LOGITS:].clone()
    ids, logits, cache = [], [out.logits[0, -1]], out.past_key_values
    for step in range(STEPS):
        ids.append(int(logits[-1].argmax()))
        out = model(input_ids=torch.tensor([[ids[-1]]]), past_key_values=cache, use_cache=True,
                    position_ids=torch.tensor([[len(prompt) + step]]))
        cache = out.past_key_values
        logits.append(out.logits[0, -1])
    ids.append(int(logits[-1].argmax()))
    return ids, torch.stack(logits), kept


def fresh(spec, model, folder, double):
    """The model as a program would load it: tables of lengths seen before are gone."""
    again = type(model).from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    again = again.double() if double else again.float()
    for module in again.modules():  # angles stay float32 in either run: they are part of the model
        if hasattr(module, "inv_freq") and hasattr(module, "original_inv_freq"):
            reference = [m for m in model.modules() if hasattr(m, "original_inv_freq")][0]
            module.inv_freq = reference.original_inv_freq.clone()
            module.original_inv_freq = reference.original_inv_freq.clone()
    again = again.eval()
    return fold(again, spec["mup"]) if spec["mup"] else again


def save_weights(tensors, folder, dtype, shards, mixed=False):
    """One file, or several with an index. mixed: some tensors as float32, with the same values."""
    kept = random.Random(7)
    tensors = {key: value.to(dtype).contiguous() for key, value in sorted(tensors.items())}
    tensors = {key: value.float() if mixed and kept.random() < 0.4 else value for key, value in tensors.items()}
    if shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    (folder / "model.safetensors").unlink()
    names, index = sorted(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = names[shard::shards]
        save_file({key: tensors[key] for key in part}, folder / file, metadata={"format": "pt"})
        index.update(dict.fromkeys(part, file))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def save_model(model, folder):
    """The library's files, in an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model.save_pretrained(folder)


def random_prompt(spec, seed):
    """The ids, and the generator from which what else a case needs is drawn."""
    generator = torch.Generator().manual_seed(seed + 1)
    drawn = torch.randint(2, spec["config"]["vocab_size"], (spec["prompt"] - 1,), generator=generator)
    return [0] + drawn.tolist(), generator


def smallest_gap(logits):
    """Between the two best of a step, relative to its largest."""
    best = logits.topk(2, dim=1).values
    return ((best[:, 0] - best[:, 1]) / logits.abs().amax(dim=1)).min().item()


def write_config(folder, changes):
    """The library's config.json with these keys, in sorted order; without the file that it writes for generating."""
    config = json.loads((folder / "config.json").read_text())
    config.update(changes)
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    (folder / "generation_config.json").unlink(missing_ok=True)


def report_of(name, seed, folder, ids, logits, exact):
    error = ((exact - logits).abs().amax(dim=1) / exact.abs().amax(dim=1)).max().item()
    return {"case": name, "seed": seed, "gap": round(smallest_gap(logits), 5), "float32 error": error, "distinct ids": len(set(ids)),
            "bytes": sum(file.stat().st_size for file in folder.iterdir())}


def write_case(name, spec, seed, root):
    folder = root / name
    model = make_model(spec, seed)
    save_model(model, folder)
    if spec.get("older_keys"):
        written = json.loads((folder / "config.json").read_text())
        to_older_keys(written, spec["kind"], spec["mup"] or spec["eviction"])
        (folder / "config.json").write_text(json.dumps(written))
    prompt, generator = random_prompt(spec, seed)
    ids, logits, kept = decode(fresh(spec, model, folder, False), prompt)
    exact_ids, exact, _ = decode(fresh(spec, model, folder, True), prompt)
    if exact_ids != ids or smallest_gap(logits) < SMALLEST_GAP or len(set(ids)) < FEWEST_IDS:
        return None
    tensors = load_file(folder / "model.safetensors")
    shapes = spec["config"]
    if spec["eviction"]:
        dim = model.config.head_dim * shapes["num_key_value_heads"]
        for layer in range(shapes["num_hidden_layers"]):
            prefix = f"model.layers.{layer}.self_attn."
            tensors[prefix + "delta.weight"] = torch.randn(
                (shapes["num_key_value_heads"], dim), generator=generator) / dim ** 0.5
            tensors[prefix + "A"] = torch.linspace(1.0, -0.7, shapes["num_key_value_heads"])
    save_weights(tensors, folder, getattr(torch, spec.get("dtype", "bfloat16")), spec.get("shards", 1),
                 spec.get("mixed", False))
    changes = {"torch_dtype" if spec.get("older_keys") else "dtype": spec.get("dtype", "bfloat16")}
    if spec["sparse"]:
        changes["sparse_config"] = spec["sparse"]
    if spec["mup"]:
        changes.update(spec["mup"], architectures=["MiniCPMForCausalLM"], model_type="minicpm")
    if spec["eviction"]:
        changes.update(architectures=["NosaLlamaForCausalLM"])
    write_config(folder, changes)
    save_file({"prompt_ids": torch.tensor(prompt, dtype=torch.int32),
               "generated_ids": torch.tensor(ids, dtype=torch.int32),
               "prompt_logits": kept.float().contiguous(), "logits": logits.float().contiguous()},
              folder / "reference.safetensors")
    return report_of(name, seed, folder, ids, logits, exact)


def make_cases(what, folder, cases, random_case, write_case, seeds, about):
    """What the program does: writes the named cases, all, or random ones, each with the first seed that it accepts.
    what: the first line of --help; seeds: how many are tried for a case, of fixed and of random ones; about: of a report
    and its case, what is printed beside it."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("-o", "--output", type=pathlib.Path, default=folder)
    parser.add_argument("--random", type=int, default=0, help="so many random cases instead of the fixed ones")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rng = random.Random(arguments.seed)
    cases = {f"random-{arguments.seed}-{i}": random_case(rng) for i in range(arguments.random)} or cases
    total = 0
    for name, spec in cases.items():
        if arguments.names and name not in arguments.names:
            continue
        first = 1000 * arguments.seed
        for seed in range(first, first + seeds[1 if arguments.random else 0]):
            if report := write_case(name, spec, seed, arguments.output):
                break
        else:
            shutil.rmtree(arguments.output / name, ignore_errors=True)
            if arguments.random:  # a size whose numbers lie too close together
                continue
            raise SystemExit(f"{name}: no seed gives an unambiguous case")
        total += report["bytes"]
        print(json.dumps({**report, **about(spec)}), flush=True)
    print(json.dumps({"total bytes": total, "torch": torch.__version__, "transformers": transformers.__version__}))


def main():
    make_cases(__doc__.splitlines()[0], FOLDER, CASES, random_case, write_case, (40, 40),
               lambda spec: {"kind": spec["kind"], "rope": spec["config"]["rope_parameters"]["rope_type"]})


if __name__ == "__main__":
    main()
