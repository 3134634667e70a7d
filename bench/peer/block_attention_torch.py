#!/usr/bin/env python3
"""Attention of a denoised block to its prefix in PyTorch, to hold the dense cells of `kvscope-bench losa-attention` against.

No mask, bf16, 32 query heads on 8 KV heads of 128 channels, random normal inputs, by cuDNN's kernel and by PyTorch's flash kernel.
The queries of the four heads of a group are rows of one head, as in ours, or heads (`heads`); the better one counts. GB/s count keys
and values once. The median of five rounds of about a twentieth of a second.

    python3 bench/peer/block_attention_torch.py --prefix 65536 --block 16 32
"""
import argparse
import json

import torch
import torch.nn.functional as F
from torch.nn.attention import sdpa_kernel

from torch_attention import KERNELS, median_seconds

KV_HEADS, GROUP, DIM = 8, 4, 128


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=int, nargs="+", default=[65536])
    parser.add_argument("--block", type=int, nargs="+", default=[16, 32])
    given = parser.parse_args()
    for prefix in given.prefix:
        # As many copies as it takes to find nothing of the prefix in the GPU's caches.
        copies = max(1, (600 << 20) // (prefix * KV_HEADS * DIM * 4))
        make = lambda heads, tokens: torch.randn(1, heads, tokens, DIM, device="cuda", dtype=torch.bfloat16)
        caches = [(make(KV_HEADS, prefix), make(KV_HEADS, prefix)) for _ in range(copies)]
        for block in given.block:
            row = {"prefix": prefix, "block": block, "torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
            for name, kernel in KERNELS.items():
                for way, q in {"rows": make(KV_HEADS, GROUP * block), "heads": make(KV_HEADS * GROUP, block)}.items():
                    def body():
                        for k, v in caches:
                            F.scaled_dot_product_attention(q, k, v, enable_gqa=way == "heads")
                    try:
                        with sdpa_kernel([kernel]):
                            seconds = median_seconds(body) / copies
                    except RuntimeError as error:
                        row[f"{name}_{way}"] = str(error).splitlines()[0]
                        continue
                    row[f"{name}_{way}_us"] = round(seconds * 1e6, 1)
                    row[f"{name}_{way}_gb_per_s"] = round(prefix * KV_HEADS * DIM * 4 / seconds * 1e-9)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
