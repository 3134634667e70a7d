#!/usr/bin/env python3
"""Writes tests/golden/gguf/quantised.gguf: random blocks of every format, and beside each the floats that the `gguf`
package decodes them to. Needs: pip install gguf. Seeds are fixed, so that a second run writes the same file."""
import pathlib
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type, GGUFWriter, dequantize

ROWS, COLS = 2, 512
FORMATS = [Type.Q8_0, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q4_K, Type.Q5_K, Type.Q6_K]
# Where a block's half-precision scales lie; random bits there could be infinite.
HALVES = {Type.Q4_1: [0, 2], Type.Q5_1: [0, 2], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208]}


def main() -> None:
    root = pathlib.Path(__file__).resolve().parent.parent
    path = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else root / "tests/golden/gguf/quantised.gguf"
    path.parent.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("test.number", 4096)
    writer.add_float32("test.real", 0.5)
    writer.add_bool("test.flag", True)
    writer.add_string("test.text", "a text, ünicode")
    writer.add_array("test.texts", ["one", "", "three"])
    writer.add_array("test.numbers", [1, -2, 3])
    for kind in FORMATS:
        weights, size = GGML_QUANT_SIZES[kind]
        blocks = random.integers(0, 256, (ROWS * COLS // weights, size), dtype=np.uint8)
        for at in HALVES.get(kind, [0]):
            blocks[:, at : at + 2] = random.normal(0, 0.02, (len(blocks), 1)).astype(np.float16).view(np.uint8)
        rows = blocks.reshape(ROWS, -1)
        writer.add_tensor(f"{kind.name}.blocks", rows, raw_dtype=kind)
        writer.add_tensor(f"{kind.name}.values", dequantize(rows, kind).astype(np.float32).reshape(ROWS, COLS))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
