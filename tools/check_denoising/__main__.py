#!/usr/bin/env python3
"""Compares the denoising forwards of kvscope-cli on random models with an independent computation in float64.

    python3 tools/check_denoising build/ci/app/kvscope-cli                  100 trials, each from a seed of its own
    python3 tools/check_denoising build/ci/app/kvscope-cli losa quest --trials 1000 --first-seed 7000
    python3 tools/check_denoising build/ci/app/kvscope-cli --family dream --seconds 60

Needs numpy. See docs/methods.md.
"""

import argparse
import collections
import pathlib
import shutil
import sys
import tempfile
import time

import numpy as np

import blocks
import canvas
from draw import END, METHODS, draw
from judge import Judge, Unsure, Wrong
from model import Model, rounded
from recording import Refused, record


def main():
    names = sorted({m for methods in METHODS.values() for m in methods})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cli", type=pathlib.Path)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(names)}; default: all")
    parser.add_argument("--family", choices=METHODS, action="append", help="repeatable; default: all")
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, help="begin no trial after so many")
    parser.add_argument("--tolerance", type=float, default=3e-4, 
                        help="of confidences and logits: float32 against float64")
    arguments = parser.parse_args()
    families = arguments.family or list(METHODS)
    if unknown := set(arguments.methods) - {m for f in families for m in METHODS[f]}:
        parser.error(f"no such method of these families: {', '.join(sorted(unknown))}")
    counts, begun = collections.Counter(), time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.trials):
            if arguments.seconds and time.monotonic() - begun > arguments.seconds:
                print(f"stopped before seed {seed}")
                break
            check(arguments, draw(np.random.default_rng(seed), families, arguments.methods or names), seed,
                  pathlib.Path(work) / str(seed), counts)
    print(f"{counts['sequences']} sequences and {counts['forwards']} forwards are right; {counts['ties']} of "
          f"{counts['decisions']} decisions differ within rounding; {counts['unsure']} sequences end where masks are "
          f"within rounding; {counts['refused']} trials refused, {counts['wrong']} wrong")
    luck = counts["luck"] / counts["variance"] ** 0.5 if counts["variance"] > 0 else 0.0
    print(f"what was drawn is {luck:.2f} standard deviations from what its probabilities lead to expect")
    sys.exit(1 if counts["wrong"] or counts["refused"] or abs(luck) > 5 else 0)


def check(arguments, trial, seed, work, counts):
    work.mkdir()
    model = Model(trial.shape, seed)
    if trial.likely_end and not trial.shape.tied:
        head = model.weights[model.names["head"]]
        head[END] = rounded(2 * head[END])
    model.write(work / "model")
    try:
        said, forwards = record(arguments.cli, work / "model", trial, work)
        generated = said["generated_ids"] if len(trial.prompts) > 1 else [said["generated_ids"]]
        for row, prompt in enumerate(trial.prompts):
            judge = Judge(arguments.tolerance)
            try:
                follow(model, trial, judge, prompt, forwards[row], generated[row])
                counts["sequences"] += 1
            except Unsure:
                counts["unsure"] += 1
            except Wrong as wrong:
                counts["wrong"] += 1
                print(f"seed {seed}: {trial.describe()}\n    sequence {row} {wrong}", flush=True)
                break
            counts["forwards"] += len(forwards[row])
            counts["ties"] += judge.ties
            counts["decisions"] += judge.decisions
            counts["luck"] += judge.luck
            counts["variance"] += judge.variance
    except Refused as refused:
        counts["refused"] += 1
        print(f"seed {seed}: {trial.describe()}\n    {refused}", flush=True)
    shutil.rmtree(work)


def follow(model, trial, judge, prompt, forwards, generated):
    loop = (blocks if model.shape.family == "sdar" else canvas).Loop(
        model, trial.method, trial.settings, trial.sampling, judge, {END} if trial.ends else set())
    try:
        ids = loop.run(prompt, trial.new, forwards)[len(prompt):len(prompt) + trial.new]
    except KeyError as key:
        judge.wrong("a key of the forward", str(key), "none")
    if trial.ends and END in ids and trial.settings.get("trim_end", "yes") == "yes":
        ids = ids[:ids.index(END) + 1]
    judge.place = "the text"
    judge.equal("generated ids", ids, generated)


if __name__ == "__main__":
    main()
