#!/usr/bin/env python3
"""Tiny random checkpoints of MiniMax-M3, whose indexers choose blocks of keys, and what transformers chooses and computes.

    python3 -m venv venv && venv/bin/pip install torch "transformers==5.17.*"
    venv/bin/python tools/make_block_sparse_checkpoints.py                     writes tests/golden/block_sparse
    venv/bin/python tools/make_block_sparse_checkpoints.py --random 20 -o DIR  other sizes and seeds, for a wider check

Checkpoints of the whole model, images and all, of which the reference reads text, and of the text model alone. One folder per case, as
make_family_checkpoints.py writes them (which this uses), with reference.safetensors that holds
    prompt_ids         i32 [P]
    generated_ids      i32 [65]                    greedy: generated_ids[s] is the arg-max of logits[s]
    logits             f32 [65, vocab]             of the prompt's last position, then of every decode step
    layers             i32 [L]                     those with an indexer
    selected           i32 [64, L, KV heads, K]    blocks that a decode step attends to, ascending, -1 behind the last
    margin             f32 [64, L, KV heads]       score of the worst one taken minus the best left out, over the largest
                                                   of the query's scores; infinite where nothing is left out
    prompt_selected    i32 [Q, L, KV heads, K]     the same of the prompt's queries 0, 17, 34, ...
    prompt_margin      f32 [Q, L, KV heads]
read at the call of topk in the library's indexers. A case is refused, and the next seed tried, when a float64 run
generates other ids or selects other blocks anywhere, or two best logits come closer than SMALLEST_GAP, or a margin of
any query, of the prompt too, is below SMALLEST_MARGIN (indexer_choices.py).
"""

import json
import pathlib

import indexer_choices
import make_family_checkpoints as families
import torch
from make_family_checkpoints import BASE, rope
from transformers import (MiniMaxM3SparseForConditionalGeneration, MiniMaxM3VLConfig, MiniMaxM3VLForCausalLM,
                          MiniMaxM3VLTextConfig)

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/block_sparse"

VISION = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
EXPERTS = dict(num_local_experts=6, num_experts_per_tok=2, intermediate_size=8, shared_intermediate_size=12,
               dense_intermediate_size=20)


def case(prompt, full, dense=(), legacy=False, alone=False, **config):
    """full: layers without an indexer; dense: layers without experts; legacy: with the keys of published files; alone: the
    text model."""
    text = {**BASE, **EXPERTS, "head_dim": 8, "num_hidden_layers": 3, "max_position_embeddings": 2048, **config}
    text["rotary_dim"] = int(text["head_dim"] * text["rope_parameters"].get("partial_rotary_factor", 1.0))
    layers = range(text["num_hidden_layers"])
    text["layer_types"] = ["full_attention" if i in full else "minimax_m3_sparse" for i in layers]
    text["mlp_layer_types"] = ["dense" if i in dense else "sparse" for i in layers]
    return {"prompt": prompt, "config": text, "legacy": legacy and not alone, "alone": alone}


CASES = {
    "blocks-of-16": case(600, full=[0], dense=[0], index_n_heads=2, index_head_dim=12, index_block_size=16,
                         index_topk_blocks=4, swiglu_limit=1.5, **rope("default", partial_rotary_factor=0.5)),
    "local-blocks": case(505, full=[1], dense=[1, 2, 3], legacy=True, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=4, hidden_size=20, index_n_heads=2, index_head_dim=8, index_block_size=32,
                         index_topk_blocks=6, index_local_blocks=3, routed_scaling_factor=1.0, swiglu_alpha=1.0,
                         **rope("yarn", original=256)),
    "blocks-of-128": case(900, full=[], num_hidden_layers=2, num_key_value_heads=1, head_dim=16, index_n_heads=1,
                          index_head_dim=8, index_block_size=128, index_topk_blocks=3, tie_word_embeddings=True,
                          **rope("linear", dim=8, partial_rotary_factor=0.5)),
    "text-alone": case(420, full=[2], dense=[0], alone=True, num_local_experts=4, index_n_heads=1, index_head_dim=8,
                       index_block_size=16, index_topk_blocks=5, index_local_blocks=2,
                       **rope("llama3", partial_rotary_factor=0.5)),
}


def random_case(rng):
    kv = rng.choice([1, 2, 4])
    layers = rng.choice([1, 2, 3])
    indexed = rng.randrange(layers)  # one of them at least
    dim = rng.choice([8, 16, 32])
    partial = rng.choice([1.0, 0.5, 0.25])
    local = rng.choice([1, 1, 2, 4])
    result = case(rng.choice([40, 130, 200, 600]), full=[i for i in range(layers) if i != indexed and rng.random() < 0.4],
                  dense=[i for i in range(layers) if rng.random() < 0.4], legacy=rng.random() < 0.5, alone=rng.random() < 0.3,
                  num_hidden_layers=layers, num_attention_heads=kv * rng.choice([1, 2, 4]), num_key_value_heads=kv,
                  hidden_size=rng.choice([24, 40]), head_dim=dim, index_head_dim=int(dim * partial) + rng.choice([0, 2, 8]),
                  index_n_heads=rng.choice([heads for heads in (1, 2, 4) if kv % heads == 0]),
                  index_block_size=rng.choice([16, 32, 64]), index_topk_blocks=local + rng.choice([0, 1, 3]),
                  index_local_blocks=local, num_local_experts=rng.choice([2, 5]), intermediate_size=rng.choice([5, 16]),
                  swiglu_limit=rng.choice([0.5, 7.0]), swiglu_alpha=rng.choice([1.0, 1.702]),
                  routed_scaling_factor=rng.choice([1.0, 2.0]), tie_word_embeddings=rng.random() < 0.3,
                  **rope(rng.choice(["default", "linear", "llama3"]), dim=dim, partial_rotary_factor=partial))
    result["dtype"] = rng.choice(["bfloat16", "float32"])
    return result


def make_model(spec, seed):
    text = spec["config"]
    if spec["alone"]:
        kind, config = MiniMaxM3VLForCausalLM, MiniMaxM3VLTextConfig(**text)
    else:
        kind = MiniMaxM3SparseForConditionalGeneration
        config = MiniMaxM3VLConfig(text_config=dict(text), vision_config=dict(VISION), projector_hidden_size=8,
                                   tie_word_embeddings=text["tie_word_embeddings"])
    model = kind._from_config(config, attn_implementation="eager", experts_implementation="eager").float().eval()
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, spec.get("dtype", "bfloat16"))
    with torch.no_grad():
        for name, weight in sorted([*model.named_parameters(), *model.named_buffers()]):
            if "inv_freq" in name:
                continue
            noise = torch.randn(weight.shape, generator=generator)
            if name.endswith("norm.weight"):
                weight.copy_(0.2 * noise)  # to which the class adds 1
            elif name.endswith("bias"):
                weight.copy_(0.3 * noise)
            elif "embed_tokens" in name:
                weight.copy_(noise * families.embedding_size({"config": text, "mup": None}))
            else:
                sharp = any(part in name for part in ("q_proj", "k_proj"))
                weight.copy_((1.6 if sharp else 1.0) * noise / weight.shape[-1] ** 0.5)
            weight.copy_(weight.to(dtype).float())
    return model


def text_of(model):
    """The modules of the text."""
    return getattr(model.model, "language_model", model.model)


def fresh(model, folder, double):
    """The model as a program would load it. Angles stay float32 in either run: they are part of the model."""
    again = type(model).from_pretrained(folder, attn_implementation="eager", experts_implementation="eager")
    again = again.double() if double else again.float()
    text_of(again).rotary_emb.inv_freq = text_of(model).rotary_emb.original_inv_freq.clone()
    return again.eval()


def decode(model, prompt):
    """@return what indexer_choices.decode returns, and the layers with an indexer"""
    indexers = [layer.self_attn.indexer for layer in text_of(model).layers]
    layers = [i for i, indexer in enumerate(indexers) if indexer is not None]
    kv_heads = model.config.get_text_config().num_key_value_heads

    def seen(scores, chosen):
        """For each KV head what the indexer's head that chooses for it saw: all blocks, -inf those of later tokens."""
        heads, queries, _ = scores.shape
        by_head = [[(sorted(int(block) for block in chosen[head, query] if block >= 0), scores[head, query])
                    for query in range(queries)] for head in range(heads)]
        return [of_head for of_head in by_head for _ in range(kv_heads // heads)]

    choices = indexer_choices.Choices([indexers[i] for i in layers], seen, range(len(layers)))
    return indexer_choices.decode(model, prompt, choices), layers


def to_published_keys(text):
    """A text configuration as published files write it: counts and kinds in a section of their own."""
    sparse = {new: text.pop(old) for old, new in (
        ("index_n_heads", "sparse_num_index_heads"), ("index_head_dim", "sparse_index_dim"),
        ("index_block_size", "sparse_block_size"), ("index_topk_blocks", "sparse_topk_blocks"),
        ("index_local_blocks", "sparse_local_block"))}
    sparse["sparse_attention_freq"] = [int(kind == "minimax_m3_sparse") for kind in text.pop("layer_types")]
    text["sparse_attention_config"] = sparse
    text["moe_layer_freq"] = [int(kind == "sparse") for kind in text.pop("mlp_layer_types")]
    text["hidden_act"] = "swigluoai"


def write_case(name, spec, seed, root):
    folder = root / name
    model = make_model(spec, seed)
    families.save_model(model, folder)
    if spec["legacy"]:
        written = json.loads((folder / "config.json").read_text())
        to_published_keys(written["text_config"])
        (folder / "config.json").write_text(json.dumps(written))
    prompt, _ = families.random_prompt(spec, seed)
    single, layers = decode(fresh(model, folder, False), prompt)
    double, _ = decode(fresh(model, folder, True), prompt)
    return indexer_choices.write_reference(name, spec, seed, folder, prompt, single, double,
                                           spec["config"]["index_topk_blocks"],
                                           lambda tensors: {**tensors, "layers": torch.tensor(layers, dtype=torch.int32)})


def main():
    families.make_cases(__doc__.splitlines()[0], FOLDER, CASES, random_case, write_case, (200, 6),
                        lambda spec: {"block": spec["config"]["index_block_size"]})


if __name__ == "__main__":
    main()
