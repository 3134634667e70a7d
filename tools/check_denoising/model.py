"""A denoising model with random weights: what its layers compute in float64, and its checkpoint for KVScope.

Families: sdar (block-causal, head norms of query and key), llada (full attention, logits at their own position) and
dream (full attention, biases of query, key and value, logits of a position at the one before it).
"""

import json
import math
import struct
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Shape:
    family: str
    layers: int
    query_heads: int
    kv_heads: int
    dim: int
    hidden: int  # llada and dream: query_heads * dim
    ffn: int
    vocab: int
    mask: int
    eos: int
    block: int = 4  # sdar's block_size
    tied: bool = False
    bf16: bool = True  # how weights are stored; their values are bf16 either way
    theta: float = 10000.0
    epsilon: float = 1e-6
    context: int = 4096

    @property
    def group(self):
        return self.query_heads // self.kv_heads


class Model:
    def __init__(self, shape, seed):
        self.shape, random = shape, np.random.default_rng(seed)
        s, names = shape, NAMES[shape.family]
        query, kv = s.query_heads * s.dim, s.kv_heads * s.dim

        def matrix(rows, columns, gain=1.0):
            return rounded(random.normal(0, gain / math.sqrt(columns), (rows, columns)))

        def vector(size, centre=1.0, spread=0.3):
            return rounded(random.normal(centre, spread, size))

        self.weights = {names["embed"]: rounded(random.normal(0, 1, (s.vocab, s.hidden)))}
        for layer in range(s.layers):
            def put(name, value, layer=layer):
                self.weights[names["layer"].format(layer) + names[name]] = value
            put("norm", vector(s.hidden))
            put("mlp_norm", vector(s.hidden))
            put("q", matrix(query, s.hidden, 1.5))
            put("k", matrix(kv, s.hidden, 1.5))
            put("v", matrix(kv, s.hidden))
            put("o", matrix(s.hidden, query))
            put("gate", matrix(s.ffn, s.hidden))
            put("up", matrix(s.ffn, s.hidden))
            put("down", matrix(s.hidden, s.ffn))
            if s.family == "dream":
                for name, size in (("q", query), ("k", kv), ("v", kv)):
                    put(name + "_bias", vector(size, 0.0))
            if s.family == "sdar":
                put("q_norm", vector(s.dim, 1.4))
                put("k_norm", vector(s.dim, 1.4))
        sharp = float(random.uniform(1.0, 6.0))  # spread of the logits: from undecided to certain
        # a tied head multiplies by embeddings of spread 1 a channel; the last norm makes up for it
        last = sharp / math.sqrt(s.hidden) if s.tied else 1.0
        self.weights[names["last_norm"]] = vector(s.hidden, last, 0.3 * last)
        if not s.tied:
            self.weights[names["head"]] = matrix(s.vocab, s.hidden, sharp)
        self.names = names
        self.frequencies = s.theta ** (-2.0 * np.arange(s.dim // 2) / s.dim)

    # ---- what a layer computes
    def embed(self, ids):
        return self.weights[self.names["embed"]][np.asarray(ids)]

    def of(self, layer, name):
        return self.weights[self.names["layer"].format(layer) + self.names[name]]

    def normed(self, layer, x):
        return rms(x, self.of(layer, "norm"), self.shape.epsilon)

    def query(self, layer, normed, positions):
        """-> [token, query head, channel], rotated"""
        return self._rotated(self._projected(layer, normed, "q", self.shape.query_heads), positions)

    def key(self, layer, normed, positions):
        return self._rotated(self._projected(layer, normed, "k", self.shape.kv_heads), positions)

    def value(self, layer, normed):
        return self._projected(layer, normed, "v", self.shape.kv_heads)

    def _projected(self, layer, normed, name, heads):
        s, x = self.shape, normed @ self.of(layer, name).T
        if s.family == "dream":
            x = x + self.of(layer, name + "_bias")
        x = x.reshape(len(x), heads, s.dim)
        return rms(x, self.of(layer, name + "_norm"), s.epsilon) if name != "v" and s.family == "sdar" else x

    def _rotated(self, x, positions):
        angle = np.asarray(positions, float)[:, None] * self.frequencies
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        low, high = x[..., :self.shape.dim // 2], x[..., self.shape.dim // 2:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def attended(self, layer, heads):
        """The output projection of [token, query head, channel]."""
        return heads.reshape(len(heads), -1) @ self.of(layer, "o").T

    def fed(self, layer, x):
        """What the feed-forward adds to x."""
        y = rms(x, self.of(layer, "mlp_norm"), self.shape.epsilon)
        gate = y @ self.of(layer, "gate").T
        return (gate / (1 + np.exp(-gate)) * (y @ self.of(layer, "up").T)) @ self.of(layer, "down").T

    def logits(self, x):
        x = rms(x, self.weights[self.names["last_norm"]], self.shape.epsilon)
        return x @ self.weights[self.names["embed" if self.shape.tied else "head"]].T

    # ---- checkpoint
    def write(self, folder):
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", self.weights, self.shape.bf16)
        (folder / "config.json").write_text(json.dumps(CONFIGURATIONS[self.shape.family](self.shape), indent=1))


def rms(x, weight, epsilon):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + epsilon) * weight


def rounded(x):
    """To the values of bf16, ties to even."""
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def write_safetensors(path, tensors, bf16):
    header, blobs, at = {}, [], 0
    for name, value in tensors.items():
        bits = value.astype(np.float32)
        blob = (bits.view(np.uint32) >> 16).astype(np.uint16).tobytes() if bf16 else bits.tobytes()
        header[name] = {"dtype": "BF16" if bf16 else "F32", "shape": list(value.shape),
                        "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


LLAMA_NAMES = {
    "embed": "model.embed_tokens.weight", "head": "lm_head.weight", "last_norm": "model.norm.weight",
    "layer": "model.layers.{}.", "norm": "input_layernorm.weight", "mlp_norm": "post_attention_layernorm.weight",
    "q": "self_attn.q_proj.weight", "k": "self_attn.k_proj.weight", "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight", "q_bias": "self_attn.q_proj.bias", "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias", "q_norm": "self_attn.q_norm.weight", "k_norm": "self_attn.k_norm.weight",
    "gate": "mlp.gate_proj.weight", "up": "mlp.up_proj.weight", "down": "mlp.down_proj.weight"}
NAMES = {"sdar": LLAMA_NAMES, "dream": LLAMA_NAMES, "llada": {
    "embed": "model.transformer.wte.weight", "head": "model.transformer.ff_out.weight",
    "last_norm": "model.transformer.ln_f.weight", "layer": "model.transformer.blocks.{}.",
    "norm": "attn_norm.weight", "mlp_norm": "ff_norm.weight", "q": "q_proj.weight", "k": "k_proj.weight",
    "v": "v_proj.weight", "o": "attn_out.weight", "gate": "ff_proj.weight", "up": "up_proj.weight",
    "down": "ff_out.weight"}}


def sdar_configuration(s):
    return {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "vocab_size": s.vocab,
            "hidden_size": s.hidden, "intermediate_size": s.ffn, "num_hidden_layers": s.layers,
            "num_attention_heads": s.query_heads, "num_key_value_heads": s.kv_heads, "head_dim": s.dim,
            "hidden_act": "silu", "max_position_embeddings": s.context, "rms_norm_eps": s.epsilon,
            "rope_theta": s.theta, "rope_scaling": None, "attention_bias": False, "tie_word_embeddings": s.tied,
            "use_sliding_window": False, "sliding_window": None, "bos_token_id": 0, "eos_token_id": s.eos,
            "mask_token_id": s.mask, "block_size": s.block, "torch_dtype": "bfloat16"}


def dream_configuration(s):
    return {"architectures": ["DreamModel"], "model_type": "Dream", "vocab_size": s.vocab, "hidden_size": s.hidden,
            "intermediate_size": s.ffn, "num_hidden_layers": s.layers, "num_attention_heads": s.query_heads,
            "num_key_value_heads": s.kv_heads, "hidden_act": "silu", "max_position_embeddings": s.context,
            "rms_norm_eps": s.epsilon, "rope_theta": s.theta, "rope_scaling": None, "attention_dropout": 0.0,
            "tie_word_embeddings": s.tied, "use_sliding_window": False, "sliding_window": None,
            "bos_token_id": s.eos, "eos_token_id": s.eos, "pad_token_id": s.eos, "mask_token_id": s.mask,
            "torch_dtype": "bfloat16"}


def llada_configuration(s):
    return {"architectures": ["LLaDAModelLM"], "model_type": "llada", "vocab_size": s.vocab,
            "embedding_size": s.vocab, "d_model": s.hidden, "n_layers": s.layers, "mlp_hidden_size": s.ffn,
            "mlp_ratio": 4, "n_heads": s.query_heads, "n_kv_heads": s.kv_heads, "rms_norm_eps": s.epsilon,
            "rope": True, "rope_theta": s.theta, "rope_full_precision": True, "include_bias": False,
            "include_qkv_bias": False, "bias_for_layer_norm": False, "attention_layer_norm": False,
            "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms", "alibi": False,
            "input_emb_norm": False, "scale_logits": False, "weight_tying": s.tied,
            "max_sequence_length": s.context, "mask_token_id": s.mask, "eos_token_id": s.eos,
            "pad_token_id": s.eos, "bos_token_id": 0}


CONFIGURATIONS = {"sdar": sdar_configuration, "dream": dream_configuration, "llada": llada_configuration}
