#!/usr/bin/env python3
"""Compares what kvscope-cli chose on random models with an independent computation in float64.

    python3 tools/check_selections build/ci/app/kvscope-cli            every method, half an hour on one core
    python3 tools/check_selections build/ci/app/kvscope-cli quest h2o --seeds 3

Needs numpy. See docs/methods.md.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import methods
from cases import CASES, CHECKERS, SHAPES
from model import (Model, random_channels, random_retaining_heads, random_weights, read_safetensors, write_checkpoint,
                   write_safetensors)
from picks import compare


def record(cli, folder, prompts, method, settings, steps, work):
    """-> ([sequence] generated ids, {(step, layer, sequence, KV head): {unit: origin}}, [sequence] logits of steps)"""
    ids, trace, logits = work / "ids.json", work / "run.kvtrace", work / "logits.safetensors"
    ids.write_text(json.dumps(prompts if len(prompts) > 1 else prompts[0]))
    command = [cli, "run", "--model", folder, "--prompt-ids", ids, "--method", method, "--max-new-tokens", steps + 1,
               "--ignore-eos", "--record", "selections", "--trace", trace, "--overwrite", "--logits", logits]
    for key, value in settings.items():
        command += ["--set", f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    run = subprocess.run([str(c) for c in command], capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise RuntimeError(run.stderr.strip())
    generated = collections.defaultdict(list)
    for row in rows(cli, trace, "tokens"):
        generated[row["seq"]].append(row["token_id"])
    chosen = collections.defaultdict(dict)
    for row in rows(cli, trace, "selections"):
        chosen[row["step"], row["layer"], row["seq"], row["kv_head"]][row["block"]] = row["origin"]
    logits = read_safetensors(logits)
    return [generated[s] for s in range(len(prompts))], chosen, [logits[f"logits.{s}"] for s in range(len(prompts))]


def rows(cli, trace, what):
    text = subprocess.run([str(cli), "export", str(trace), "--what", what, "--format", "jsonl"], capture_output=True,
                          text=True, check=True).stdout
    return map(json.loads, text.splitlines())


def replay(model, sequence, cache, checker, run, steps, tolerance, counts, report):
    """Decodes with the recorded choices and compares each with the checker's own, and the logits."""
    generated, chosen, logits = run
    shape, n = model.shape, cache.tokens()

    def same_logits(step, hidden):
        mine, theirs = model.logits(hidden), logits[sequence][step]
        apart = np.abs(mine - theirs).max() / np.abs(mine).max()
        counts["logits"] = max(counts["logits"], apart)
        if not apart < 1e-3 and not checker.unsure:
            counts["wrong logits"] += 1
            report(step, -1, 0, n, f"logits differ by {apart:.2g} of the largest")

    same_logits(0, cache.hidden)
    for step in range(1, steps + 1):
        hidden, n = model.embed([generated[sequence][step - 1]]), n + 1
        checker.unsure = False
        for layer in range(shape.layers):
            cache.layers[layer].append(model.project(layer, hidden, [n - 1]))
            recorded = [chosen.get((step, layer, sequence, g), {}) for g in range(shape.kv_heads)]
            doubtful = checker.unsure  # what a layer below attended may have been something else
            choices = checker.choose_or_dense(layer, n)
            if choices is None:
                if any(recorded):
                    counts["wrong"] += 1
                    report(step, layer, 0, n, "chose where it should attend to everything")
                recorded = None
            else:
                for g, choice in enumerate(choices):
                    verdict = compare(choice, recorded[g], tolerance)
                    if doubtful and verdict != "equal":
                        verdict = "rounding"
                    counts[verdict if verdict in ("equal", "rounding") else "wrong"] += 1
                    if verdict != "equal":
                        report(step, layer, g, n, verdict)
                checker.chosen(layer, recorded, n)
            hidden = model.finish(layer, hidden, checker.attend(layer, recorded, n)[None])
        same_logits(step, hidden[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cli", type=pathlib.Path)
    parser.add_argument("methods", nargs="*", help="default: all")
    parser.add_argument("--shape", type=int, choices=range(len(SHAPES)), help="number of one shape; default: all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--prompts", type=lambda t: [int(n) for n in t.split(",")], default=[300, 1100, 1])
    parser.add_argument("--tolerance", type=float, default=1e-4, help="of the largest score: float32 against float64")
    parser.add_argument("--verbose", action="store_true", help="show differences of rounding as well")
    arguments = parser.parse_args()
    if unknown := set(arguments.methods) - {method for method, _ in CASES}:
        parser.error(f"no such method: {', '.join(sorted(unknown))}")
    failed = False
    with tempfile.TemporaryDirectory() as work:
        work = pathlib.Path(work)
        for number, shape in enumerate(SHAPES):
            if arguments.shape not in (None, number):
                continue
            for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
                weights, folder = random_weights(shape, seed), work / f"model{number}-{seed}"
                write_checkpoint(folder, shape, weights)
                heads = random_retaining_heads(shape, seed)
                write_safetensors(folder / "locret.safetensors", heads)
                channels = random_channels(shape, seed) if shape.calibrated else None  # None: from the prompt
                if channels:
                    write_safetensors(folder / "double_sparsity.safetensors", channels)
                extra = {"calibration": channels, "retaining": heads}
                random = np.random.default_rng(seed)
                prompts = [random.integers(2, shape.vocab, n).tolist() for n in arguments.prompts]
                bench = Bench(arguments, f"shape {number} seed {seed}", shape, folder, weights, prompts, extra, work)
                for method, settings in CASES:
                    if not arguments.methods or method in arguments.methods:
                        failed |= bench.check(method, settings)
    sys.exit(1 if failed else 0)


class Bench:
    """One checkpoint and its prompts."""

    def __init__(self, arguments, name, shape, folder, weights, prompts, extra, work):
        self.arguments, self.name, self.shape, self.folder, self.work = arguments, name, shape, folder, work
        self.models = {bias: Model(shape, weights, bias) for bias in (True, False)}
        self.prompts, self.extra, self.full = prompts, extra, {}

    def prefill(self, model, checker, settings, prompt):
        if hasattr(checker, "prefill"):
            return checker.prefill(model, prompt, settings)
        if settings.get("prefill") == "sparse":
            return methods.sparse_prefill(lambda cache: checker(model, cache, settings), model, prompt)
        key = model.bias, len(prompt)
        if key not in self.full:
            self.full[key] = model.prefill(prompt)
        return methods.copy_of(self.full[key])

    def check(self, method, settings):
        """-> whether something differs"""
        if not self.shape.eviction_head and (method in methods.NEEDS_EVICTION_HEAD or settings.get("backbone") == "nosa"):
            return False
        checker, arguments = CHECKERS[method], self.arguments
        alone = method in methods.COUPLED or settings.get("prefill") == "sparse"
        prompts = self.prompts[:1] if alone else self.prompts
        counts, shown = collections.Counter(), []
        name = f"{self.name} {method} " + " ".join(f"{k}={v}" for k, v in settings.items())
        model = self.models[settings.get("bias", "ed-dma") in ("ed-dma", "dma")]
        try:
            run = record(arguments.cli, self.folder, prompts, method, settings, arguments.steps, self.work)
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            return True
        for s, prompt in enumerate(prompts):
            def report(step, layer, g, n, text):
                if text != "rounding" or arguments.verbose:
                    shown.append(f"    sequence {s} step {step} layer {layer} head {g}, {n} tokens: {text}")
            known = settings | self.extra
            cache = self.prefill(model, checker, known, prompt)
            replay(model, s, cache, checker(model, cache, known), run, arguments.steps, arguments.tolerance, counts,
                   report)
        print(f"{name}: {counts['equal']} equal, {counts['rounding']} rounding, {counts['wrong']} wrong, logits within "
              f"{counts['logits']:.1g}", flush=True)
        for line in shown[:6]:
            print(line, flush=True)
        return counts["wrong"] + counts["wrong logits"] > 0


if __name__ == "__main__":
    main()
