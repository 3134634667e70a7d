#!/usr/bin/env python3
"""One change to the header of a GGUF file at a time: is it refused with a sentence, or read as llama.cpp reads it?

    tools/change_gguf_headers.py --seed 7 --changes 40
    tools/change_gguf_headers.py --all --files tests/golden/gguf/families/qwen3.gguf --only 'offset|rope' -v

Every number of a header is given other values: the version, the counts, the lengths of keys, names and texts, the types of
values, the sizes, types and offsets of tensors; values of whole-number and real types are stored as another type with the same
value; the alignment is stated; tensors change places. A change counts as

    refused   KVScope ends with one sentence
    same      it computes what it computes from the unchanged file, and llama.cpp takes the change as well
    lenient   it computes what it computes from the unchanged file, where llama.cpp would refuse: looked at one by one
    otherwise it computes something else, as llama.cpp does: nothing in the file says that the change is one
    DIFFERS   it computes something else, which llama.cpp refuses or reads otherwise: a fault
    BROKEN    it ends in another way than with a sentence: a fault

What llama.cpp does is written down here, from ggml/src/gguf.cpp and src/llama-model-loader.cpp: tensors lie behind each other in
the order of the table, values have exactly the types that the loader asks for. The exit status says whether there are faults.
"""

import argparse
import json
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
ODD = [0, 1, 2, 3, 5, 7, 31, 33, 63, 64, 255, 256, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 33, (1 << 63) - 1, 1 << 63,
       (1 << 64) - 1]


class Header:
    """Where the numbers of a header lie: (what, offset, format)."""

    def __init__(self, data):
        self.data, self.at, self.fields, self.values, self.tensors = data, 4, [], [], []
        self.number("version", "I")
        tensors, values = self.number("count of tensors", "Q"), self.number("count of values", "Q")
        for _ in range(values):
            begin = self.at
            key = self.text("length of a key")
            kind_at = self.at
            kind = self.number(f"type of {key}", "I")
            value_at = self.at
            self.value(key, kind)
            self.values.append((key, kind, begin, kind_at, value_at, self.at))
        for _ in range(tensors):
            begin = self.at
            name = self.text("length of a tensor's name")
            sizes = [self.number(f"size {i} of {name}", "Q")
                     for i in range(self.number(f"dimensions of {name}", "I"))]
            kind = self.number(f"type of {name}", "I")
            offset_at = self.at
            self.tensors.append((name, sizes, kind, begin, offset_at, self.number(f"offset of {name}", "Q")))
        self.end = self.at

    def number(self, what, form):
        self.fields.append((what, self.at, form))
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self, what):
        length = self.number(what, "Q")
        text = self.data[self.at:self.at + length].decode("utf-8", "replace")
        self.fields[-1] = (f"{what} {text[:40]!r}", *self.fields[-1][1:])
        self.at += length
        return text

    def value(self, key, kind):
        if kind == TEXT:
            self.text(f"length of the text of {key}:")
        elif kind == ARRAY:
            inner = self.number(f"type of the elements of {key}", "I")
            count = self.number(f"count of {key}", "Q")
            for _ in range(count):
                if inner == TEXT:
                    self.at += 8 + struct.unpack_from("<Q", self.data, self.at)[0]
                else:
                    self.at += struct.calcsize("<" + NUMBERS[inner])
        else:
            self.at += struct.calcsize("<" + NUMBERS[kind])


def moved(header, data, alignment=32):
    """The file with another header: the tensors' data begin at the next multiple of the alignment."""
    body = header.data[(header.end + 31) // 32 * 32:]
    return data + bytes(-len(data) % max(1, alignment)) + body


def changes_of(header):
    """(name, bytes, what llama.cpp does: True: takes it, "otherwise": reads other numbers, False: refuses it, None: refuses
    it, but the meaning is clear)."""
    data = header.data
    kinds = {f"type of {name}" for name, *_ in header.tensors}
    last = f"type of {header.tensors[-1][0]}"  # a type of fewer bytes leaves bytes unused, which both programs accept
    for what, at, form in header.fields:
        size = struct.calcsize("<" + form)
        old = struct.unpack_from("<" + form, data, at)[0]
        values = set(ODD) | {old + 1, old - 1, old * 2, old + 8, old + 32, old + 64, old // 2}
        if what.startswith("type of"):
            values |= set(range(40))
        for new in sorted(v for v in values if 0 <= v < 1 << (8 * size) and v != old):
            # bf16 and f16 are equally large, and a header has nothing else to tell them apart by
            taken = "otherwise" if what in kinds and {old, new} <= {1, 30} or what == last else what == "version" and new == 2
            yield f"{what}: {new} for {old}", data[:at] + struct.pack("<" + form, new) + data[at + size:], taken
    for key, kind, begin, kind_at, value_at, end in header.values:
        if kind not in NUMBERS:
            continue
        value = struct.unpack_from("<" + NUMBERS[kind], data, value_at)[0]
        for other, form in NUMBERS.items():
            if other == kind:
                continue
            try:
                stored = struct.pack("<" + form, value if form in "fd?" or float(value).is_integer() is False else int(value))
            except struct.error:
                continue
            if struct.unpack("<" + form, stored)[0] != value:
                continue
            head = data[:kind_at] + struct.pack("<I", other) + stored + data[end:header.end]
            yield f"{key} = {value} as type {other}", moved(header, head), None
    count_at = 4 + 4 + 8
    counted = data[:count_at] + struct.pack("<Q", len(header.values) + 1) + data[count_at + 8:]
    first = header.values[0][2]
    for form, kind, value in (("I", 4, 32), ("I", 4, 64), ("I", 4, 16), ("I", 4, 8), ("I", 4, 4), ("I", 4, 1), ("I", 4, 0), ("I", 4, 48),
                              ("Q", 10, 32), ("i", 5, 32), ("i", 5, -32), ("f", 6, 32.0), ("B", 0, 32), ("?", 7, True)):
        entry = struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<I" + form, kind, value)
        head = counted[:first] + entry + counted[first:header.end]
        # offsets are multiples of 32, as are those of a smaller alignment where the tensors' sizes are
        yield f"general.alignment = {value} as type {kind}", moved(header, head, value if value in (4, 8, 16, 64) else 32), \
            value in (1, 4, 8, 16, 32) if kind == 4 else (None if value == 32 else False)
    for key, kind, begin, kind_at, value_at, end in header.values:
        head = counted[:end] + counted[begin:end] + counted[end:header.end]
        yield f"{key} twice", moved(header, head), False
    for a, b in zip(header.tensors, header.tensors[1:]):
        swapped = bytearray(data)
        for one, other in ((a, b), (b, a)):
            struct.pack_into("<Q", swapped, one[4], other[5])
        yield f"offsets of {a[0]} and {b[0]} swapped", bytes(swapped), False
        yield f"{b[0]} before {a[0]}", data[:a[3]] + data[b[3]:b[4] + 8] + data[a[3]:a[4] + 8] + data[b[4] + 8:], False
        twice = bytearray(data)
        struct.pack_into("<Q", twice, b[4], a[5])
        yield f"{b[0]} at the offset of {a[0]}", bytes(twice), False
    for cut in (1, 31, 32, 33, 64):
        yield f"{cut} bytes cut off", data[:-cut], False


def computed(cli, path, scratch):
    """The logits' bytes, the sentence of a refusal, or "BROKEN ..." if the program crashed or hung."""
    out = scratch / "logits.safetensors"
    out.unlink(missing_ok=True)
    try:
        done = subprocess.run([str(cli), "run", "--model", str(path), "--prompt-ids", str(scratch / "prompt.json"), "--method", "full",
                               "--ignore-eos", "--threads", "1", "--max-new-tokens", "2", "--logits", str(out), "--json"],
                              capture_output=True, text=True, errors="replace", timeout=60)
    except subprocess.TimeoutExpired:
        return "BROKEN: it did not end within a minute", None
    if done.returncode == 0:
        stored = out.read_bytes()
        return "", stored[8 + struct.unpack_from("<Q", stored)[0]:]
    lines = [line for line in done.stderr.strip().splitlines() if not line.startswith("note: ")]
    sentence = lines[-1] if lines else ""
    return sentence if done.returncode in (1, 2) and len(lines) == 1 else f"BROKEN {done.returncode}: {sentence}", None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cli", type=pathlib.Path, default=ROOT / "build/ci/app/kvscope-cli")
    parser.add_argument("--files", type=pathlib.Path, nargs="+", default=sorted((ROOT / "tests/golden/gguf").glob("families/*.gguf")))
    parser.add_argument("--seed", type=int, default=1, help="of the prompt and the choice of changes")
    parser.add_argument("--changes", type=int, default=30, help="so many of each file's changes")
    parser.add_argument("--all", action="store_true", help="every change")
    parser.add_argument("--only", help="changes whose names match this regular expression")
    parser.add_argument("-v", "--verbose", action="store_true")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    counts = {}
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        (scratch / "prompt.json").write_text(json.dumps([0] + [rng.randrange(2, 48) for _ in range(20)]))
        for path in arguments.files:
            header = Header(path.read_bytes())
            why, unchanged = computed(arguments.cli, path, scratch)
            if unchanged is None:
                sys.exit(f"{path.name} unchanged: {why}")
            every = list(changes_of(header))
            if arguments.only:
                every = [change for change in every if re.search(arguments.only, change[0])]
            if not arguments.all:
                every = rng.sample(every, min(arguments.changes, len(every)))
            for name, data, taken in every:
                changed = scratch / "changed.gguf"
                changed.write_bytes(data)
                why, logits = computed(arguments.cli, changed, scratch)
                kind = ("BROKEN" if why.startswith("BROKEN") else "refused" if logits is None else
                        "otherwise" if taken == "otherwise" and logits != unchanged else
                        "DIFFERS" if logits != unchanged else "same" if taken else "lenient")
                counts[kind] = counts.get(kind, 0) + 1
                if arguments.verbose or kind.isupper() or kind == "lenient":
                    print(f"{kind:8} {path.name}: {name}: {why}", flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    raise SystemExit(any(kind.isupper() for kind in counts))


if __name__ == "__main__":
    main()
