#!/usr/bin/env python3
"""One change to a configuration or to the tensors at a time, for every family: does KVScope compute what transformers
computes, or refuse?

    python3 -m venv venv && venv/bin/pip install torch 'transformers==5.17.*'
    venv/bin/python tools/compare_configurations.py --seed 7 --changes 60
    venv/bin/python tools/compare_configurations.py --all --families qwen2,mixtral    every change there is
    venv/bin/python tools/compare_configurations.py --defaults                         the families' defaults alone
    venv/bin/python tools/compare_configurations.py --gguf LLAMA_CPP                   each checkpoint read from a GGUF file

For each family a tiny random checkpoint is made, and changed copies of it: a key left out, null, or another value; a key
of any class of the library added; keys of the RoPE scaling likewise; biases, heads, buffers and layers added or taken
away. Both programs read a prompt longer than every window and decode a few tokens. A change counts as

    same      both compute the same logits (within 2e-3 of the largest)
    refused   KVScope ends with one sentence
    alone     KVScope computes something, the library does not load or has to invent weights: looked at one by one
    DIFFERS   both compute, and not the same: a fault
    BROKEN    KVScope ends in another way than with a sentence: a fault

With --gguf, llama.cpp's own converter (LLAMA_CPP as in make_gguf_families.py) makes a file of each changed checkpoint, which
KVScope reads in place of the folder. Two kinds more:

    refuses   the converter does not take the checkpoint
    loses     the file's numbers are those of the library once the change is taken back: the converter does not read the key

and what DIFFERS there is no fault of KVScope where the file says something else than the checkpoint: a tensor that the library
leaves out (a bias) is in the file, YaRN's `truncate` and RoPE by kind of layer are not. `--keep` keeps the file beside the folder.

The exit status says whether there are faults. `-v` prints every change; `--keep DIR` keeps the folders of faults.
"""

import argparse
import copy
import dataclasses
import json
import logging
import math
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

import make_family_checkpoints as families

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS = 5
PROMPT = 50
ERROR = 2e-3  # of the largest logit

WINDOW = 16
BASES = {
    "llama": families.case("Llama", **families.rope("llama3", original=32)),
    "llama-bias": families.case("Llama", attention_bias=True, mlp_bias=True, **families.rope("default")),
    "mistral": families.case("Mistral", sliding_window=WINDOW, **families.rope("linear")),
    "qwen2": families.case("Qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, num_hidden_layers=3,
                           **families.rope("default")),
    "qwen3": families.case("Qwen3", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1,
                           tie_word_embeddings=True, **families.rope("yarn", original=32)),
    "minicpm3": families.case("MiniCPM3", q_lora_rank=24, scale_emb=12, scale_depth=1.4, dim_model_base=16,
                              tie_word_embeddings=True, **families.LATENT, **families.rope("longrope", original=32, factor=4.0)),
    "deepseek2": families.case("DeepseekV2", q_lora_rank=24, topk_method="group_limited_greedy", n_group=4, topk_group=2,
                               routed_scaling_factor=1.5, **families.LATENT, **families.EXPERTS,
                               **families.rope("yarn", original=32, mscale=0.707, mscale_all_dim=0.707)),
    "deepseek3": families.case("DeepseekV3", q_lora_rank=24, n_group=2, topk_group=1, routed_scaling_factor=2.0,
                               attention_bias=True, **families.LATENT, **families.EXPERTS, **families.rope("default")),
    "glm4-lite": families.case("Glm4MoeLite", q_lora_rank=24, routed_scaling_factor=1.5, **families.LATENT,
                               **{k: v for k, v in families.EXPERTS.items() if k != "first_k_dense_replace"},
                               **families.rope("default")),
    "deepseek32": families.case("DeepseekV32", q_lora_rank=24, n_group=2, topk_group=1, routed_scaling_factor=2.0,
                                index_topk=12, index_n_heads=12, index_head_dim=16, **families.LATENT, **families.EXPERTS,
                                **families.rope("default")),
    "glm-dsa": families.case("GlmMoeDsa", q_lora_rank=24, n_group=1, topk_group=1, num_hidden_layers=3, index_topk=12,
                             index_n_heads=12, index_head_dim=16, indexer_types=["full", "shared", "full"],
                             **families.LATENT, **families.EXPERTS, **families.rope("default")),
    "mixtral": families.case("Mixtral", num_local_experts=4, num_experts_per_tok=2, sliding_window=WINDOW,
                             **families.rope("default", rope_theta=1000000.0)),
    "qwen2-moe": families.case("Qwen2Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                               shared_expert_intermediate_size=24, use_sliding_window=True, sliding_window=WINDOW,
                               max_window_layers=1, **families.rope("default")),
    "qwen3-moe": families.case("Qwen3Moe", num_experts=6, num_experts_per_tok=2, moe_intermediate_size=16,
                               use_sliding_window=True, sliding_window=WINDOW, mlp_only_layers=[0],
                               **families.rope("dynamic")),
}
# Keys that the library's masks, caches and configurations read of any class, and others that checkpoints state.
ADDED = {
    "is_causal": [False, True, None, 0], "attention_chunk_size": [8, None], "num_kv_shared_layers": [1, 0],
    "layer_types": ["full", "sliding", "mixed", "linear_attention", "chunked_attention", None],
    "mlp_layer_types": ["dense", "sparse"], "sliding_window": [8, 0, None, 4096], "use_sliding_window": [True, False],
    "max_window_layers": [0, 1, 5], "rope_interleave": [True, False], "rope_scaling": [{}, None, "linear", "yarn"],
    "rope_theta": [500.0, 1000000.0], "partial_rotary_factor": [0.5, 1.0], "original_max_position_embeddings": [16, 64],
    "attention_bias": [True, False], "mlp_bias": [True, False], "qkv_bias": [True, False], "tie_word_embeddings": [True, False],
    "scale_emb": [12, 1], "scale_depth": [1.4], "dim_model_base": [8], "head_dim": [8, 16], "hidden_act": ["gelu", "swish", "relu"],
    "n_group": [2], "topk_group": [2], "norm_topk_prob": [True, False], "routed_scaling_factor": [3.0], "n_shared_experts": [1, 2],
    "first_k_dense_replace": [0, 2], "moe_layer_freq": [1, 2], "scoring_func": ["softmax", "sigmoid"], "topk_method": ["greedy", "noaux_tc"],
    "num_local_experts": [6, 8], "num_experts": [6, 8], "n_routed_experts": [8], "decoder_sparse_step": [2], "mlp_only_layers": [[1]],
    "final_logit_softcapping": [5.0], "attn_logit_softcapping": [5.0], "logit_scale": [0.5], "logits_scaling": [4.0],
    "residual_multiplier": [0.5], "embedding_multiplier": [3.0], "attention_multiplier": [0.2], "query_pre_attn_scalar": [64],
    "use_qk_norm": [True], "qk_layernorm": [True], "rope_local_base_freq": [500.0], "rms_norm_eps": [0.1], "layer_norm_eps": [0.1],
    "attention_dropout": [0.5], "router_jitter_noise": [0.3], "pretraining_tp": [2], "use_cache": [False], "is_decoder": [True],
    "cross_attention": [True], "text_config": [{"hidden_size": 4}], "is_encoder_decoder": [True, False], "num_nextn_predict_layers": [1],
    "rotary_dim": [4], "rotary_emb_base": [500], "clip_qkv": [0.1], "no_rope_layers": [[0, 1]], "attention_scale": [0.1],
    "temperature": [0.5], "repetition_penalty": [1.3], "torch_dtype": ["float32"], "model_type": ["llama", "mistral", "qwen2"],
    "chunk_size_feed_forward": [4], "attn_temperature_tuning": [True], "per_layer_config": [None], "num_key_value_heads": [1, 4, None],
}
# Keys of other families and of older and later versions, most of which no class here reads.
ADDED |= {
    "hidden_activation": ["gelu"], "activation_function": ["relu"], "position_embedding_type": ["alibi", "rope"], "alibi": [True],
    "use_alibi": [True], "rotary_pct": [0.5], "rope_pct": [0.5], "rope_ratio": [2.0], "rope_type": ["linear", "default"],
    "rope_factor": [4.0], "mrope_section": [[2, 1, 1]], "sliding_window_pattern": [2], "global_attn_every_n_layers": [2],
    "attn_types": [["local", "global"]], "attention_out_bias": [True], "use_bias": [True], "bias": [True], "lm_head_bias": [True],
    "norm_bias": [True], "sandwich_norm": [True], "post_norm": [True], "use_parallel_residual": [True], "parallel_attn": [True],
    "embedding_scale": [2.0], "emb_scale": [2.0], "normalize_embedding": [True], "mup_enabled": [True], "mup_base_width": [16],
    "output_multiplier_scale": [0.5], "lm_head_multiplier": [0.5], "attention_in_multiplier": [0.5], "key_multiplier": [0.5],
    "ssm_multipliers": [[0.5]], "mlp_multipliers": [[0.5, 0.5]], "kv_channels": [16], "seq_length": [16], "n_positions": [16],
    "n_layer": [1], "num_layers": [1], "n_head": [2], "n_embd": [16], "d_model": [16], "ffn_dim": [16], "layerdrop": [0.5],
    "early_exit_layers": [[0]], "quantization_config": [{"quant_method": "fp8"}, {"quant_method": "gptq", "bits": 4}, None],
    "compression_config": [{"format": "int-quantized"}], "dtype": [None], "pad_token_id": [3, None], "eos_token_id": [[1, 2], None],
    "bos_token_id": [5, None], "vocab_size": [100, 4], "add_cross_attention": [True], "tie_encoder_decoder": [True],
    "pruned_heads": [{"0": [1]}], "output_attentions": [True], "return_dict": [False], "problem_type": ["regression"],
    "cache_implementation": ["static"], "use_sliding_window_layers": [[0]], "attention_sinks": [True], "sink_size": [4],
    "swa_rope_theta": [500.0], "rope_theta_local": [500.0], "num_local_heads": [1], "multi_query": [True], "num_kv_heads": [1],
    "moe_num_experts": [4], "num_shared_experts": [2], "expert_layer_period": [2], "expert_layer_offset": [1], "moe_layers": [[1]],
    "interleave_moe_layer_step": [2], "moe_k": [1], "top_k": [1], "topk": [1], "num_experts_per_token": [1],
    "router_bias": [True], "use_routing_bias": [True], "routed_scale": [2.0], "moe_router_logit_scale": [2.0],
    "shared_expert_intermediate_size": [8], "moe_intermediate_size": [8], "intermediate_size_mlp": [16], "v_head_dim": [8],
    "qk_nope_head_dim": [8], "qk_rope_head_dim": [4], "q_lora_rank": [8, None], "kv_lora_rank": [8], "index_topk": [4],
    "index_n_heads": [2], "use_mla": [False], "attn_module_list_cfg": [[]], "auto_map": [{"AutoModelForCausalLM": "m.M"}, {}],
    "sparse_config": [{"topk": 4}, None], "block_size": [4], "mask_token_id": [5], "use_cache_quantization": [True],
    "layer_norm_epsilon": [0.1], "norm_eps": [0.1], "norm_epsilon": [0.1], "initializer_range": [3.0], "max_sequence_length": [16],
    "model_max_length": [16], "_attn_implementation": ["sdpa"], "attn_implementation": ["flash_attention_2"], "use_flash_attn": [True],
    "fp32_residual": [True], "logit_soft_cap": [5.0], "final_logit_softcap": [5.0], "attn_scale": [0.1], "softmax_scale": [0.1],
    "rope_parameters_local": [{"rope_theta": 5.0}], "llama_4_scaling": [{"beta": 1.0}], "attn_scale_floor": [8192],
    "mlp_only_layers": [[0, 1], [], None], "first_k_dense_replace": [1, 5, None, -1], "layer_types": ["short", "long", "words"],
    "max_position_embeddings": [16, 60], "original_max_position_embeddings": [8, None], "num_hidden_layers": [1],
    "partial_rotary_factor": [0.25, 0, None], "head_dim": [4, None, 7], "sliding_window": [51, 49, 50, -1], "max_window_layers": [2, 3, -1],
}
# What the library's configuration, masks, caches and generation read beside, and what its classes call their own.
ADDED |= {
    "fusion_config": [{"qkv": True}], "mtp_layer_types": [["full_attention"]], "mtp_mlp_layer_types": [["dense"]], "num_mtp_layers": [2],
    "mtp_per_layer_config": [{"0": {"hidden_act": "gelu"}}], "per_layer_config": [{"0": {"hidden_act": "gelu"}}, {}],
    "default_theta": [500.0], "attribute_map": [{"hidden_act": "model_type"}, {}], "sub_configs": [{"text_config": "x"}],
    "transformers_weights": ["other.safetensors", None], "use_swiglu_ffn": [True], "qk_head_dim": [4], "dtype_plan": [{"norm": "float16"}],
    "layers_block_type": [["mamba", "attention"]], "vision_config": [{"hidden_size": 4}], "llm_config": [{"hidden_size": 4}],
    "language_config": [{"hidden_size": 4}], "thinker_config": [{"text_config": {}}], "decoder": [{"hidden_size": 4}], "encoder": [{}],
    "text_encoder": [{"hidden_size": 4}], "generator": [{"hidden_size": 4}], "is_heterogeneous": [True], "gradient_checkpointing": [True],
    "_attn_implementation_internal": ["sdpa"], "ignore_keys_at_rope_validation": [["factor"]], "max_cache_len": [16], "cache_config": [{"nbits": 2}],
    "prefill_chunk_size": [8], "stop_strings": ["a"], "min_new_tokens": [3], "suppress_tokens": [[1, 2, 3]], "begin_suppress_tokens": [[5]],
    "guidance_scale": [2.0], "sequence_bias": [[[[5], -10.0]]], "decoder_start_token_id": [4], "forced_bos_token_id": [4],
    "use_mtp": [True], "do_sample": [True], "num_beams": [2], "max_length": [51], "hidden_dropout": [0.5], "embd_pdrop": [0.5],
    "tie_weights": [True], "weight_mapping": [{"a": "b"}], "base_model_tp_plan": [{"layers.*.q_proj": "colwise"}], "loss_type": ["x"],
    "rope_parameters": [None, [], "linear"], "use_parallel_residuals": [True], "sinks": [True], "gated_attention": [True],
}
# RoPE scalings beside those that the families' own keys give.
SCALINGS = [
    {"rope_type": "yarn", "factor": 2.0, "beta_fast": 16, "beta_slow": 2}, {"rope_type": "yarn", "factor": 0.5},
    {"rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5}, {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.8},
    {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
    {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 16},
    {"rope_type": "dynamic", "factor": 3.0}, {"rope_type": "linear", "factor": 1.0}, {"rope_type": "linear", "factor": 0},
    {"type": "linear", "rope_type": "yarn", "factor": 2.0}, {"type": "dynamic", "factor": 2.0}, {"type": "su", "factor": 2.0},
    {"rope_type": "default", "factor": 4.0}, {"rope_type": "proportional", "factor": 4.0}, {"rope_type": "mrope", "factor": 4.0},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, {"rope_type": "default", "rope_theta": 77.0},
    {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}, {"factor": 2.0}, {"rope_type": "Linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "truncate": False}, {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 24},
    {"full_attention": {"rope_type": "linear", "factor": 2.0}, "sliding_attention": {"rope_type": "default"}},
]
OTHERS = [None, 0, 1, 2, True, False, 0.5, -1, "2", [], {}]


def types_for(word, layers):
    if word in ("full", "sliding"):
        return [word + "_attention"] * layers
    if word == "mixed":
        return [["full", "sliding"][i % 2] + "_attention" for i in range(layers)]
    if word in ("short", "long"):
        return ["full_attention"] * (layers + (1 if word == "long" else -1))
    if word == "words":
        return ["attention"] * layers
    return [word] + ["full_attention"] * (layers - 1)


def changes_of(config, tensors, rng):
    """(name, config, tensors), every one with one difference."""
    layers = config["num_hidden_layers"]

    def changed(name, key, value, inside=None):
        other = copy.deepcopy(config)
        (other[inside] if inside else other)[key] = value
        return name, other, tensors

    for key in sorted(config):
        if key in ("architectures", "transformers_version"):
            continue
        other = copy.deepcopy(config)
        del other[key]
        yield f"{key} left out", other, tensors
        value = config[key]
        values = OTHERS + ([value * 2, value + 1] if isinstance(value, (int, float)) and not isinstance(value, bool) else [])
        for value in values:
            if key == "sliding_window" and value == 1:
                continue  # the library's cache keeps every token, its mask shows one: it decodes other than it reads
            if value != config[key] or type(value) is not type(config[key]):
                yield changed(f"{key} = {value!r}", key, value)
    for key, values in sorted(ADDED.items()):
        for value in values:
            if key == "layer_types" and value is not None:
                value = types_for(value, layers)
            if key == "mlp_layer_types":
                value = [value] * layers
            if key == "rope_scaling" and isinstance(value, str):
                value = {"rope_type": value, "factor": 4.0}
            yield changed(f"{key} = {value!r}", key, value)
    scaling = config.get("rope_parameters") or {}
    for key in sorted(scaling):
        other = copy.deepcopy(config)
        del other["rope_parameters"][key]
        yield f"rope_parameters.{key} left out", other, tensors
        for value in OTHERS + ["linear", "default"] + ([scaling[key] * 2] if isinstance(scaling[key], float) else []):
            yield changed(f"rope_parameters.{key} = {value!r}", key, value, "rope_parameters")
    for key, value in (("factor", 3.0), ("attention_factor", 1.3), ("mscale", 0.5), ("mscale_all_dim", 0.5), ("beta_fast", 8),
                       ("truncate", False), ("truncate", None), ("type", "linear"), ("partial_rotary_factor", 0.5),
                       ("original_max_position_embeddings", 16), ("full_attention", {"rope_type": "default"})):
        yield changed(f"rope_parameters.{key} = {value!r}", key, value, "rope_parameters")
    for number, value in enumerate(SCALINGS):
        for inside in ("rope_parameters", "rope_scaling"):
            given = {"rope_theta": scaling.get("rope_theta", 10000.0)} | value if inside == "rope_parameters" else value
            yield changed(f"{inside} as SCALINGS[{number}]", inside, given)
            alone = copy.deepcopy(config)
            del alone["rope_parameters"]
            alone[inside] = given
            yield f"{inside} alone as SCALINGS[{number}]", alone, tensors
    older = copy.deepcopy(config)  # as before transformers 5
    older["rope_scaling"] = {k: v for k, v in scaling.items() if k != "rope_theta"}
    older["rope_theta"] = scaling["rope_theta"]
    del older["rope_parameters"]
    yield "keys as before transformers 5", older, tensors
    without = copy.deepcopy(older)
    del without["rope_theta"]
    yield "rope_theta left out of older keys", without, tensors
    for wrong in (["LlamaForCausalLM"], ["MistralForCausalLM"]):
        yield changed(f"architectures = {wrong}", "architectures", wrong)

    def with_tensors(name, change, key=None, value=None):
        other = dict(tensors)
        change(other)
        return name, copy.deepcopy(config) | ({key: value} if key else {}), other

    hidden, vocab = config["hidden_size"], config["vocab_size"]
    draw = torch.Generator().manual_seed(rng.randrange(1 << 30))
    noise = lambda *shape: 0.3 * torch.randn(shape, generator=draw)
    for name, weight in sorted(tensors.items()):
        bias = name.removesuffix("weight") + "bias"
        if ".layers.0." in name and name.endswith("proj.weight") and ".experts." not in name and bias not in tensors:
            yield with_tensors(f"{bias} added", lambda t, b=bias, n=weight.shape[0]: t.update({b: noise(n)}))
    for name in [name for name in sorted(tensors) if name.endswith(".bias")][:6]:
        yield with_tensors(f"{name} taken away", lambda t, n=name: t.pop(n))
    head, embedding = "lm_head.weight", tensors["model.embed_tokens.weight"]
    for tied in (True, False):
        yield with_tensors(f"another head, tied {tied}", lambda t: t.update({head: noise(vocab, hidden)}), "tie_word_embeddings", tied)
        yield with_tensors(f"the embedding as head, tied {tied}", lambda t: t.update({head: embedding.clone()}),
                           "tie_word_embeddings", tied)
        yield with_tensors(f"no head, tied {tied}", lambda t: t.pop(head, None), "tie_word_embeddings", tied)
    yield with_tensors("inv_freq buffers", lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": noise(4)}))
    behind = {n.replace("layers.1.", f"layers.{layers}."): w.clone() for n, w in tensors.items() if ".layers.1." in n}
    yield with_tensors("a layer behind the last", lambda t: t.update(behind))
    yield with_tensors("a norm of queries added", lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": noise(8).abs()}))
    for name in sorted(tensors):
        if ".layers.1." in name or ".layers." not in name:
            yield with_tensors(f"{name} taken away", lambda t, n=name: t.pop(n))
        if ".layers.0." in name and tensors[name].dim() == 2 and ".experts." not in name:
            yield with_tensors(f"{name} a row short", lambda t, n=name: t.update({n: t[n][:-1].clone()}))
            yield with_tensors(f"{name} a column short", lambda t, n=name: t.update({n: t[n][:, :-1].clone()}))
            yield with_tensors(f"{name} transposed", lambda t, n=name: t.update({n: t[n].T.contiguous()}))
            yield with_tensors(f"{name} as float64", lambda t, n=name: t.update({n: t[n].double()}))
            yield with_tensors(f"{name} as int8", lambda t, n=name: t.update({n: t[n].to(torch.int8)}))
            yield with_tensors(f"a scale of {name}", lambda t, n=name: t.update({n + "_scale_inv": torch.ones(1)}))
            yield with_tensors(f"a lora of {name}", lambda t, n=name: t.update({n.replace(".weight", ".lora_A.weight"): t[n][:2].clone()}))
    for name in ("model.norm.bias", "model.layers.0.input_layernorm.bias", "lm_head.bias", "model.embed_norm.weight",
                 "model.layers.0.self_attn.sinks", "model.layers.0.self_attn.rotary_emb.cos_cached",
                 "model.layers.0.post_feedforward_layernorm.weight", "model.layers.0.self_attn.k_norm.bias",
                 "model.rotary_emb.inv_freq", "model.layers.0.mlp.gate.bias", "model.layers.0.mlp.gate.e_score_correction_bias",
                 "model.embed_positions.weight", "score.weight", "model.layers.x.self_attn.q_proj.weight"):
        if name not in tensors:
            yield with_tensors(f"{name} added", lambda t, n=name: t.update({n: noise(hidden).abs()}))
    bare = lambda t: [t.update({n.removeprefix("model."): t.pop(n)}) for n in sorted(tensors)]
    yield with_tensors("names without model.", bare)
    yield with_tensors("names behind another model.", lambda t: [t.update({"model." + n: t.pop(n)}) for n in sorted(tensors)])
    yield with_tensors("names behind language_model.", lambda t: [t.update({"language_model." + n: t.pop(n)}) for n in sorted(tensors)])
    yield with_tensors("gamma for weight", lambda t: t.update({"model.norm.gamma": t.pop("model.norm.weight")}))
    yield with_tensors("the norm twice", lambda t: t.update({"model.norm.gamma": noise(hidden)}))
    yield with_tensors("a tensor elsewhere", lambda t: t.update({"vision.patch.weight": noise(3, 3)}))


def library(folder, prompt):
    """Logits of the prompt's last position and of STEPS - 1 greedy steps, or why there are none."""
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
        if info["missing_keys"]:
            return f"invents {sorted(info['missing_keys'])[0]}", None
        model = model.float().eval()
        with torch.no_grad():
            out = model(input_ids=torch.tensor([prompt]), use_cache=True)
            logits = [out.logits[0, -1]]
            for step in range(STEPS - 1):
                out = model(input_ids=torch.tensor([[int(logits[-1].argmax())]]), past_key_values=out.past_key_values,
                            use_cache=True, position_ids=torch.tensor([[len(prompt) + step]]))
                logits.append(out.logits[0, -1])
        logits = torch.stack(logits)
        return ("not finite", None) if not logits.isfinite().all() else ("", logits)
    except Exception as problem:  # whatever a library does with a wrong file
        return f"{type(problem).__name__}: {problem}".splitlines()[0][:160], None


def method_of(model):
    """The method that does what the library does: attends to everything, or to what the model's indexers choose.
    model: a folder or a file."""
    if not model.is_dir():
        return "full"
    kind = json.loads((model / "config.json").read_text()).get("model_type")
    return "dsa" if kind in ("deepseek_v32", "glm_moe_dsa") else "full"


def kvscope(cli, folder, prompt_file, scratch):
    """KVScope's logits, as `library` gives the library's; or the text of a refusal, or "BROKEN ..."."""
    out = scratch / "logits.safetensors"
    out.unlink(missing_ok=True)
    done = subprocess.run([str(cli), "run", "--model", str(folder), "--prompt-ids", str(prompt_file), "--method", method_of(folder),
                           "--ignore-eos", "--threads", "1", "--max-new-tokens", str(STEPS), "--logits", str(out), "--json"],
                          capture_output=True, text=True, timeout=120)
    if done.returncode == 0:
        stored = load_file(out)
        return "", next(value for key, value in stored.items() if "logits" in key).reshape(STEPS, -1)
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("note: ")]
    sentence = lines[-1] if lines else ""
    return (sentence if done.returncode in (1, 2) and len(lines) == 1 else f"BROKEN {done.returncode}: {sentence}"), None


def gguf_bases():
    """Families as a GGUF file can hold them: without windows, dynamic scaling and scales that the library does not know."""
    import make_gguf_families
    return {name: families.CASES[name] for name in make_gguf_families.CASES
            if not any(families.CASES[name].get(key) for key in ("mup", "sparse", "eviction"))}


def differs(ours, theirs):
    """Where two runs part: half a sentence; empty: nowhere."""
    for step in range(STEPS):
        error = ((ours[step] - theirs[step]).abs().max() / theirs[step].abs().max()).item()
        if not error < ERROR:
            return f"step {step}: {error:.2g} of the largest logit"
        if ours[step].argmax() != theirs[step].argmax():
            break  # a tie, to rounding
    return ""


def converted(folder, target, llama_cpp):
    """Makes a GGUF file of a checkpoint. Why there is none; empty: there is one."""
    sys.path[:0] = [path for path in (str(llama_cpp), str(llama_cpp / "gguf-py")) if path not in sys.path]
    import conversion
    import gguf

    import make_gguf_families
    logging.getLogger().setLevel(logging.CRITICAL)
    target.unlink(missing_ok=True)
    try:
        with torch.inference_mode():
            make_gguf_families.convert(folder, target, conversion, gguf)
        return ""
    except Exception as problem:  # whatever a converter does with a wrong checkpoint
        return f"{type(problem).__name__}: {problem}".splitlines()[0][:160]


def verdict(cli, folder, prompt, prompt_file, scratch, llama_cpp=None, unchanged=None):
    """unchanged: with llama_cpp, what the library computes for the family's checkpoint without a change."""
    model = folder
    if llama_cpp:
        model = scratch / "changed.gguf"
        if not_made := converted(folder, model, llama_cpp):
            return "refuses", not_made
    theirs_not, theirs = library(folder, prompt)
    ours_not, ours = kvscope(cli, model, prompt_file, scratch)
    if ours_not.startswith("BROKEN"):
        return "BROKEN", ours_not
    if ours is None:
        return "refused", ours_not + ("" if theirs is not None else f"   [library: {theirs_not}]")
    if theirs is None:
        return "alone", theirs_not
    where = differs(ours, theirs)
    if where and unchanged is not None and not differs(ours, unchanged):
        return "loses", where
    return ("DIFFERS", where) if where else ("same", "")


def check_defaults():
    """The defaults in core/model/architectures against the library's classes. Returns how many differ."""
    skipped = {"initializer_range", "use_cache", "pad_token_id", "pretraining_tp", "rope_parameters", "attention_dropout",
               "output_router_logits", "router_aux_loss_coef", "router_jitter_noise", "num_mtp_layers", "transformers_version",
               "architectures", "output_hidden_states", "return_dict", "dtype", "chunk_size_feed_forward", "is_encoder_decoder",
               "id2label", "label2id", "problem_type"}
    unheeded = {"DeepseekV2Config": {"head_dim", "norm_topk_prob", "num_experts_per_tok"}, "MiniCPM3Config": {"head_dim"}}
    wrong = 0
    for path in sorted((ROOT / "core/model/architectures").glob("*.cpp")):
        found = re.findall(r'\.classes = \{"(\w+)ForCausalLM".*?\.defaults = R"\((.*?)\)"', path.read_text(), re.S)
        for kind, text in found:
            config_class = getattr(transformers, f"{kind}Config", None)
            if config_class is None:
                continue
            ours = json.loads(text)
            theirs = {field.name: field.default for field in dataclasses.fields(config_class) if field.name not in skipped}
            theirs = {k: v for k, v in theirs.items() if k not in unheeded.get(config_class.__name__, ())}
            theirs["rope_theta"] = config_class.default_theta
            for key in sorted(ours.keys() | theirs.keys()):
                if ours.get(key, "left out") != theirs.get(key, "left out"):
                    wrong += 1
                    print(f"{config_class.__name__}.{key}: {ours.get(key, 'left out')!r} here, {theirs.get(key, 'left out')!r} there")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli", type=pathlib.Path, default=ROOT / "build/ci/app/kvscope-cli")
    parser.add_argument("--seed", type=int, default=1, help="of weights, prompts and the choice of changes")
    parser.add_argument("--changes", type=int, default=40, help="so many of each family's changes")
    parser.add_argument("--all", action="store_true", help="every change")
    parser.add_argument("--families", help=f"some of {', '.join(BASES)}")
    parser.add_argument("--only", help="changes whose names match this regular expression")
    parser.add_argument("--defaults", action="store_true", help="compare the defaults, and nothing else")
    parser.add_argument("--gguf", type=pathlib.Path, metavar="LLAMA_CPP")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["TQDM_DISABLE"] = "1"  # the converter's progress
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    wrong = check_defaults()
    print(f"defaults: {wrong} differ from transformers {transformers.__version__}")
    if arguments.defaults:
        raise SystemExit(wrong > 0)
    rng = random.Random(arguments.seed)
    counts = {}
    bases = gguf_bases() if arguments.gguf else BASES
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        for family in (arguments.families.split(",") if arguments.families else bases):
            spec = bases[family] | {"dtype": "float32"}
            base = scratch / "base"
            shutil.rmtree(base, ignore_errors=True)
            families.make_model(spec, rng.randrange(1 << 30)).save_pretrained(base)
            config, tensors = json.loads((base / "config.json").read_text()), load_file(base / "model.safetensors")
            prompt = [0] + [rng.randrange(2, config["vocab_size"]) for _ in range(PROMPT - 1)]
            (scratch / "prompt.json").write_text(json.dumps(prompt))
            unchanged = library(base, prompt)[1] if arguments.gguf else None
            every = [("unchanged", config, tensors), *changes_of(config, tensors, rng)]
            if arguments.only:
                every = [change for change in every if re.search(arguments.only, change[0])]
            elif not arguments.all:
                every = every[:1] + rng.sample(every[1:], min(arguments.changes, len(every) - 1))
            for name, changed, weights in every:
                folder = scratch / "changed"
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                (folder / "config.json").write_text(json.dumps(changed, indent=1))
                if weights is tensors:
                    os.link(base / "model.safetensors", folder / "model.safetensors")
                else:
                    save_file({k: v.contiguous() for k, v in weights.items()}, folder / "model.safetensors",
                              metadata={"format": "pt"})
                kind, why = verdict(arguments.cli, folder, prompt, scratch / "prompt.json", scratch, arguments.gguf, unchanged)
                counts.setdefault(family, {}).setdefault(kind, 0)
                counts[family][kind] += 1
                if arguments.verbose or kind.isupper() or kind == "alone" or (name == "unchanged" and kind != "same"):
                    print(f"{kind:8} {family}: {name}: {why}", flush=True)
                if kind.isupper() and arguments.keep:
                    kept = arguments.keep / f"{family}-{re.sub('[^a-z0-9]+', '-', name.lower())[:60]}"
                    shutil.copytree(folder, kept, dirs_exist_ok=True)
                    if arguments.gguf:
                        shutil.copy(scratch / "changed.gguf", kept)
    kinds = ["same", "refused", "alone", *(["refuses", "loses"] if arguments.gguf else []), "DIFFERS", "BROKEN"]
    print(f"{'':12}" + "".join(f"{kind:>9}" for kind in kinds))
    total = {kind: sum(found.get(kind, 0) for found in counts.values()) for kind in kinds}
    for family, found in [*counts.items(), ("together", total)]:
        print(f"{family:12}" + "".join(f"{found.get(kind, 0):>9}" for kind in kinds))
    raise SystemExit(wrong + total["DIFFERS"] + total["BROKEN"] > 0)


if __name__ == "__main__":
    main()
