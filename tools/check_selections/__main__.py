#!/usr/bin/env python3
"""Compares what kvscope-cli chose on random models with an independent computation in float64.

    python3 tools/check_selections build/ci/app/kvscope-cli            every method, half an hour on one core
    python3 tools/check_selections build/ci/app/kvscope-cli quest h2o --seeds 3
    python3 tools/check_selections build/ci/app/kvscope-cli --random 500        shapes, prompts and settings drawn
    python3 tools/check_selections build/ci/app/kvscope-cli double-sparsity --backend cuda --tolerance 0.05 --logits 0.1

Needs numpy. See docs/methods.md.
"""

import argparse
import pathlib
import shutil
import sys
import tempfile

import numpy as np

from bench import Bench
from cases import CASES, SHAPES
from draw import draw


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cli", type=pathlib.Path)
    parser.add_argument("methods", nargs="*", help="default: all")
    parser.add_argument("--shape", type=int, choices=range(len(SHAPES)), help="number of one shape; default: all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--prompts", type=lambda t: [int(n) for n in t.split(",")], default=[300, 1100, 1])
    parser.add_argument("--random", type=int, default=0, metavar="N",
                        help="N trials from --first-seed on, each of drawn shape, prompts, method and settings")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of the largest score: float32 against float64")
    parser.add_argument("--logits", type=float, default=1e-3, help="of the largest logit, likewise")
    parser.add_argument("--backend", choices=["cpu", "cuda"], default="cpu",
                        help="cuda computes in bf16: give --tolerance 0.05 --logits 0.1 as well")
    parser.add_argument("--arithmetic", choices=["float32", "bf16"],
                        help="what double-sparsity's choices are judged for; default: bf16 with --backend cuda")
    parser.add_argument("--plant", choices=["token", "channel"],
                        help="a fault that double-sparsity must fail with: a token of each choice of one head is "
                             "another one, or its most important channel is left out")
    parser.add_argument("--verbose", action="store_true", help="show differences of rounding as well")
    arguments = parser.parse_args()
    arguments.arithmetic = arguments.arithmetic or ("bf16" if arguments.backend == "cuda" else "float32")
    if unknown := set(arguments.methods) - {method for method, _ in CASES}:
        parser.error(f"no such method: {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory() as work:
        sys.exit(1 if (drawn if arguments.random else given)(arguments, pathlib.Path(work)) else 0)


def given(arguments, work):
    """Every case of cases.py. -> whether something differs"""
    failed = False
    for number, shape in enumerate(SHAPES):
        if arguments.shape not in (None, number):
            continue
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            random = np.random.default_rng(seed)
            prompts = [random.integers(2, shape.vocab, n).tolist() for n in arguments.prompts]
            bench = Bench(arguments, f"shape {number} seed {seed}", shape, seed, prompts, work)
            for method, settings in CASES:
                if not arguments.methods or method in arguments.methods:
                    failed |= bench.check(method, settings)
    return failed


def drawn(arguments, work):
    failed = False
    for seed in range(arguments.first_seed, arguments.first_seed + arguments.random):
        trial = draw(np.random.default_rng(seed), arguments.methods or sorted({method for method, _ in CASES}))
        arguments.steps = trial.steps
        bench = Bench(arguments, f"seed {seed} {trial.describe()}", trial.shape, seed, trial.prompts, work)
        failed |= bench.check(trial.method, trial.settings, trial.options, all_prompts=True)
        shutil.rmtree(bench.folder)
    return failed


if __name__ == "__main__":
    main()
