#!/usr/bin/env python3
"""Attention of a prompt in PyTorch, to hold `kvscope-bench gpu-kernels --set only=prefill` against.

Causal, bf16, 32 query heads on 8 KV heads of 128 channels, random normal inputs, by cuDNN's kernel and by PyTorch's flash kernel.
TFLOP/s count 4 dim for each query head and visible key, as ours do; the median of five rounds of about a twentieth of a second.

    python3 bench/peer/attention_torch.py --tokens 4096 16384 32768
"""
import argparse
import json

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from torch_attention import KERNELS, median_seconds


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096, 16384, 32768])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    given = parser.parse_args()
    for tokens in given.tokens:
        make = lambda heads: torch.randn(1, heads, tokens, given.dim, device="cuda", dtype=torch.bfloat16)
        q, k, v = make(given.heads), make(given.kv_heads), make(given.kv_heads)
        operations = 4 * given.dim * given.heads * tokens * (tokens + 1) / 2
        row = {"tokens": tokens, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
        for name, kernel in KERNELS.items():
            with sdpa_kernel([kernel]):
                body = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
                row[f"{name}_tflops"] = operations / median_seconds(body) * 1e-12
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
