"""A Llama-shaped model in float64, its checkpoint as float32 files, and the KV cache of one sequence."""

import json
import pathlib
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Shape:
    layers: int
    query_heads: int
    kv_heads: int
    dim: int
    hidden: int = 128
    ffn: int = 192
    vocab: int = 256
    theta: float = 10000.0
    eps: float = 1e-5
    eviction_head: bool = True
    calibrated: bool = True  # a file beside the model names the channels of labels
    family: str = "llama"  # qwen2: projections with a bias; qwen3: queries and keys are normed before rotation
    bf16: bool = False  # how weights are stored

    @property
    def group(self):
        return self.query_heads // self.kv_heads


def random_weights(shape, seed):
    """Weights that keep activations near one and make attention look at few positions."""
    random = np.random.default_rng(seed)
    q, kv, d, h = shape.query_heads, shape.kv_heads, shape.dim, shape.hidden

    def linear(rows, columns, gain=1.0):
        return gain * random.standard_normal((rows, columns)) / np.sqrt(columns)

    weights = {"model.embed_tokens.weight": random.standard_normal((shape.vocab, h)),
               "model.norm.weight": 1 + 0.2 * random.standard_normal(h),
               "lm_head.weight": linear(shape.vocab, h)}
    for layer in range(shape.layers):
        p = f"model.layers.{layer}."
        weights |= {p + "input_layernorm.weight": 1 + 0.2 * random.standard_normal(h),
                    p + "post_attention_layernorm.weight": 1 + 0.2 * random.standard_normal(h),
                    p + "self_attn.q_proj.weight": linear(q * d, h, 1.5),
                    p + "self_attn.k_proj.weight": linear(kv * d, h, 1.5),
                    p + "self_attn.v_proj.weight": linear(kv * d, h),
                    p + "self_attn.o_proj.weight": linear(h, q * d),
                    p + "mlp.gate_proj.weight": linear(shape.ffn, h),
                    p + "mlp.up_proj.weight": linear(shape.ffn, h),
                    p + "mlp.down_proj.weight": linear(h, shape.ffn)}
        if shape.eviction_head:
            weights |= {p + "self_attn.A": 0.7 * random.standard_normal(kv),
                        p + "self_attn.delta.weight": linear(kv, kv * d, 2.0)}
        weights[p + "self_attn.q_future_proj.weight"] = linear(kv * d, h, 1.5)
        if layer == 0:
            weights[p + "self_attn.q_curr_proj.weight"] = linear(kv * d, h, 1.5)
        if shape.family == "qwen2":
            weights |= {p + f"self_attn.{name}_proj.bias": 0.5 * random.standard_normal(rows * d)
                        for name, rows in (("q", q), ("k", kv), ("v", kv))}
        if shape.family == "qwen3":
            weights |= {p + f"self_attn.{name}_norm.weight": 1.5 + 0.3 * random.standard_normal(d) for name in "qk"}
    return {name: rounded(value.astype(np.float32), shape.bf16) for name, value in weights.items()}


def rounded(value, bf16):
    """To what a bfloat16 holds."""
    bits = value.view(np.uint32)
    return ((bits + 0x8000) & 0xffff0000).astype(np.uint32).view(np.float32) if bf16 else value


def random_retaining_heads(shape, seed):
    random = np.random.default_rng(seed)
    inputs, width = (shape.query_heads + 2 * shape.kv_heads) * shape.dim, 48
    heads = {}
    for layer in range(shape.layers):
        p = f"model.layers.{layer}.self_attn."
        heads[p + "fc1.weight"] = (2 * random.standard_normal((width, inputs)) / np.sqrt(inputs)).astype(np.float32)
        heads[p + "fc2.weight"] = random.standard_normal((shape.kv_heads, width)).astype(np.float32)
    return heads


def random_channels(shape, seed):
    random = np.random.default_rng(seed)
    return {f"model.layers.{layer}.self_attn.{kind}": random.random((shape.kv_heads, shape.dim)).astype(np.float32)
            for layer in range(shape.layers) for kind in ("qk_mean", "qk_max")}


def write_safetensors(path, tensors, bf16=False):
    header, offset = {}, 0
    shapes = {name: list(value.shape) for name, value in tensors.items()}
    if bf16:
        tensors = {name: (value.view(np.uint32) >> 16).astype(np.uint16) for name, value in tensors.items()}
    for name, value in tensors.items():
        header[name] = {"dtype": "BF16" if bf16 else "F32", "shape": shapes[name],
                        "data_offsets": [offset, offset + value.nbytes]}
        offset += value.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in tensors.values():
            file.write(np.ascontiguousarray(value).tobytes())


def write_checkpoint(folder, shape, weights):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": [shape.family.capitalize() + "ForCausalLM"], "model_type": shape.family,
              "vocab_size": shape.vocab,
              "hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
              "num_attention_heads": shape.query_heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.dim,
              "hidden_act": "silu", "max_position_embeddings": 16384, "rms_norm_eps": shape.eps,
              "rope_theta": shape.theta, "tie_word_embeddings": False, "attention_bias": False, "bos_token_id": 0,
              "eos_token_id": 1, "torch_dtype": "bfloat16" if shape.bf16 else "float32"}
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", weights, shape.bf16)


def read_safetensors(path):
    data = pathlib.Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    return {name: np.frombuffer(data, np.float32, offset=8 + size + entry["data_offsets"][0],
                                count=int(np.prod(entry["shape"]))).reshape(entry["shape"])
            for name, entry in header.items() if name != "__metadata__"}


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@dataclass
class LayerCache:
    """Rows of one layer, one per token: [tokens, heads, dim], normed inputs [tokens, hidden], scores [tokens, heads]."""
    x: np.ndarray = None
    q: np.ndarray = None
    q_plain: np.ndarray = None  # before rotation
    k: np.ndarray = None
    k_plain: np.ndarray = None
    v: np.ndarray = None
    s: np.ndarray = None  # eviction score; zero without a head
    bias: np.ndarray = None  # what is added to the logits: the score, or zero

    def append(self, rows):
        for name, value in rows.items():
            old = getattr(self, name)
            setattr(self, name, value if old is None else np.concatenate([old, value]))


@dataclass
class Cache:
    layers: list = field(default_factory=list)
    hidden: np.ndarray = None  # residual stream of the prompt's last token

    def tokens(self, layer=0):
        return 0 if self.layers[layer].k is None else len(self.layers[layer].k)


class Model:
    def __init__(self, shape, weights, bias=1.0):
        """bias: what an eviction score counts for in the logits."""
        self.shape, self.bias = shape, bias
        self.w = {name: value.astype(np.float64) for name, value in weights.items()}

    def layer(self, layer, name):
        return self.w[f"model.layers.{layer}.{name}.weight"]

    def normed(self, x, weight):
        """The input of a linear layer."""
        return self.norm(x, weight)

    def gated(self, gate, up):
        return gate / (1 + np.exp(-gate)) * up

    def shares(self, logits):
        """How much a query attends to each key."""
        return softmax(logits)

    def prompt_shares(self, logits):
        return softmax(logits)

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.shape.eps) * weight

    def rotate(self, x, positions):
        """x [tokens, heads, dim]; channel i turns with channel i + dim/2."""
        half = self.shape.dim // 2
        angle = np.asarray(positions, float)[:, None] * self.shape.theta ** (-np.arange(half) / half)
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, layer, name, x):
        y = x @ self.layer(layer, "self_attn." + name).T + self.w.get(f"model.layers.{layer}.self_attn.{name}.bias", 0)
        y = y.reshape(len(x), -1, self.shape.dim)
        if self.shape.family == "qwen3" and name in ("q_proj", "k_proj"):
            y = self.norm(y, self.layer(layer, f"self_attn.{name[0]}_norm"))
        return y

    def project(self, layer, hidden, positions):
        """What layer `layer` caches of the tokens whose residual stream is hidden [tokens, hidden]."""
        x = self.normed(hidden, self.layer(layer, "input_layernorm"))
        q, k, v = (self.heads(layer, name, x) for name in ("q_proj", "k_proj", "v_proj"))
        s = np.zeros((len(x), self.shape.kv_heads))
        if self.shape.eviction_head:
            s = np.logaddexp(0, v.reshape(len(x), -1) @ self.layer(layer, "self_attn.delta").T)
            s = s * self.w[f"model.layers.{layer}.self_attn.A"]
        return {"x": x, "q": self.rotate(q, positions), "q_plain": q, "k": self.rotate(k, positions), "k_plain": k,
                "v": v, "s": s, "bias": s * self.bias}

    def finish(self, layer, hidden, attended):
        """attended [tokens, query heads, dim] -> the residual stream after the layer."""
        hidden = hidden + attended.reshape(len(hidden), -1) @ self.layer(layer, "self_attn.o_proj").T
        x = self.normed(hidden, self.layer(layer, "post_attention_layernorm"))
        gate, up = (x @ self.layer(layer, name).T for name in ("mlp.gate_proj", "mlp.up_proj"))
        return hidden + self.gated(gate, up) @ self.layer(layer, "mlp.down_proj").T

    def probabilities(self, rows, head, first, last, keys=None):
        """Causal attention of query head `head` for the queries first..last-1: [queries, keys up to last]."""
        g = head // self.shape.group
        logits = rows.q[first:last, head] @ rows.k[:last, g].T / np.sqrt(self.shape.dim) + rows.bias[:last, g]
        logits[np.arange(last)[None, :] > np.arange(first, last)[:, None]] = -np.inf
        return self.prompt_shares(logits)

    def embed(self, ids):
        return self.w["model.embed_tokens.weight"][np.asarray(ids)]

    def prefill(self, ids):
        """Full attention over the prompt."""
        cache, hidden = Cache(), self.embed(ids)
        for layer in range(self.shape.layers):
            rows = LayerCache()
            rows.append(self.project(layer, hidden, np.arange(len(ids))))
            cache.layers.append(rows)
            out = np.empty((len(ids), self.shape.query_heads, self.shape.dim))
            for first in range(0, len(ids), 512):
                last = min(first + 512, len(ids))
                for head in range(self.shape.query_heads):
                    out[first:last, head] = self.probabilities(rows, head, first, last) @ \
                        rows.v[:last, head // self.shape.group]
            hidden = self.finish(layer, hidden, out)
        cache.hidden = hidden[-1]
        return cache

    def logits(self, hidden):
        return self.norm(hidden, self.w["model.norm.weight"]) @ self.w["lm_head.weight"].T
