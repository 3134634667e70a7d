"""Tiny models with random weights of the sparse-attention families of transformers."""

from __future__ import annotations

from typing import Any

import torch

COMMON = dict(
    vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=512,
    bos_token_id=1, eos_token_id=None, pad_token_id=0,
)  # fmt: skip
LATENT = dict(kv_lora_rank=16, q_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4)
EXPERTS = dict(moe_intermediate_size=32, n_shared_experts=1, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1)
INDEX = dict(index_n_heads=4, index_head_dim=16, index_topk=16)


def _deepseek_v32() -> Any:
    from transformers import DeepseekV32Config as Config, DeepseekV32ForCausalLM as Model

    return Model(Config(**COMMON, **LATENT, **EXPERTS, **INDEX, first_k_dense_replace=1))


def _glm_moe_dsa() -> Any:
    from transformers import GlmMoeDsaConfig as Config, GlmMoeDsaForCausalLM as Model

    return Model(Config(**COMMON, **LATENT, **EXPERTS, **INDEX, indexer_types=["full", "full", "shared"], mlp_layer_types=["dense", "sparse", "sparse"]))  # fmt: skip


def _axk2() -> Any:
    from transformers import AXK2Config as Config, AXK2ForCausalLM as Model

    return Model(Config(**COMMON, **LATENT, **EXPERTS, **INDEX, first_k_dense_replace=1))


def _hy_v4() -> Any:
    from transformers import HYV4Config as Config, HYV4ForCausalLM as Model

    return Model(Config(**COMMON, **LATENT, **EXPERTS, **INDEX))


def _minimax_m3() -> Any:
    from transformers import MiniMaxM3VLTextConfig as Config
    from transformers.models.minimax_m3_vl.modeling_minimax_m3_vl import MiniMaxM3VLForCausalLM as Model

    return Model(Config(
        **COMMON, num_key_value_heads=2, head_dim=16, rotary_dim=8, dense_intermediate_size=128, shared_intermediate_size=32,
        num_local_experts=4, num_experts_per_tok=2, index_n_heads=2, index_head_dim=16, index_block_size=8, index_topk_blocks=4,
        layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"], mlp_layer_types=["dense", "sparse", "sparse"],
    ))  # fmt: skip


def _deepseek_v4() -> Any:
    from transformers import DeepseekV4Config as Config, DeepseekV4ForCausalLM as Model

    common = {key: value for key, value in COMMON.items() if key != "intermediate_size"}
    return Model(Config(
        **common, head_dim=16, num_key_value_heads=1, q_lora_rank=32, moe_intermediate_size=32, n_routed_experts=4,
        n_shared_experts=1, num_experts_per_tok=2, sliding_window=16, o_groups=2, o_lora_rank=16, index_n_heads=4,
        index_head_dim=16, index_topk=6, num_nextn_predict_layers=0, partial_rotary_factor=0.5,
        layer_types=["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        mlp_layer_types=["moe", "moe", "moe"],
    ))  # fmt: skip


def _glm5_next() -> Any:
    from transformers import Glm5NextConfig as Config, Glm5NextForConditionalGeneration as Model

    text = dict(
        **COMMON, **(LATENT | {"qk_rope_head_dim": 0}), **EXPERTS, **(INDEX | {"index_topk": 32}), index_kpool=8, linear_head_dim=16,
        linear_num_heads=4, hc_mult=2, layer_types=["linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"],
    )  # fmt: skip
    vision = dict(depth=1, hidden_size=32, intermediate_size=64, num_heads=2, image_size=28, out_hidden_size=64,
                  projection_intermediate_size=64)  # fmt: skip
    return Model(Config(text_config=text, vision_config=vision, image_token_id=120, video_token_id=121, image_start_token_id=122,
                        image_end_token_id=123, video_start_token_id=124, video_end_token_id=125))  # fmt: skip


def _qwen4_exp() -> Any:
    from transformers import Qwen4ExpForCausalLM as Model, Qwen4ExpTextConfig as Config

    common = {key: value for key, value in COMMON.items() if key != "intermediate_size"}
    return Model(Config(
        **common, num_key_value_heads=2, head_dim=16, linear_key_head_dim=16, linear_value_head_dim=16, linear_num_key_heads=2,
        linear_num_value_heads=4, moe_intermediate_size=32, shared_expert_intermediate_size=32, num_experts_per_tok=2,
        num_experts=4, layer_types=["linear_attention", "full_attention", "full_attention"], hc_count=2, hc_lowrank=8,
        ngram_vocab_size_base=64, heads_per_ngram=2, split_ngram_parts=1, ple_layer_ids=[], indexer_n_heads=4, indexer_kv_heads=1,
        indexer_head_dim=16, indexer_budget=16, indexer_compress_ratio=4,
    ))  # fmt: skip


FAMILIES = {
    "deepseek_v32": _deepseek_v32, "glm_moe_dsa": _glm_moe_dsa, "axk2": _axk2, "hy_v4": _hy_v4, "minimax_m3": _minimax_m3,
    "deepseek_v4": _deepseek_v4, "glm5_next": _glm5_next, "qwen4_exp": _qwen4_exp,
}  # fmt: skip


def model_of(family: str, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return FAMILIES[family]().eval()
