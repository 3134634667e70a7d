#!/usr/bin/env python3
"""The prompt of `kvscope-cli bench prefill` in PyTorch, to hold ours against.

Same shapes, bf16, random weights; logits of the last token. Where transformers is installed, its Llama class with SDPA
attention; always the same layers in plain PyTorch with one product for queries, keys and values and one for gate and up,
whose attention is cuDNN's, flash or what PyTorch chooses. Each is timed from ids on the host to the token on the host.

    python3 bench/peer/prefill_torch.py --shape llama3.2-3b --tokens 4096 16384 32768
"""
import argparse
import contextlib
import json
import math
import statistics
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

# layers, hidden, query heads, KV heads, head dim, ffn, vocabulary: core/model/model_shape.cpp
SHAPES = {
    "llama3.2-3b": (28, 3072, 24, 8, 128, 8192, 128256),
    "llama3-8b": (32, 4096, 32, 8, 128, 14336, 128256),
}
KERNELS = {"cudnn": [SDPBackend.CUDNN_ATTENTION], "flash": [SDPBackend.FLASH_ATTENTION], "chosen": None}


class Plain:
    """The layers as a careful user of PyTorch writes them."""

    def __init__(self, shape):
        self.layers, self.hidden, self.heads, self.kv_heads, self.dim, ffn, vocab = SHAPES[shape]
        make = lambda *size: torch.randn(*size, device="cuda", dtype=torch.bfloat16) / math.sqrt(size[-1])
        ones = lambda: torch.ones(self.hidden, device="cuda", dtype=torch.bfloat16)
        width = (self.heads + 2 * self.kv_heads) * self.dim
        self.weights = [
            (ones(), make(width, self.hidden), make(self.hidden, self.heads * self.dim), ones(),
             make(2 * ffn, self.hidden), make(self.hidden, ffn))
            for _ in range(self.layers)
        ]  # fmt: skip
        self.embedding, self.head, self.final = make(vocab, self.hidden), make(vocab, self.hidden), ones()
        rates = 500000.0 ** (-torch.arange(0, self.dim, 2, device="cuda", dtype=torch.float32) / self.dim)
        angles = torch.outer(torch.arange(32768, device="cuda", dtype=torch.float32), rates)
        self.cos, self.sin = angles.cos().bfloat16(), angles.sin().bfloat16()

    def rotate(self, x, tokens):
        first, second = x.chunk(2, dim=-1)
        cos, sin = self.cos[:tokens, None], self.sin[:tokens, None]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def __call__(self, ids):
        tokens = ids.shape[0]
        x = F.embedding(ids, self.embedding)
        cache = []
        for norm, qkv, o, post, gate_up, down in self.weights:
            both = F.linear(F.rms_norm(x, (self.hidden,), norm, 1e-6), qkv).view(tokens, -1, self.dim)
            q, k, v = both.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
            q, k = self.rotate(q, tokens), self.rotate(k, tokens)
            cache.append((k, v))
            q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (q, k, v))
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + F.linear(attended[0].transpose(0, 1).reshape(tokens, -1), o)
            gate, up = F.linear(F.rms_norm(x, (self.hidden,), post, 1e-6), gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, down)
        return F.linear(F.rms_norm(x[-1:], (self.hidden,), self.final, 1e-6), self.head).argmax().item()


def library_model(shape):
    """transformers' Llama of this shape, or None where transformers is not installed."""
    try:
        from transformers import LlamaConfig, LlamaForCausalLM
    except ImportError:
        return None
    layers, hidden, heads, kv_heads, dim, ffn, vocab = SHAPES[shape]
    config = LlamaConfig(hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, head_dim=dim,
                         num_key_value_heads=kv_heads, intermediate_size=ffn, vocab_size=vocab,
                         max_position_embeddings=131072, attn_implementation="sdpa")  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return lambda ids: model(ids[None], use_cache=True, logits_to_keep=1).logits.argmax().item()


def times(body, tokens, vocab, rounds):
    """Milliseconds of each prompt behind the first."""
    out = []
    for i in range(rounds + 1):
        ids = torch.randint(vocab, (tokens,), generator=torch.Generator().manual_seed(i))
        torch.cuda.synchronize()
        begin = time.perf_counter()
        body(ids.cuda())
        out.append(1e3 * (time.perf_counter() - begin))
    return out[1:]


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama3.2-3b", choices=SHAPES)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384, 32768])
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    plain, library, vocab = Plain(given.shape), library_model(given.shape), SHAPES[given.shape][-1]
    for tokens in given.tokens:
        row = {"shape": given.shape, "tokens": tokens, "torch": torch.__version__}
        for name, kernels in KERNELS.items():
            with sdpa_kernel(kernels) if kernels else contextlib.nullcontext():
                row[f"plain_{name}_ms"] = statistics.median(times(plain, tokens, vocab, given.rounds))
        if library is not None:
            row["transformers_ms"] = statistics.median(times(library, tokens, vocab, given.rounds))
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
