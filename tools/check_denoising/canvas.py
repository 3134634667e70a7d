"""Masked diffusion (LLaDA, Dream): the loops over a canvas, their caches, SparseD and Sparse-dLLM."""

import math

import numpy as np

from attention import attend, products, softmax
from judge import border, top
from sampling import by_factor, candidates, distribution, entropy, highest, over


class Loop:
    """One sequence, following what was recorded of it."""

    def __init__(self, model, name, settings, sampling, judge, ends):
        self.model, self.name, self.settings, self.sampling = model, name, settings, sampling
        self.judge, self.ends = judge, ends
        self.shifted = model.shape.family == "dream"
        self.cache = settings.get("cache", "none")
        self.allowed = np.arange(model.shape.vocab) < model.shape.mask  # rows behind it are padding

    def run(self, prompt, new, forwards):
        s, judge, settings = self.model.shape, self.judge, self.settings
        self.prompt, self.length, self.new = len(prompt), len(prompt) + new, new
        self.ids, forwards = list(prompt) + [s.mask] * new, iter(forwards)
        self.store, self.kept, self.masks, self.count = {}, {}, {}, 0
        length = settings.get("block_length", 32 if self.name in ("sparsed", "sparse-dllm") and not (
            self.shifted and self.name == "sparsed") else 0) or new
        if self.shifted and self.cache not in ("prefix", "dual") and self.name != "sparse-dllm":
            length = new  # no blocks
        self.steps = settings.get("steps", 0) or new
        share = self.steps // (new // length)
        if self.name == "sparsed":
            self.last_dense = int(self.steps * settings.get("skip", 0.2)) + 1
        for block in range(new // length):
            first, end = self.prompt + block * length, self.prompt + (block + 1) * length
            masked, step = list(range(first, end)), 0
            while self.goes_on(masked, step, share):
                judge.place = f"block {block} step {step}"
                forward = next(forwards, None)
                if forward is None:
                    judge.wrong("a forward is missing", (block, step), None)
                judge.equal("block and step", (block, step), (forward["block"], forward["step"]))
                judge.equal("kind", "denoise", forward["kind"])
                judge.equal("ids", self.ids[first:end], forward["ids"])
                judge.equal("masked", masked, forward["masked"])
                logits = self.forward(forward, first, end, step)
                self.write(masked, step, share, first, end, logits, forward)
                self.count += 1
                step += 1
            if any(i in self.ends for i in self.ids[self.prompt:end]):
                break
        judge.equal("forwards left", None, next(forwards, None))
        return self.ids[:end]

    def goes_on(self, masked, step, share):
        by_confidence = self.settings.get("parallel", "none") != "none"
        lags = self.shifted and (self.cache in ("prefix", "dual") or self.name == "sparse-dllm")
        if by_confidence or lags:
            return bool(masked)
        return bool(masked) and step < share

    # ---- forwards
    def forward(self, record, first, end, step):
        """-> logits of every position, nan where none were computed"""
        if self.cache == "dllm":
            x, rows = self.likeness(record, first, end), range(self.length)
        else:
            whole = self.cache == "none" and self.name != "sparse-dllm" or step == 0 \
                or self.name == "sparse-dllm" and step == 1
            rows = range(self.length) if whole else range(first, self.length if self.cache == "prefix" else end)
            x = self.layers(record, rows, first, end, step)
        logits = np.full((self.length, self.model.shape.vocab), np.nan)
        logits[list(rows)] = self.model.logits(x)
        return np.concatenate([logits[:1], logits[:-1]]) if self.shifted else logits

    def layers(self, record, rows, first, end, step):
        x = self.model.embed([self.ids[i] for i in rows])
        for layer in range(self.model.shape.layers):
            self.judge.place = f"block {record['block']} step {step} layer {layer}"
            y = self.model.normed(layer, x)
            query, new = self.model.query(layer, y, rows), (self.model.key(layer, y, rows), self.model.value(layer, y))
            if len(rows) == self.length:
                self.store[layer] = new
            else:
                self.store[layer] = tuple(np.concatenate([old[:first], part, old[first + len(rows):]])
                                          for old, part in zip(self.store[layer], new))
            heads = self.heads(record["layers"][layer], layer, query, new, first, end, step)
            x = x + self.model.attended(layer, heads)
            x = x + self.model.fed(layer, x)
        return x

    def heads(self, record, layer, query, new, first, end, step):
        judge, keys, values = self.judge, *self.store[layer]
        if self.name == "sparse-dllm":
            if step == 1:
                self.choose_kept(layer, query[first:end], keys, first, end)
            judge.equal("mode", "sparse" if step > 1 else "dense", record["mode"])
            if step > 1:
                return self.with_kept(record, layer, query, new)
        elif self.name == "sparsed":
            if self.count == self.last_dense:
                self.masks[layer] = self.tiles(query, keys)
            masked = self.count > self.last_dense
            judge.equal("mode", "sparse" if masked else "dense", record["mode"])
            if masked:
                return self.with_tiles(record, layer, query, keys, values)
        else:
            judge.equal("mode", "dense", record["mode"])
        return attend(query, keys, values)

    # ---- Sparse-dLLM
    def choose_kept(self, layer, query, keys, first, end):
        rest = [i for i in range(self.length) if not first <= i < end]
        importance = products(query.mean(0, keepdims=True), keys)[:, 0].mean(0)[rest]
        half = self.settings.get("kernel", 3) // 2
        pooled = np.array([importance[max(0, i - half):i + half + 1].max() for i in range(len(rest))])
        count = int(len(rest) * self.settings.get("ratio", 0.5))
        self.kept[layer] = rest, pooled, count, None

    def with_kept(self, record, layer, query, new):
        rest, pooled, count, rows = self.kept[layer]
        recorded = record["pages"]
        self.judge.equal("one set for all KV heads", recorded[:1] * self.model.shape.kv_heads, recorded)
        if rows is None:
            index = {p: i for i, p in enumerate(rest)}
            if not set(recorded[0]) <= set(rest):
                self.judge.wrong("positions kept", rest, recorded[0])
            chosen = self.judge.best("positions kept", pooled, count, {index[p] for p in recorded[0]},
                                     self.judge.tolerance * max(1.0, float(np.abs(pooled).max(initial=0))))
            rows = sorted(rest[i] for i in chosen)
            self.kept[layer] = rest, pooled, count, rows
        self.judge.equal("positions kept", rows, recorded[0])
        self.judge.close("density", [count / len(rest) if rest else 0.0] * len(recorded), record["density"], 1e-6)
        old = self.store[layer]
        return attend(query, *(np.concatenate([o[rows], n]) for o, n in zip(old, new)))

    # ---- SparseD
    def tiles(self, query, keys):
        """-> [head][row of tiles] sets of tiles"""
        s, tile, select = self.model.shape, self.settings.get("tile", 128), self.settings.get("select", 0.3)
        scale = s.query_heads if self.settings.get("scale") == "reference" and not self.shifted else s.dim
        scores, count = products(query, keys) / np.sqrt(scale), -(-self.length // tile)
        start = min(-(-self.prompt // tile), count - 1)
        everything, canvas = range(count), range(start, count)

        def summed(share):
            share = np.concatenate([share, np.zeros(share.shape[:2] + (count * tile - share.shape[2],))], -1)
            return share.reshape(*share.shape[:2], count, tile).sum(-1)
        all_keys = summed(softmax(scores))
        generated = softmax(scores[:, :, start * tile:])
        generated = summed(np.concatenate([np.zeros(scores.shape[:2] + (start * tile,)), generated], -1))
        masks = []
        for head in range(s.query_heads):
            masks.append([])
            for first in everything:
                rows, row = slice(first * tile, (first + 1) * tile), set()
                for share, eligible in ((all_keys, everything), (generated, canvas)):
                    sums, number = share[head, rows].sum(0), min(len(eligible), int(len(eligible) * select) + 1)
                    self.judge.sure(border(sums, number, eligible), 2e-5 * max(sums))
                    self.judge.decisions += 1
                    best = top(sums, number, set(eligible))
                    row = best - set(canvas) if eligible is everything else row | best
                masks[-1].append(row)
        return masks

    def with_tiles(self, record, layer, query, keys, values):
        masks, tile, group = self.masks[layer], self.settings.get("tile", 128), self.model.shape.group

        def density(pages):
            return sum(min(self.length, (p + 1) * tile) - p * tile for p in pages) / self.length
        for n in range(self.model.shape.kv_heads):
            heads = masks[n * group:(n + 1) * group]
            union = set().union(*(row for head in heads for row in head))
            self.judge.equal("pages", sorted(union), record["pages"][n])
            self.judge.close("density", density(union), record["density"][n], 1e-6)
            self.judge.close("density of rows", [[density(row) for row in head] for head in heads], record["rows"][n],
                             1e-6)
        of_key = np.arange(self.length) // tile
        rows = [[np.isin(of_key, sorted(row)) for row in head] for head in masks]
        allowed = np.array([[head[t // tile] for t in range(self.length)] for head in rows])
        return attend(query, keys, values, allowed)

    # ---- dLLM-Cache
    def likeness(self, record, first, end):
        """-> what the last layer leaves of every token"""
        settings, judge, x = self.settings, self.judge, self.model.embed(self.ids)
        prompt, canvas = list(range(self.prompt)), list(range(self.prompt, self.length))
        due_prompt = self.count % settings.get("prompt_interval_steps", 100) == 0
        due_canvas = self.count % settings.get("gen_interval_steps", 7) == 0
        ratio = settings.get("transfer_ratio", 0.25)
        for layer in range(self.model.shape.layers):
            judge.place = f"block {record['block']} step {record['step']} layer {layer}"
            theirs, y = record["layers"][layer], self.model.normed(layer, x)
            rows = prompt if layer == 0 or due_prompt else []
            if layer == 0 or due_canvas:
                rows = rows + canvas
            fresh = self.model.value(layer, y)
            if layer in self.store:
                state = self.store[layer]
                if layer > 0 and not due_canvas and ratio > 0:
                    rows = rows + self.least_like(theirs, state, fresh[canvas], ratio, rows, first, end)
                    state["v"][canvas] = fresh[canvas]
            else:
                state = self.store[layer] = {}
                for name in "kv":
                    state[name] = np.zeros_like(fresh)
                state["attention"], state["fed"] = np.zeros_like(x), np.zeros_like(x)
                state["last"] = np.zeros_like(fresh)
            if rows:
                state["k"][rows] = self.model.key(layer, y[rows], rows)
                state["v"][rows] = fresh[rows]
                state["last"][rows] = fresh[rows]
                heads = attend(self.model.query(layer, y[rows], rows), state["k"], state["v"])
                state["attention"][rows] = self.model.attended(layer, heads)
                state["fed"][rows] = self.model.fed(layer, x[rows] + state["attention"][rows])
            whole = len(rows) == self.length
            judge.equal("mode", "dense" if whole else "sparse", theirs["mode"])
            if not whole:
                for pages in theirs["pages"]:
                    judge.equal("positions computed", sorted(rows), pages)
                judge.close("density", [len(rows) / self.length] * len(theirs["density"]), theirs["density"], 1e-6)
            x = x + state["attention"] + state["fed"]
        return x

    def least_like(self, theirs, state, fresh, ratio, rows, first, end):
        """The tokens of the canvas whose values changed most."""
        before = state["last" if self.settings.get("reference") == "last_recomputed" else "v"][self.prompt:]
        a, b = fresh.reshape(len(fresh), -1), before.reshape(len(before), -1)
        with np.errstate(invalid="ignore"):
            cosine = (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))
        cosine = np.where(cosine > 1 - 1e-12, 1.0, cosine)
        if "delta" in theirs:
            self.judge.close("changes", (1 - cosine)[first - self.prompt:end - self.prompt], theirs["delta"],
                             1e-5 + 1e-4 * np.abs(1 - cosine)[first - self.prompt:end - self.prompt])
        recorded = theirs.get("pages")
        if recorded is not None:
            recorded = {i - self.prompt for i in set(recorded[0]) - set(rows)}
        chosen = self.judge.best("values least alike", -cosine, int(len(fresh) * ratio), recorded, 3e-6)
        return [self.prompt + i for i in sorted(chosen)]

    # ---- writing
    def write(self, masked, step, share, first, end, logits, forward):
        judge, settings, sampling = self.judge, self.settings, self.sampling
        temperature = sampling.get("temperature", 0.0)
        if not masked:
            return
        rows = np.where(self.allowed, logits[masked], -np.inf)
        if self.shifted:
            drawn = p = distribution(rows, temperature, sampling.get("top_k", 0), sampling.get("top_p", 1.0), True)
        else:
            drawn = distribution(rows, temperature, sampling.get("top_k", 0), sampling.get("top_p", 1.0))
            p = softmax(rows)
        tokens = candidates(judge, rows, self.allowed, [forward["tokens"][i - first] for i in masked], temperature,
                            drawn)
        confidence = {i: p[n][t] for n, (i, t) in enumerate(zip(masked, tokens))}
        judge.close("confidence", [confidence.get(i, -1.0) for i in range(first, end)], forward["confidence"],
                    judge.tolerance)
        written, parallel = set(forward["written"]), settings.get("parallel", "none")
        if self.shifted:
            self.write_shifted(p, confidence, masked, step, share, first, end, written)
        elif parallel == "threshold":
            over(judge, confidence, settings.get("threshold", 0.9), 1, written, strict=False)
        elif parallel == "factor":
            by_factor(judge, confidence, settings.get("factor", 1.0), written)
        else:
            count = min(len(masked), quota(end - first, share, step))
            if settings.get("remasking") == "random":
                judge.equal("written", True, written <= set(masked) and len(written) == count)
            else:
                highest(judge, confidence, count, written)
        for i, token in zip(list(masked), tokens):
            if i in written:
                self.ids[i] = token
                masked.remove(i)

    def write_shifted(self, p, confidence, masked, step, share, first, end, written):
        judge, settings = self.judge, self.settings
        alg = settings.get("alg", "entropy" if self.name == "sparse-dllm" else "origin")
        cached = self.cache in ("prefix", "dual")
        if step == 0 and (cached or self.name == "sparse-dllm"):
            judge.equal("written", {first}, written)
            return
        ranks = confidence
        if alg == "topk_margin":
            best = np.sort(p, -1)
            ranks = dict(zip(masked, best[:, -1] - best[:, -2]))
        elif alg == "entropy":
            ranks = dict(zip(masked, -entropy(p)))
        allowed = judge.tolerance * (10 if alg == "entropy" else 1)
        if settings.get("parallel", "none") == "threshold":
            over(judge, confidence, settings.get("threshold", 0.9), 1, written, strict=False)
            return
        if settings.get("parallel", "none") == "factor":
            by_factor(judge, confidence, settings.get("factor", 1.0), written)
            return
        if self.name == "sparse-dllm":
            counts = {min(len(masked), quota(end - first, share, step) if step < share else 1)}
        elif step >= share - 1:
            counts = {len(masked)}
        else:
            eps = settings.get("eps", 0.001)
            noise = [1 + (eps - 1) * i / share for i in (step, step + 1)]
            part = 1 - noise[1] / noise[0]
            if alg == "origin":
                judge.equal("written", True, written <= set(masked))
                judge.drew(len(written) - part * len(masked), len(masked) * part * (1 - part))
                return
            counts = {math.floor(len(masked) * part + d) for d in (0, 1e-9, -1e-9)}
        if len(written) not in counts:
            judge.wrong("number written", counts, sorted(written))
        if settings.get("alg_temp", 0) > 0 or alg == "origin":
            judge.equal("written", True, written <= set(masked))
        else:
            highest(judge, ranks, len(written), written, allowed)


def quota(masks, share, step):
    return masks // share + (step < masks % share)
