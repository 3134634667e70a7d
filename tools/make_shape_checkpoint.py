#!/usr/bin/env python3
"""Writes a checkpoint of a published model's shape with random weights, so that a server can be measured at that size:
   tools/make_shape_checkpoint.py nosa-8b -o DIR        15.2 GB in half a minute
   kvscope-cli load --model DIR --backend cuda ...
Tokenizer, positions and the form of the files are those of resources/models/nosa-tiny. Every matrix is a piece of one table
of normal numbers, so that products take as long as those of real weights; what is written and which blocks are chosen means
nothing. Needs numpy."""
import argparse
import json
import pathlib
import shutil

import numpy

# layers, hidden, heads, KV heads, head dimension, feed-forward: as core/model/model_shape.cpp has them
SHAPES = {
    "nosa-8b": (32, 4096, 32, 2, 128, 16384),
    "llama3-8b": (32, 4096, 32, 8, 128, 14336),
    "small": (2, 256, 4, 2, 64, 512),  # to try this script
}
TABLE = 1 << 26
DEVIATION = 0.02


def bf16(numbers):
    return (numbers.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def tensors(shape, vocab):
    layers, hidden, heads, kv_heads, dim, feed = shape
    yield "model.embed_tokens.weight", (vocab, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (heads * dim, hidden)
        yield at + "self_attn.k_proj.weight", (kv_heads * dim, hidden)
        yield at + "self_attn.v_proj.weight", (kv_heads * dim, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, heads * dim)
        yield at + "self_attn.A", (kv_heads,)
        yield at + "self_attn.delta.weight", (kv_heads, kv_heads * dim)
        yield at + "mlp.gate_proj.weight", (feed, hidden)
        yield at + "mlp.up_proj.weight", (feed, hidden)
        yield at + "mlp.down_proj.weight", (hidden, feed)
    yield "model.norm.weight", (hidden,)


def write_weights(path, shape, vocab):
    draws = numpy.random.default_rng(2026)
    table = bf16(draws.standard_normal(TABLE, dtype=numpy.float32) * DEVIATION)
    ones = bf16(numpy.ones(1 << 16))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name, dims in tensors(shape, vocab):
        size = 2 * int(numpy.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(len(text).to_bytes(8, "little"))
        out.write(text)
        for name, dims in tensors(shape, vocab):
            left = int(numpy.prod(dims))
            source = ones if "norm" in name else table
            at = int(draws.integers(0, TABLE // 2)) if source is table else 0
            while left > 0:
                piece = source[at:at + left]
                out.write(piece.tobytes())
                left -= len(piece)
                at = 0
    return end


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("shape", choices=SHAPES)
    arguments.add_argument("-o", "--out", type=pathlib.Path, required=True, help="folder of the checkpoint")
    given = arguments.parse_args()
    source = pathlib.Path(__file__).resolve().parent.parent / "resources/models/nosa-tiny"
    given.out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(source / name, given.out / name)
    config = json.loads((source / "config.json").read_text())
    layers, hidden, heads, kv_heads, dim, feed = SHAPES[given.shape]
    config.update(hidden_size=hidden, intermediate_size=feed, num_hidden_layers=layers, num_attention_heads=heads,
                  num_key_value_heads=kv_heads, head_dim=dim, max_position_embeddings=131072)
    # NOSA's budget of 64 blocks of 64 tokens
    config["sparse_attention"] = {"method": "nosa", "eviction_head": True, "forecast_heads": False, "prefill": "full",
                                  "sink_blocks": 1, "window_blocks": 16, "query_aware_blocks": 16,
                                  "query_agnostic_blocks": 31, "total_blocks": 64}
    (given.out / "config.json").write_text(json.dumps(config, indent=2))
    size = write_weights(given.out / "model.safetensors", SHAPES[given.shape], config["vocab_size"])
    print(f"{given.out}: {given.shape}, {size / 1e9:.2f} GB of random weights")


if __name__ == "__main__":
    main()
