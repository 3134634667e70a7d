#!/usr/bin/env python3
"""Projections in PyTorch, to hold `kvscope-bench gpu-kernels --set only=linear` against.

torch.mm of bf16 inputs and bf16 weights [outputs, inputs], transposed as a view, into a given result. Copies of the weights of more
than 256 MiB are taken in turns, so that all are read from memory, by a CUDA graph of one product for each copy; the median of nine.

    python3 bench/peer/linear_torch.py --layer 8b
"""
import argparse
import json
import statistics

import torch

# outputs, inputs: bench/cuda/linear_layers.cpp
LAYERS = {
    "8b_qkv": (4608, 4096), "8b_o": (4096, 4096), "8b_gate_up": (32768, 4096), "8b_down": (4096, 16384),
    "3b_qkv": (4608, 2560), "3b_o": (2560, 4096), "3b_gate_up": (20480, 2560), "3b_down": (2560, 10240),
    "1b_qkv": (2560, 2048), "1b_o": (2048, 2048), "1b_gate_up": (12288, 2048), "1b_down": (2048, 6144),
    "lm_head": (73448, 4096),
}  # fmt: skip
INPUTS = [1, 2, 4, 8, 9, 12, 16, 17, 24, 32, 48, 64, 96, 128, 192, 256]
COLD_BYTES = 256 << 20


def microseconds(weights, inputs):
    x = torch.randn(inputs, weights.shape[2], device="cuda", dtype=torch.bfloat16)
    out = torch.empty(inputs, weights.shape[1], device="cuda", dtype=torch.bfloat16)

    def products():
        for w in weights:
            torch.mm(x, w.T, out=out)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        products()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        products()
    times = []
    for turn in range(10):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if turn > 0:
            times.append(1e3 * begin.elapsed_time(end) / len(weights))
    return statistics.median(times)


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", default="", help="only those whose name begins so")
    parser.add_argument("--inputs", type=int, nargs="+", default=INPUTS)
    given = parser.parse_args()
    for name, (rows, cols) in LAYERS.items():
        if not name.startswith(given.layer):
            continue
        copies = min(64, max(2, -(-COLD_BYTES // (2 * rows * cols))))
        weights = torch.randn(copies, rows, cols, device="cuda", dtype=torch.bfloat16) * 0.02
        for inputs in given.inputs:
            print(json.dumps({"layer": name, "inputs": inputs, "mm_us": microseconds(weights, inputs),
                              "torch": torch.__version__}), flush=True)  # fmt: skip
        del weights


if __name__ == "__main__":
    main()
