#!/usr/bin/env python3
"""The decode step of `kvscope-cli bench decode` in plain PyTorch, to hold ours against.

Same shapes, bf16, random weights, everything resident. "full" attends to the whole context with SDPA; "nosa" keeps pooled
keys, scores them, pools the scores to blocks of 64 tokens, takes two top-k picks (16 query-aware, the rest by a
query-agnostic score), gathers the 64 chosen blocks with an index and attends to those with SDPA. Each step is timed
launched kernel by kernel, compiled, and replayed as one CUDA graph; the best of the three is what a careful user gets.

    python3 bench/peer/decode_step_torch.py --shape nosa-8b --method nosa --context 16384 --batch 4
"""
import argparse
import json
import math
import statistics
import sys

import torch
import torch.nn.functional as F

# layers, hidden, query heads, KV heads, head dim, ffn, vocabulary: core/model/model_shape.cpp
SHAPES = {
    "nosa-1b": (28, 2048, 16, 2, 128, 6144, 73448),
    "nosa-3b": (32, 2560, 32, 2, 128, 10240, 73448),
    "nosa-8b": (32, 4096, 32, 2, 128, 16384, 73448),
    "llama3-8b": (32, 4096, 32, 8, 128, 14336, 128256),
    "qwen3-8b": (36, 4096, 32, 8, 128, 12288, 151936),
}
BLOCK, SINK, WINDOW, BUDGET, QUERY_AWARE = 64, 1, 16, 64, 16
KERNEL, STRIDE = 32, 16  # pooled keys: windows of 32 tokens, one every 16


def rms_norm(x, weight):
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


class DecodeStep:
    """Weights, cache and one step; every tensor a step reads or writes keeps its address, so that a graph can replay."""

    def __init__(self, shape, method, context, batch, device="cuda", dtype=torch.bfloat16):
        self.layers, hidden, self.heads, self.kv_heads, self.dim, ffn, vocab = SHAPES[shape]
        self.method, self.batch, self.group = method, batch, self.heads // self.kv_heads
        self.blocks = -(-(context + 1) // BLOCK)  # the new token's block included
        make = lambda *size: torch.randn(*size, device=device, dtype=dtype) / math.sqrt(size[-1])
        width = (self.heads + 2 * self.kv_heads) * self.dim
        self.weights = [
            dict(
                norm=torch.ones(hidden, device=device, dtype=dtype),
                qkv=make(width, hidden),
                o=make(hidden, self.heads * self.dim),
                post=torch.ones(hidden, device=device, dtype=dtype),
                gate_up=make(2 * ffn, hidden),
                down=make(hidden, ffn),
            )
            for _ in range(self.layers)
        ]
        self.final_norm = torch.ones(hidden, device=device, dtype=dtype)
        self.embedding, self.head = make(vocab, hidden), make(vocab, hidden)
        tokens = self.blocks * BLOCK
        cache = lambda: torch.randn(batch, self.kv_heads, tokens, self.dim, device=device, dtype=dtype)
        self.keys = [cache() for _ in range(self.layers)]
        self.values = [cache() for _ in range(self.layers)]
        angles = context * 10000.0 ** (-torch.arange(0, self.dim, 2, device=device, dtype=torch.float32) / self.dim)
        self.cos, self.sin = angles.cos().to(dtype), angles.sin().to(dtype)
        self.position = torch.tensor([context], device=device)
        self.visible = (torch.arange(tokens, device=device) <= context).view(1, 1, 1, -1)
        self.next = torch.zeros(batch, device=device, dtype=torch.long)
        if method == "nosa":
            self.windows = (context - KERNEL) // STRIDE + 1
            self.pooled = [
                torch.randn(batch, self.kv_heads, self.windows, self.dim, device=device, dtype=dtype)
                for _ in range(self.layers)
            ]
            self.agnostic = [
                torch.rand(batch, self.kv_heads, self.blocks, device=device) for _ in range(self.layers)
            ]
            forced = torch.zeros(self.blocks, device=device, dtype=torch.bool)
            forced[:SINK] = forced[-WINDOW:] = True
            self.forced = forced
            self.rows = torch.arange(batch, device=device).view(-1, 1, 1)
            self.columns = torch.arange(self.kv_heads, device=device).view(1, -1, 1)
            # A block's score: the largest of the windows that touch it.
            self.per_block, self.reach = BLOCK // STRIDE, (KERNEL - 1) // STRIDE

    def rotate(self, x):
        low, high = x[..., : self.dim // 2], x[..., self.dim // 2 :]
        return torch.cat((low * self.cos - high * self.sin, high * self.cos + low * self.sin), -1)

    def chosen_blocks(self, layer, q):
        """[batch, kv_heads, BUDGET] block ids: sink and window, then the two picks."""
        grouped = q.view(self.batch, self.kv_heads, self.group, self.dim)
        logits = grouped @ self.pooled[layer].transpose(-1, -2) / math.sqrt(self.dim)
        scores = logits.float().softmax(-1).sum(2)
        wide = F.pad(scores, (self.reach, self.blocks * self.per_block - self.windows), value=-1.0)
        by_query = F.max_pool1d(wide, self.per_block + self.reach, self.per_block)[..., : self.blocks]
        query_aware = by_query.masked_fill(self.forced, math.inf)
        taken = SINK + WINDOW + QUERY_AWARE
        first = query_aware.topk(taken, -1).indices
        rest = self.agnostic[layer].scatter(-1, first, -math.inf)
        return torch.cat((first, rest.topk(BUDGET - taken, -1).indices), -1)

    def attend(self, layer, q):
        keys, values, visible = self.keys[layer], self.values[layer], self.visible
        if self.method == "nosa":
            ids = self.chosen_blocks(layer, q)
            pick = lambda cache: cache.view(self.batch, self.kv_heads, self.blocks, BLOCK, self.dim)[
                self.rows, self.columns, ids
            ].view(self.batch, self.kv_heads, BUDGET * BLOCK, self.dim)
            keys, values = pick(keys), pick(values)
            tokens = ids.unsqueeze(-1) * BLOCK + torch.arange(BLOCK, device=ids.device)
            # One query per KV head's group: the group's heads become rows that share the keys.
            visible = (tokens.flatten(2) <= self.position).unsqueeze(2)
        grouped = q.view(self.batch, self.kv_heads, self.group, self.dim)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=visible)
        return out.reshape(self.batch, self.heads * self.dim)

    def step(self):
        x = self.embedding[self.next]
        q_width, kv_width = self.heads * self.dim, self.kv_heads * self.dim
        for i, w in enumerate(self.weights):
            q, k, v = (rms_norm(x, w["norm"]) @ w["qkv"].T).split((q_width, kv_width, kv_width), -1)
            q = self.rotate(q.view(self.batch, self.heads, self.dim))
            k = self.rotate(k.view(self.batch, self.kv_heads, self.dim))
            self.keys[i].index_copy_(2, self.position, k.unsqueeze(2))
            self.values[i].index_copy_(2, self.position, v.view(self.batch, self.kv_heads, 1, self.dim))
            x = x + self.attend(i, q) @ w["o"].T
            gate, up = (rms_norm(x, w["post"]) @ w["gate_up"].T).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ w["down"].T
        self.next.copy_((rms_norm(x, self.final_norm) @ self.head.T).argmax(-1))


def milliseconds(run, steps):
    for _ in range(3):
        run()
    times = []
    for _ in range(steps):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def as_graph(run):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


@torch.inference_mode()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="nosa-8b", choices=SHAPES)
    parser.add_argument("--method", default="nosa", choices=("full", "nosa"))
    parser.add_argument("--context", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out: it takes a minute")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU here")
    if arguments.method == "nosa" and arguments.context < (BUDGET + 1) * BLOCK:
        sys.exit(f"nosa needs more blocks than it attends: give --context {(BUDGET + 1) * BLOCK} or more")
    decode = DecodeStep(arguments.shape, arguments.method, arguments.context, arguments.batch)
    row = vars(arguments) | {"torch": torch.__version__, "gpu": torch.cuda.get_device_name()}
    row["eager_ms"] = milliseconds(decode.step, arguments.steps)
    row["graph_ms"] = milliseconds(as_graph(decode.step), arguments.steps)
    if not arguments.no_compile:
        compiled = torch.compile(decode.step, dynamic=False)
        compiled()
        row["compiled_graph_ms"] = milliseconds(as_graph(compiled), arguments.steps)
    row["best_ms"] = min(value for key, value in row.items() if key.endswith("_ms"))
    print(json.dumps(row))


if __name__ == "__main__":
    main()
