#!/usr/bin/env python3
"""Makes every plan of a served run anew, by SparseServe's Algorithm 1 as docs/serving.md tells it, and compares.

    python3 tools/check_serving TRACE...                               runs of kvscope-cli load or serve, on the CPU
    python3 tools/check_serving --random 20 build/ci/app/kvscope-cli   workloads and knobs drawn, each from a seed
    python3 tools/check_serving --simulate 60 build/ci/app/kvscope-cli the same, and what kvscope-cli simulate says

Compared are, for every iteration: who decodes, is paused, resumed, admitted and refused, where prompts stop, how many
wait, what is reserved of each memory, what limits the plan, the predicted time; and, of traces at level selections, every
hit and miss and, with cache=global-lru, every working set. Exit status 1: something differs, 2: something cannot be
checked. See docs/serving.md.
"""

import argparse
import json
import os
import pathlib
import random
import sqlite3
import subprocess
import sys
import tempfile

import simulator
from follow import Follower
from recorded import Recorded, runs_of

COSTS = {"version": 2, "decode_ms": [[1, 8], [2, 12], [4, 18], [8, 30]], "decode_us_per_ktoken": 500,
         "prefill_us_per_token": 60, "prefill_ps_per_token2": 20000, "gap_ms": 0.1, "gap_us_per_row": 5,
         "admit_ms": 0.2, "admit_us_per_token": 20, "link_gbps": {"calls": None, "batched": None, "kernel": None}}


def check(path, words):
    """Prints a line for each run, and the first differences. Returns whether all is the same."""
    same = True
    if not path.is_file():
        raise ValueError(f"cannot read {path}")
    runs = runs_of(path)
    if not runs:
        raise ValueError(f"{path} has no served run")
    for run in runs:
        recorded = Recorded(path, run)
        seen = Follower(recorded).follow()
        print(f"{words} run {run}: {len(recorded.iterations)} iterations, {seen.words()}", flush=True)
        for difference in seen.differences[:8]:
            print("   ", difference)
        same = same and not seen.differences
    return same


def workload(draws, path):
    count, span = draws.randint(10, 24), draws.choice([300, 1500, 4000])
    times = sorted(draws.uniform(0, span) for _ in range(count - 1)) + [600_000]  # the last one comes to an idle server
    with open(path, "w", encoding="utf-8") as file:
        for time in times:
            long = draws.random() < 0.3
            line = {"timestamp": int(time), "input_length": draws.randint(900, 2200) if long else draws.randint(60, 700),
                    "output_length": draws.choice([1, 2, draws.randint(3, 20), draws.randint(20, 90)])}
            file.write(json.dumps(line) + "\n")
    return count


def knobs(draws):
    """Knobs and budgets under which requests wait, are paused and share iterations."""
    pooled = draws.random() < 0.65
    chosen = {"cache": "global-lru" if pooled else "partition", "rows": draws.randint(1, 9),
              "short_tokens": draws.choice([0, 150, 400, 800, 1500]), "short_turns": draws.randint(1, 4),
              "long_prefills": draws.randint(1, 3), "aging_ms": draws.choice([10, 100, 1000, 5000]),
              "max_suspend_ms": draws.choice([1, 20, 50, 500]), "max_skips": draws.choice([1, 3, 100]),
              "pause_after": draws.choice([1, 2, 3, 5]), "resume_tokens": draws.choice([0, 2, 16]),
              "window": draws.choice([1, 2, 5, 12, 40]), "ttft_bound_ms": draws.choice([50, 500, 10000]),
              "tbt_bound_ms": draws.choice([20, 60, 150]), "iteration_tokens": draws.choice([600, 3000, 262144]),
              "working_set_control": "true" if draws.random() < 0.8 else "false"}
    way = draws.random()
    if way < 0.3:
        chosen.update(prefill="chunks", chunk_tokens=draws.choice([512, 1024]))
    elif way < 0.5:
        chosen["token_layers"] = draws.choice([500, 2000, 8000])
    if not pooled:
        chosen["partition_blocks"] = draws.choice([0, 16, 24])
    device = draws.choice([7, 9, 12]) if pooled else draws.choice([14, 22])
    return chosen, ["--device-kv", f"{device}M", "--host-kv", f"{draws.choice([20, 48, 96])}M",
                    "--scratch", f"{draws.choice([8, 12, 24])}M", "--set", f"total_blocks={draws.choice([12, 16])}"]


def record(program, seed, folder):
    draws = random.Random(seed)
    trace, lines, costs = (folder / f"{seed}{suffix}" for suffix in (".kvtrace", ".jsonl", ".costs.json"))
    costs.write_text(json.dumps(COSTS), encoding="utf-8")
    count = workload(draws, lines)
    chosen, budgets = knobs(draws)
    command = [program, "load", "--workload", lines, "--arrivals", "recorded", "--warm-up", "0", "--warm-up-seconds", "0",
               "--counted", str(count), "--threads", "1", "--processor-time", "--costs", costs, "--method", "quest",
               "--set", "block_size=32", *budgets, "--record", "selections", "--trace", trace, "--overwrite"]
    for key, value in chosen.items():
        command += ["--knob", f"{key}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"seed {seed}: {done.stderr.strip().splitlines()[-1]}")
    return trace


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=pathlib.Path, help="traces; with --random or --simulate the program")
    parser.add_argument("--random", type=int, default=0, metavar="N", help="record and check N workloads")
    parser.add_argument("--simulate", type=int, default=0, metavar="N", help="simulate N workloads in two ways")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for what is recorded")
    arguments = parser.parse_args()
    same = True
    try:
        if not arguments.random and not arguments.simulate:
            for path in arguments.files:
                same = check(path, str(path)) and same
        with tempfile.TemporaryDirectory() as folder:
            place = arguments.keep or pathlib.Path(folder)
            os.makedirs(place, exist_ok=True)
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.random):
                trace = record(arguments.files[0], seed, place)
                same = check(trace, f"seed {seed}") and same
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.simulate):
                same = simulator.check(arguments.files[0], seed, place, workload, knobs, COSTS) and same
    except (ValueError, OSError, sqlite3.Error) as trouble:
        print(f"check_serving: {trouble}", file=sys.stderr)
        return 2
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
