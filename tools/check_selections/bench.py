"""One checkpoint and its prompts: a method's run beside what the method should have done."""

import collections
import itertools
import math
import pathlib
import tempfile

import numpy as np

from bf16 import Bf16Model
from cases import CHECKERS, NEEDS_EVICTION_HEAD
from control import Control, Head, channel_sets, difference, summary
from hits import BlockCache
from method import copy_of, sparse_prefill
from model import Model, random_channels, random_retaining_heads, random_weights, write_checkpoint, write_safetensors
from picks import compare
from recording import place, record


class Replay:
    """Decodes one sequence with the recorded choices and compares each with the checker's own, and the logits."""

    def __init__(self, model, sequence, cache, checker, run, arguments, counts, report, control=None):
        """control: where the choices of each head are judged when all are known, by judge_heads()"""
        self.control, self.heads = control, {}
        self.model, self.sequence, self.cache, self.checker, self.run = model, sequence, cache, checker, run
        self.tolerance, self.logits, self.counts = arguments.tolerance, arguments.logits, counts
        self.parted = False  # a choice differed by rounding: what was cached since differs a little
        self.report = lambda step, layer, g, n, text: report(sequence, step, layer, g, n, text)

    def steps(self, count):
        """A generator that stops before every choice, until all sequences of the step have come so far."""
        shape, checker, n = self.model.shape, self.checker, self.cache.tokens()
        self.same_logits(0, n, self.cache.hidden)
        for step in range(1, count + 1):
            hidden, n = self.model.embed([self.run.generated[self.sequence][step - 1]]), n + 1
            checker.unsure = False
            if self.control:
                self.control.begin(self.run.generated[self.sequence][step - 1], n)
            for layer in range(shape.layers):
                self.cache.layers[layer].append(self.model.project(layer, hidden, [n - 1]))
                if self.control:
                    self.control.append(layer)
                checker.prepare(layer, n)
                yield
                hidden = self.model.finish(layer, hidden, self.layer(step, layer, n)[None])
            self.same_logits(step, n, hidden[0])
        self.judge_heads()

    def layer(self, step, layer, n):
        """-> the attention over what was recorded"""
        checker, keys = self.checker, [place(step, layer, self.sequence, g) for g in range(self.model.shape.kv_heads)]
        recorded = [self.run.origins.get(key, {}) for key in keys]
        doubtful = checker.unsure  # what a layer below attended may have been something else
        choices = checker.choose_or_dense(layer, n)
        if choices is None:
            if any(recorded):
                self.wrong(step, layer, 0, n, "chose where it should attend to everything")
            recorded = None
        for g, choice in enumerate(choices or []):
            if self.control:
                self.remember(step, layer, g, n, choice, recorded[g])
                continue
            verdict = compare(choice, recorded[g], self.tolerance)
            self.count_tokens(choice, recorded[g])
            if doubtful and verdict != "equal":
                verdict = "rounding"
            if verdict in ("equal", "rounding"):
                self.counts[verdict] += 1
                if verdict == "rounding":
                    self.report(step, layer, g, n, verdict)
            else:
                self.wrong(step, layer, g, n, verdict)
        self.same_hits(step, layer, n, recorded, keys)
        if recorded is not None:
            checker.chosen(layer, recorded, n)
        if self.control:
            self.control.finish(layer, recorded)
        return checker.attend(layer, recorded, n)

    def count_tokens(self, choice, recorded):
        """Of picks that know how far rounding moves their scores: how many of their units were chosen on both sides."""
        for pick in getattr(choice, "picks", []):
            if pick.slack is None:
                continue
            self.counts["units"] += len(recorded)
            self.counts["units apart"] += len(set(recorded) - choice.best())
            for _, gap, slack in pick.gaps:
                self.counts["gaps"] += 1
                self.counts["gaps beyond"] += gap > slack
                self.counts["widest gap"] = max(self.counts["widest gap"], gap / slack if slack else math.inf)

    def remember(self, step, layer, g, n, choice, recorded):
        """The choice beside what each set of channels would have chosen, until judge_heads()."""
        checker, control = self.checker, self.control.checker
        verdict = compare(choice, recorded, math.inf)
        if verdict not in ("equal", "rounding"):
            return self.wrong(step, layer, g, n, verdict)
        if (layer, g) not in self.heads:
            self.heads[layer, g] = Head(channel_sets(checker.ranks[layer][g], control.ranks[layer][g], checker.kept()))
        head, recorded = self.heads[layer, g], set(recorded)
        head.add(step, n, [difference(checker.pick(layer, g, n, c), control.pick(layer, g, n, c).scores, recorded)
                           for c in head.sets])
        self.counts["units"] += len(recorded)
        self.counts["units apart"] += len(recorded - choice.best())

    def judge_heads(self):
        for (layer, g), head in self.heads.items():
            head.count(self.counts, lambda step, n, text, at=(layer, g): self.report(step, *at, n, text))

    def same_hits(self, step, layer, n, recorded, keys):
        for g, key in enumerate(keys):
            expected = self.checker.hits(layer, g, recorded and set(recorded[g]), n)
            if recorded is not None and expected is not None and expected != self.run.hits.get(key, set()):
                self.wrong(step, layer, g, n, f"hits {sorted(self.run.hits.get(key, set()) - expected)[:8]} that were "
                           f"not there, misses {sorted(expected - self.run.hits.get(key, set()))[:8]} that were")

    def same_logits(self, step, n, hidden):
        mine, theirs = self.model.logits(hidden), self.run.logits[self.sequence][step]
        apart = np.abs(mine - theirs).max() / np.abs(mine).max()
        self.counts["logits"] = max(self.counts["logits"], apart)
        if not apart < self.logits and self.checker.unsure:
            self.parted = True
        elif not apart < self.logits:
            self.wrong(step, -1, 0, n, f"logits differ by {apart:.2g} of the largest")

    def wrong(self, step, layer, g, n, text):
        self.counts["rounding" if self.parted else "wrong"] += 1
        self.report(step, layer, g, n, "rounding" if self.parted else text)


class Bench:
    def __init__(self, arguments, name, shape, seed, prompts, work):
        self.arguments, self.name, self.shape, self.prompts, self.work = arguments, name, shape, prompts, work
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=work))
        self.weights, self.models, self.full = random_weights(shape, seed), {}, {}
        write_checkpoint(self.folder, shape, self.weights)
        heads = random_retaining_heads(shape, seed)
        write_safetensors(self.folder / "locret.safetensors", heads)
        channels = random_channels(shape, seed) if shape.calibrated else None  # None: from the prompt
        if channels:
            write_safetensors(self.folder / "double_sparsity.safetensors", channels)
        self.extra = {"calibration": channels, "retaining": heads}

    def model(self, settings):
        """With what an eviction score counts for in the logits."""
        bias = 1.0 if settings.get("bias", "ed-dma") in ("ed-dma", "dma") else 0.0
        if settings.get("bias_scale") == "nosi":
            bias /= math.sqrt(self.shape.dim)
        if bias not in self.models:
            self.models[bias] = Model(self.shape, self.weights, bias)
        return self.models[bias]

    def control(self, checker, settings, prompt, rows):
        """A sequence in the arithmetic of the GPU, of which `rows` are decoded together."""
        bias = self.model(settings).bias
        if (bias, rows) not in self.models:
            self.models[bias, rows] = Bf16Model(self.shape, self.weights, bias, rows)
        model = self.models[bias, rows]
        cache = self.prefill(model, checker, settings, prompt)
        return Control(model, cache, checker(model, cache, settings))

    def prefill(self, model, checker, settings, prompt):
        sparse = settings.get("prefill") == "sparse"
        if hasattr(checker, "prefill") and (sparse or checker.reads_prompts):
            return checker.prefill(model, prompt, settings)
        if sparse:
            return sparse_prefill(lambda cache: checker(model, cache, settings), model, prompt)
        key = model, tuple(prompt)
        if key not in self.full:
            self.full[key] = model.prefill(prompt)
        return copy_of(self.full[key])

    def check(self, method, settings, options=(), all_prompts=False):
        """-> whether something differs"""
        if not self.shape.eviction_head and (method in NEEDS_EVICTION_HEAD or settings.get("backbone") == "nosa"):
            return False
        arguments = self.arguments
        prompts = self.prompts if all_prompts or settings.get("prefill") != "sparse" else self.prompts[:1]
        if method == "infinigen-token":  # of fewer queries than channels the directions are arbitrary, for all sequences
            prompts = [prompt for prompt in prompts if len(prompt) >= 2 * self.shape.dim]
        counts, shown = collections.Counter(), []
        name = f"{self.name} {method} " + " ".join(f"{k}={v}" for k, v in settings.items())
        try:
            run = record(arguments.cli, self.folder, prompts, method, settings,
                         [*options, "--backend", arguments.backend], arguments.steps, self.work)
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            return True

        def report(sequence, step, layer, g, n, text):
            if text != "rounding" or arguments.verbose:
                shown.append(f"    sequence {sequence} step {step} layer {layer} head {g}, {n} tokens: {text}")
        if arguments.plant == "token":
            run.plant([len(prompt) for prompt in prompts])
        self.replay(method, settings, prompts, run, counts, report)
        swapped = f" {counts['channels']} channels," if counts["heads"] else ""
        print(f"{name}: {counts['equal']} equal, {counts['rounding']} rounding,{swapped} {counts['wrong']} wrong, "
              f"logits within {counts['logits']:.1g}", flush=True)
        if counts["heads"]:
            print(f"    {summary(counts)}", flush=True)
        elif counts["units"]:
            line = f"    {1 - counts['units apart'] / counts['units']:.4%} of {counts['units']} tokens are the same"
            if counts["gaps"]:
                line += (f"; of {counts['gaps']} that differ, {counts['gaps beyond']} are further apart in score than "
                         f"rounding moves them, the widest by {counts['widest gap']:.2g} of it")
            print(line, flush=True)
        for line in shown[:6]:
            print(line, flush=True)
        return counts["wrong"] > 0

    def replay(self, method, settings, prompts, run, counts, report):
        model, checker, replays = self.model(settings), CHECKERS[method], []
        known = settings | self.extra | {"together": {}, "plant": self.arguments.plant}
        for s, prompt in enumerate(prompts):
            cache = self.prefill(model, checker, known, prompt)
            judge = checker(model, cache, known)
            if run.slots:
                judge.slots = BlockCache(self.shape, judge.bs, run.slots, run.policy, len(prompt), judge.seeds())
            controlled = checker.has_control and self.arguments.arithmetic == "bf16"
            control = self.control(checker, known, prompt, len(prompts)) if controlled else None
            replays.append(Replay(model, s, cache, judge, run, self.arguments, counts, report, control).steps(
                self.arguments.steps))
        for _ in itertools.zip_longest(*replays):  # step by step together
            pass
