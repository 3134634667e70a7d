#!/usr/bin/env python3
"""Shows whether two builds of kvscope-cli decode and record the same.

  compare_traces.py record BEFORE --program OLD/kvscope-cli [--backend cuda] [...]
  compare_traces.py record AFTER --program NEW/kvscope-cli [--backend cuda] [...]
  compare_traces.py compare BEFORE AFTER

`record` decodes the same three prompts once for every method and mode and leaves NAME.kvtrace, NAME.logits (the SHA-256
of the logits of every step) or, where the program refuses, NAME.refusal in the folder. `compare` then compares the two
folders, or two trace files, row by row. It leaves out what is a time, and what depends on one:
  - columns that end in _ns, created_utc, and the table health;
  - lookahead.late, which counts the blocks that had not arrived at the moment when the attention began;
  - of modelled transfers it does compare h2d_ns and d2h_ns, and exposed_ns in runs that wait for every transfer in full,
    because there the model alone gives them. With --times it compares every time (for programs under a clock that
    counts calls);
  - spans, counters and gauges, whose number depends on the driver; with --kernels it compares how many kernels of each
    name every layer of every step started.
A column or a table that only one side has is a remark, because traces may grow by optional columns.

Needs Python 3.8 and its standard library. Exit status: 0 the same, 1 different, 2 it could not be done.
"""
import argparse
import collections
import hashlib
import json
import os
import sqlite3
import subprocess
import sys
import time

# Small enough that every method has to leave something out of the prompts below. A method gets those it declares.
SMALL = {
    "block_size": "16", "sink_blocks": "1", "window_blocks": "2", "total_blocks": "8", "select_blocks": "3",
    "kernel_size": "8", "kernel_stride": "4", "skip_layers": "1", "dense_layers": "1", "page_budget": "8", "k_b": "8",
    "k_t": "48", "heavy_tokens": "40", "recent_tokens": "24", "budget_tokens": "96", "outlier_tokens": "16",
    "local_chunks": "2", "rank": "24", "capacity_tokens": "80", "window_tokens": "8", "max_num_kv": "40",
    "warmup_tokens": "200", "init_tokens": "16", "local_tokens": "64", "topk_blocks": "3", "cached_blocks": "6",
    "repr_topk": "2", "prefill_chunk": "128", "stabilizers": "24", "local_len": "12",
}
# Choices that differ from the defaults. The mode "other" sets those that the method declares.
OTHER = {
    "prefetch_layers": "1", "group": "per_query_head", "groups": "head",
    "lag": "0", "lse": "compressed", "digest": "bounds", "offload_layer0": "false", "pooling": "avg",
    "window_adds_current": "false", "label_bits": "16", "dense_len": "300", "bias": "dma",
}
# These act where blocks leave the device; the program refuses them with --no-offload.
OF_OFFLOADING = {"cached_blocks", "offload_layer0"}
MODES = {
    "resident": ["--no-offload"],
    "offloaded": [],
    "oracle": ["--oracle"],
    "other": [],
    "sparse": [],  # for methods that can also read prompts sparsely
}
SPARSE = {"prefill": "sparse", "exc_block": "96"}


def fail(message):
    print(message, file=sys.stderr)
    sys.exit(2)


def text_of_prompts():
    """A prompt longer than a prefill piece of the CPU, one of some blocks, one shorter than a block."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resources", "prompts", "long_document.txt")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        fail(f"cannot read the prompts: {error}; run the script from KVScope's source tree")
    return [text[:1900], text[5000:5700], text[9000:9030]]


def settings_of(method, mode):
    declared = [parameter["key"] for parameter in method["parameters"]]
    chosen = {key: SMALL[key] for key in declared if key in SMALL}
    more = OTHER if mode == "other" else SPARSE if mode == "sparse" else {}
    chosen.update((key, more[key]) for key in declared if key in more)
    if mode == "resident":
        chosen = {key: value for key, value in chosen.items() if key not in OF_OFFLOADING}
    return [part for key in sorted(chosen) for part in ("--set", f"{key}={chosen[key]}")]


def record(arguments):
    program = os.path.abspath(arguments.program)
    try:
        listed = subprocess.run([program, "methods", "--json"], capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        fail(f"cannot ask {program} for its methods: {error}")
    methods = [m for m in json.loads(listed.stdout) if not arguments.method or m["name"] in arguments.method]
    unknown = set(arguments.method or []) - {m["name"] for m in methods}
    if unknown:
        fail(f"the program has no method {', '.join(sorted(unknown))}; kvscope-cli methods lists them")
    os.makedirs(arguments.folder, exist_ok=True)
    files = []
    for index, text in enumerate(text_of_prompts()):
        files.append(os.path.join(arguments.folder, f"prompt{index}.txt"))
        with open(files[-1], "w", encoding="utf-8") as file:
            file.write(text)
    began = time.monotonic()
    for method in methods:
        for mode in arguments.mode or MODES:
            if mode == "sparse" and not any(p["key"] == "prefill" for p in method["parameters"]):
                continue
            name = os.path.join(arguments.folder, f"{method['name']}.{arguments.backend}.{mode}")
            for ending in ("kvtrace", "kvtrace-wal", "kvtrace-shm", "logits", "refusal"):
                if os.path.exists(f"{name}.{ending}"):
                    os.remove(f"{name}.{ending}")
            logits = f"{name}.safetensors"
            command = [program, "run", "--method", method["name"], "--backend", arguments.backend, "--threads",
                       str(arguments.threads), "--max-new-tokens", str(arguments.tokens), "--ignore-eos", "--trace",
                       f"{name}.kvtrace", "--record", "full", "--json", *settings_of(method, mode), *MODES[mode]]
            if arguments.backend == "cuda":
                command += ["--no-cuda-calls", "--pcie-counters", "off"]
            if not arguments.no_logits:
                command += ["--logits", logits]
            command += [part for file in files for part in ("--prompt-file", file)] + arguments.argument
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                # A refusal is kept as a result. A program that crashed ends the comparison.
                if done.returncode < 0 or done.returncode > 2:
                    fail(f"{' '.join(command)}\nended with status {done.returncode}: {done.stderr}")
                with open(f"{name}.refusal", "w", encoding="utf-8") as file:
                    file.write(done.stderr)
                for ending in ("kvtrace", "safetensors"):
                    if os.path.exists(f"{name}.{ending}"):
                        os.remove(f"{name}.{ending}")
            elif not arguments.no_logits:
                with open(logits, "rb") as file, open(f"{name}.logits", "w", encoding="utf-8") as out:
                    out.write(hashlib.sha256(file.read()).hexdigest() + "\n")
                os.remove(logits)
            if not arguments.quiet:
                print(f"{time.monotonic() - began:6.1f} s  {os.path.basename(name)}"
                      f"{'  refused' if done.returncode else ''}", flush=True)
    return 0


def open_trace(path):
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    if connection.execute("PRAGMA application_id").fetchone()[0] != 0x4B565343:
        fail(f"{path} is not a KVScope trace")
    return connection


# Rows are read through the views, the interface that stays; only what no view shows comes from a table.
SOURCES = {
    "runs": "SELECT * FROM runs ORDER BY run_id",
    "v_step": "SELECT * FROM v_step ORDER BY run_id, step",
    "v_layer": "SELECT * FROM v_layer ORDER BY run_id, step, layer",
    "v_locality": "SELECT * FROM v_locality ORDER BY run_id, step, layer, seq, kv_head",
    "v_lookahead": "SELECT * FROM v_lookahead ORDER BY run_id, step, layer, seq, kv_head",
    "v_oracle": "SELECT * FROM v_oracle ORDER BY run_id, step, layer, seq, kv_head",
    "v_token": "SELECT * FROM v_token ORDER BY run_id, step, seq, position",
    "v_prompt": "SELECT * FROM v_prompt ORDER BY run_id, seq, position",
    "selection": "SELECT id, blocks FROM selection ORDER BY id",
}
KERNELS = ("SELECT run_id, step, layer, name, count(*) AS kernels FROM v_kernel GROUP BY run_id, step, layer, name "
           "ORDER BY run_id, step, layer, name")
# Keys that describe the writer and differ between two recordings of the same run.
WRITER = {"created_utc", "program", "writer_busy_ns", "heartbeat_ms"}


def rows_of(connection, query):
    cursor = connection.execute(query)
    return [column[0] for column in cursor.description], cursor.fetchall()


def waits_in_full(connection):
    """Whether no layer waited for anything but its own load: then the model alone gives the exposed times."""
    columns, rows = rows_of(connection, "SELECT phase, timing, h2d_ns, exposed_ns FROM v_layer")
    return all(timing == "modelled" and (phase == "prefill" or h2d == exposed) for phase, timing, h2d, exposed in rows)


def compared_columns(columns, timing, exact_exposed, times):
    for column in columns:
        if column in WRITER or (column == "late" and not times):
            continue
        if not column.endswith("_ns") or times:
            yield column
        elif timing == "modelled" and (column in ("h2d_ns", "d2h_ns", "transfer_ns") or
                                       (column == "exposed_ns" and exact_exposed)):
            yield column


def same(a, b):
    return a == b or (a != a and b != b)


def compare_traces(before, after, arguments, say, remark):
    """Says every difference, at most arguments.most a table. @return rows compared"""
    a, b = open_trace(before), open_trace(after)
    timings = {row[0] for row in a.execute("SELECT timing FROM runs")}
    timing = timings.pop() if len(timings) == 1 else "mixed"
    exact_exposed = waits_in_full(a)
    compared = 0
    sources = dict(SOURCES)
    if arguments.kernels:
        sources["kernels"] = KERNELS
    for name, query in sources.items():
        try:
            columns_a, rows_a = rows_of(a, query)
            columns_b, rows_b = rows_of(b, query)
        except sqlite3.OperationalError as error:
            remark(f"{name}: {error}")
            continue
        for column in sorted(set(columns_a) ^ set(columns_b)):
            remark(f"{name}: only {'before' if column in columns_a else 'after'} has column {column}")
        columns = [c for c in compared_columns(columns_a, timing, exact_exposed, arguments.times) if c in columns_b]
        at_a, at_b = [columns_a.index(c) for c in columns], [columns_b.index(c) for c in columns]
        if len(rows_a) != len(rows_b):
            say(f"{name}: {len(rows_a)} rows before, {len(rows_b)} after")
        said = 0
        for row_a, row_b in zip(rows_a, rows_b):
            compared += 1
            for column, i, j in zip(columns, at_a, at_b):
                if same(row_a[i], row_b[j]):
                    continue
                said += 1
                if said <= arguments.most:
                    key = {c: row_a[columns_a.index(c)] for c in ("step", "layer", "seq", "kv_head", "position", "id")
                           if c in columns_a and c != column}
                    say(f"{name} {key}: {column} {shown(row_a[i])} before, {shown(row_b[j])} after")
        if said > arguments.most:
            say(f"{name}: {said} values differ in all")
    return compared


def shown(value):
    return f"{len(value)} bytes {hashlib.sha256(value).hexdigest()[:12]}" if isinstance(value, bytes) else repr(value)


def results_in(folder):
    """[name] -> the endings it has"""
    results = collections.defaultdict(set)
    for file in os.listdir(folder):
        name, _, ending = file.rpartition(".")
        if ending in ("kvtrace", "logits", "refusal"):
            results[name].add(ending)
    return results


def compare(arguments):
    for path in (arguments.before, arguments.after):
        if not os.path.exists(path):
            fail(f"there is no {path}")
    differences, remarks, rows = collections.Counter(), collections.Counter(), 0
    if os.path.isfile(arguments.before):
        pairs = [("", arguments.before, arguments.after, {"kvtrace"}, {"kvtrace"})]
    else:
        a, b = results_in(arguments.before), results_in(arguments.after)
        if not a:
            fail(f"{arguments.before} holds no recorded traces; `record` makes them")
        pairs = [(name, os.path.join(arguments.before, name), os.path.join(arguments.after, name), a[name], b[name])
                 for name in sorted(set(a) | set(b))]
    for name, before, after, has_before, has_after in pairs:
        def say(text):
            differences[name] += 1
            print(f"{name}: {text}".lstrip(": "))

        def remark(text):
            remarks[text] += 1

        for ending in sorted(has_before ^ has_after):
            say(f"only {'before' if ending in has_before else 'after'} has a {ending} file")
        for ending in has_before & has_after - {"kvtrace"}:
            with open(f"{before}.{ending}", encoding="utf-8") as x, open(f"{after}.{ending}", encoding="utf-8") as y:
                if x.read() != y.read():
                    say(f"the {ending} files differ")
        if "kvtrace" in has_before & has_after:
            dot = ".kvtrace" if name else ""
            rows += compare_traces(before + dot, after + dot, arguments, say, remark)
    for text, count in sorted(remarks.items()):
        print(f"remark: {text} ({count} {'trace' if count == 1 else 'traces'})")
    different = len(differences)
    print(f"{len(pairs)} compared, {rows} rows: {different} differ" if different else
          f"{len(pairs)} compared, {rows} rows: all the same")
    return 1 if different else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    of_record = commands.add_parser("record", help="decode with every method and mode into a folder")
    of_record.add_argument("folder")
    of_record.add_argument("--program", required=True, help="the kvscope-cli to run")
    of_record.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    of_record.add_argument("--method", action="append", help="only this one; repeatable")
    of_record.add_argument("--mode", action="append", choices=list(MODES), help="only this one; repeatable")
    of_record.add_argument("--tokens", type=int, default=20, help="new tokens of every sequence (default 20)")
    of_record.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    of_record.add_argument("--no-logits", action="store_true", help="leave the logits' SHA-256 out")
    of_record.add_argument("--quiet", action="store_true")
    of_record.add_argument("--argument", action="append", default=[], metavar="=--OPTION",
                           help="passed on to `run`, e.g. --argument=--model --argument=FOLDER; repeatable")
    of_record.set_defaults(run=record)
    of_compare = commands.add_parser("compare", help="compare two such folders, or two traces")
    of_compare.add_argument("before")
    of_compare.add_argument("after")
    of_compare.add_argument("--kernels", action="store_true", help="also the number of GPU kernels of each name")
    of_compare.add_argument("--times", action="store_true", help="also every time")
    of_compare.add_argument("--most", type=int, default=5, help="values shown of a table (default 5)")
    of_compare.set_defaults(run=compare)
    arguments = parser.parse_args()
    sys.exit(arguments.run(arguments))


if __name__ == "__main__":
    main()
