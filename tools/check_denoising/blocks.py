"""Block diffusion (SDAR): the loop over blocks, and what a block reads of the prefix under each method."""

import numpy as np

from attention import attend, merge, part, products, softmax
from judge import border, top
from sampling import candidates, distribution, entropy, highest, least_entropy, over

NEVER = 1e-10  # share of the query's mean square; a smaller change counts as none


def steps_of(settings, block):
    return settings.get("steps", 0) or block


def blur_of(change, size):
    """What float32 leaves of the mean square difference of two vectors that are nearly equal."""
    return 1.6e-5 * np.sqrt(change * size) + 1e-5 * change + 1e-9 * size


class Full:
    def __init__(self, model, settings, judge):
        self.model, self.settings, self.judge = model, settings, judge

    def begin(self, block):
        self.block, self.before, self.stored = block, {}, {}

    def change(self, layer, query, kv_heads=1):
        """Mean square change of each token's query since the forward before, [token, part of the heads]"""
        before = self.before.get(layer)
        self.before[layer] = query
        if before is None:
            return None
        t = len(query)
        delta = ((query - before) ** 2).reshape(t, kv_heads, -1).mean(-1)
        size = (query ** 2).reshape(t, kv_heads, -1).mean(-1)
        self.blur = blur_of(delta, size)
        return np.where(delta < NEVER * size, 0.0, delta)

    def attend(self, layer, forward, query, prefix, key, value):
        delta, before = self.change(layer, query), self.stored.get(layer)
        record = self.compare(forward, layer, "dense", delta=delta)
        self.stored[layer] = key, value
        for name, now, then in zip(("delta_keys", "delta_values"), (key, value), before or ()):
            change, size = ((now - then) ** 2).mean((1, 2)), (now ** 2).mean((1, 2))
            self.judge.close(name, change, record[name], blur_of(change, size))
        return merge(part(query, *prefix), part(query, key, value))

    def compare(self, forward, layer, mode, delta=None):
        """-> the recorded layer"""
        record, judge = forward["layers"][layer], self.judge
        judge.equal("mode", mode, record["mode"])
        if delta is None:
            if "delta" in record:
                judge.wrong("changes in the first forward", None, record["delta"])
        else:
            mine = delta[:, 0] if delta.shape[1] == 1 else delta
            judge.close("changes", mine, record["delta"], self.blur[:, 0] if delta.shape[1] == 1 else self.blur)
        if mode == "dense" and {"active", "pages", "density"} & set(record):
            judge.wrong("selection of a dense layer", "none", sorted(record))
        return record


class Losa(Full):
    """LoSA; `every`: Quest on all tokens."""

    def __init__(self, model, settings, judge, every=False):
        super().__init__(model, settings, judge)
        self.every = every
        self.page = settings.get("page", 16)
        self.count = max(1, settings.get("budget", 256) // self.page)
        self.sets = model.shape.kv_heads if settings.get("active_set") == "kv_head" and not every else 1

    def begin(self, block):
        super().begin(block)
        self.kept, self.agnostic = {}, {}

    def attend(self, layer, forward, query, prefix, key, value):
        s, settings = self.model.shape, self.settings
        delta = self.change(layer, query, self.sets)
        own = part(query, key, value)
        dense = (forward["kind"] == "final" and settings.get("final", "dense") == "dense") \
            or (forward["step"] == 0 and settings.get("first", "dense") == "dense")
        if dense or not len(prefix[0]):
            self.compare(forward, layer, "dense", delta=delta)
            self.kept[layer] = part(query, *prefix)
            if forward["step"] == 0 and len(prefix[0]):
                self.choose_agnostic(layer, query, prefix[0])
            return merge(self.kept[layer], own)
        record = self.compare(forward, layer, "sparse", delta=delta)
        active = [self.active(delta, n if self.sets > 1 else 0, record["active"][n]) for n in range(s.kv_heads)]
        output, logsum = self.kept.get(layer, (np.zeros_like(query), np.zeros(query.shape[:2])))
        output, logsum = output.copy(), logsum.copy()
        for n in range(s.kv_heads):
            heads = slice(n * s.group, (n + 1) * s.group)
            pages = self.pages(layer, query[:, heads], prefix[0][:, n], n, active[n], set(record["pages"][n]))
            rows = [i for i in range(len(prefix[0])) if i // self.page in pages]
            self.judge.close("density", len(rows) / len(prefix[0]), record["density"][n], 1e-6)
            tokens = sorted(active[n])
            if tokens:
                chosen = part(query[tokens][:, heads], prefix[0][rows, n:n + 1], prefix[1][rows, n:n + 1])
                for cache, new in zip((output, logsum), chosen):
                    block = cache[:, heads]
                    block[tokens] = new
        self.kept[layer] = output, logsum
        return merge(self.kept[layer], own)

    def active(self, delta, part_of, recorded):
        everything = set(range(self.block))
        recorded = set(recorded)
        if self.every or delta is None:
            self.judge.equal("active tokens", everything, recorded)
            return everything
        change, blur = delta[:, part_of], self.blur[:, part_of]
        limit = self.settings.get("active_threshold", -1)
        if limit >= 0:
            mine = {i for i in everything if change[i] >= limit}
            unsure = {i for i in everything if abs(change[i] - limit) <= blur[i] and limit > 0}
            if (mine ^ recorded) - unsure:
                self.judge.wrong("active tokens by threshold", sorted(mine), sorted(recorded))
            self.judge.ties += mine != recorded
            return recorded
        count = min(self.settings.get("active", 5), self.block)
        mine = top(change, count)
        near = max((blur[i] for i in mine ^ recorded), default=0.0)
        return self.judge.best("active tokens", change, count, recorded, 2 * near)

    def pages(self, layer, query, key, n, active, recorded):
        """The union over query heads and active tokens of one KV head."""
        complete = len(key) // self.page
        groups = key[:complete * self.page].reshape(complete, self.page, key.shape[1])
        if not active:
            self.judge.equal("pages", set(), recorded)
            return recorded
        low, high = (groups.min(1), groups.max(1)) if complete else (np.zeros((0, key.shape[1])),) * 2
        fixed = self.agnostic.get(layer, [set()] * (n + 1))[n]
        eligible = set(range(complete)) - fixed
        union, unsure = set(fixed), set()
        for i in active:
            for q in query[i]:
                scores = np.maximum(q * low, q * high).sum(-1)
                mine = top(scores, self.count - len(fixed), eligible)
                union |= mine
                allowed = self.judge.tolerance * max(1.0, float(np.abs(scores).max(initial=0)))
                if 0 < len(mine) < len(eligible):
                    edge = min(scores[j] for j in mine)
                    unsure |= {j for j in eligible if abs(scores[j] - edge) <= allowed}
                self.judge.decisions += 1
        if len(key) % self.page:
            union.add(complete)
        if (union ^ recorded) - unsure:
            self.judge.wrong(f"pages of KV head {n}", sorted(union), sorted(recorded))
        self.judge.ties += union != recorded
        return recorded

    def choose_agnostic(self, layer, query, key):
        s = self.model.shape
        share = self.settings.get("agnostic_share", 0)
        complete = len(key) // self.page
        count = int(np.floor(self.count * share + 1e-9))
        self.agnostic[layer] = []
        for n in range(s.kv_heads):
            heads = query[:, n * s.group:(n + 1) * s.group]
            mass = softmax(products(heads, key[:, n:n + 1]) / np.sqrt(s.dim)).sum((0, 1))
            mass = mass[:complete * self.page].reshape(complete, self.page).sum(-1)
            self.judge.sure(border(mass, count), 2e-5 * max(mass, default=0.0))
            self.agnostic[layer].append(top(mass, count))


class SparseD(Full):
    def __init__(self, model, settings, judge):
        super().__init__(model, settings, judge)
        self.tile = settings.get("tile", 16)
        block = settings["block"]
        self.dense = int(steps_of(settings, block) * settings.get("skip", 0.2)) + 1

    def begin(self, block):
        super().begin(block)
        self.masks = {}

    def attend(self, layer, forward, query, prefix, key, value):
        delta, length = self.change(layer, query), len(prefix[0])
        masked = layer in self.masks and (forward["kind"] != "final" or self.settings.get("final") == "reuse")
        record = self.compare(forward, layer, "sparse" if masked else "dense", delta=delta)
        if masked:
            self.check(record, self.masks[layer], length)
        elif forward["step"] + 1 == self.dense and forward["kind"] != "final" and length:
            self.masks[layer] = self.choose(query, prefix[0])
        allowed = self.rows(self.masks[layer], length) if masked else None
        return merge(part(query, *prefix, allowed), part(query, key, value))

    def choose(self, query, key):
        """-> [head][row of tiles] sets of tiles"""
        s, length = self.model.shape, len(key)
        scale = s.query_heads if self.settings.get("scale") == "reference" else s.dim
        tiles = -(-length // self.tile)
        count = min(tiles, tiles * self.settings.get("budget", 256) // length + 1)
        share = softmax(products(query, key) / np.sqrt(scale))
        share = np.concatenate([share, np.zeros(share.shape[:2] + (tiles * self.tile - length,))], -1)
        share = share.reshape(*share.shape[:2], tiles, self.tile).sum(-1)
        masks = []
        for head in share:
            masks.append([])
            for first in range(0, self.block, self.tile):
                row = head[first:first + self.tile].sum(0)
                self.judge.sure(border(row, count), 2e-5 * max(row))
                self.judge.decisions += 1
                masks[-1].append(top(row, count))
        return masks

    def rows(self, masks, length):
        tile = np.arange(length) // self.tile
        return np.array([[np.isin(tile, sorted(head[t // self.tile])) for t in range(self.block)] for head in masks])

    def check(self, record, masks, length):
        group = self.model.shape.group

        def density(pages):
            return sum(min(length, (p + 1) * self.tile) - p * self.tile for p in pages) / length
        for n in range(self.model.shape.kv_heads):
            heads = masks[n * group:(n + 1) * group]
            union = set().union(*(row for head in heads for row in head))
            self.judge.equal("active tokens", list(range(self.block)), record["active"][n])
            self.judge.equal("pages", sorted(union), record["pages"][n])
            self.judge.close("density", density(union), record["density"][n], 1e-6)
            self.judge.close("density of rows", [[density(row) for row in head] for head in heads], record["rows"][n],
                             1e-6)


def method_of(name, model, settings, judge):
    return {"full": Full, "losa": Losa, "sparsed": SparseD,
            "quest": lambda *a: Losa(*a, every=True)}[name](model, settings, judge)


class Loop:
    """One sequence, following what was recorded of it."""

    def __init__(self, model, name, settings, sampling, judge, ends):
        self.model, self.settings, self.sampling, self.judge, self.ends = model, settings, sampling, judge, ends
        self.block = settings["block"]
        self.method = method_of(name, model, settings, judge)
        self.allowed = np.arange(model.shape.vocab) < model.shape.mask  # rows behind it are padding

    def run(self, prompt, new, forwards):
        """-> the ids of the sequence, blocks whole"""
        s, b, judge = self.model.shape, self.block, self.judge
        self.prefix = [(np.zeros((0, s.kv_heads, s.dim)),) * 2 for _ in range(s.layers)]
        holes = [p for p, i in enumerate(prompt) if i == s.mask and self.settings.get("prompt_mask") == "denoise"]
        first, last = (holes or [len(prompt)])[0] // b, -(-(len(prompt) + new) // b)
        ids, forwards = list(prompt) + [s.mask] * (last * b - len(prompt)), iter(forwards)
        for n in range(first):
            self.read(ids[n * b:(n + 1) * b], n * b)
        for n in range(first, last):
            masked = [p for p in range(n * b, (n + 1) * b) if p >= len(prompt) or p in holes]
            self.method.begin(b)
            step = 0
            while True:
                judge.place = f"block {n} step {step}"
                forward = next(forwards, None)
                if forward is None:
                    judge.wrong("a forward is missing", (n, step), None)
                judge.equal("block and step", (n, step), (forward["block"], forward["step"]))
                judge.equal("kind", "denoise" if masked else "final", forward["kind"])
                judge.equal("ids", ids[n * b:(n + 1) * b], forward["ids"])
                judge.equal("masked", masked, forward["masked"])
                logits, stored = self.forward(ids[n * b:(n + 1) * b], n * b, forward)
                if not masked:
                    if {"written", "tokens", "confidence"} & set(forward):
                        judge.wrong("a clean forward writes", None, sorted(forward))
                    break
                self.write(ids, masked, step, n * b, logits, forward)
                step += 1
            self.prefix = [tuple(np.concatenate(pair) for pair in zip(old, new_)) for old, new_ in
                           zip(self.prefix, stored)]
            if any(p >= len(prompt) and ids[p] in self.ends for p in range(n * b, (n + 1) * b)):
                break
        judge.equal("forwards left", None, next(forwards, None))
        return ids[:(n + 1) * b]

    def read(self, ids, start):
        """A block of the prompt: bidirectional inside, everything before it."""
        positions, x = range(start, start + len(ids)), self.model.embed(ids)
        for layer, (keys, values) in enumerate(self.prefix):
            y = self.model.normed(layer, x)
            keys = np.concatenate([keys, self.model.key(layer, y, positions)])
            values = np.concatenate([values, self.model.value(layer, y)])
            x = x + self.model.attended(layer, attend(self.model.query(layer, y, positions), keys, values))
            x = x + self.model.fed(layer, x)
            self.prefix[layer] = keys, values

    def forward(self, ids, start, record):
        positions, x, stored = range(start, start + len(ids)), self.model.embed(ids), []
        self.judge.equal("layers", self.model.shape.layers, len(record["layers"]))
        for layer in range(self.model.shape.layers):
            self.judge.place = f"block {record['block']} step {record['step']} layer {layer}"
            y = self.model.normed(layer, x)
            query, key, value = self.model.query(layer, y, positions), self.model.key(layer, y, positions), \
                self.model.value(layer, y)
            heads = self.method.attend(layer, record, query, self.prefix[layer], key, value)
            x = x + self.model.attended(layer, heads)
            x = x + self.model.fed(layer, x)
            stored.append((key, value))
        return self.model.logits(x), stored

    def write(self, ids, masked, step, start, logits, forward):
        b, judge, settings, sampling = self.block, self.judge, self.settings, self.sampling
        temperature = sampling.get("temperature", 0.0)
        rows = np.where(self.allowed, logits[[p - start for p in masked]], -np.inf)
        p = distribution(rows, temperature, sampling.get("top_k", 0), sampling.get("top_p", 1.0)) \
            if temperature > 0 else softmax(rows)
        tokens = candidates(judge, rows, self.allowed, [forward["tokens"][i - start] for i in masked], temperature, p)
        confidence = {i: p[n][t] for n, (i, t) in enumerate(zip(masked, tokens))}
        known = [i for i in range(start, start + b) if i not in masked]
        judge.equal("tokens of known positions", [0] * len(known), [forward["tokens"][i - start] for i in known])
        judge.close("confidence", [confidence.get(i, -1.0) for i in range(start, start + b)], forward["confidence"],
                    judge.tolerance)
        steps, written = steps_of(settings, b), set(forward["written"])
        count = min(len(masked), b // steps + (step < b % steps))
        strategy = settings.get("strategy", "low_confidence_dynamic")
        if strategy == "sequential":
            judge.equal("written", set(masked[:count]), written)
        elif strategy == "low_confidence_static":
            highest(judge, confidence, count, written)
        elif strategy == "low_confidence_dynamic":
            over(judge, confidence, settings.get("threshold", 0.9), count, written, strict=True)
        else:
            least_entropy(judge, dict(zip(masked, entropy(p))), settings.get("entropy_bound", 0.35), written)
        for i, token in zip(list(masked), tokens):
            if i in written:
                ids[i] = token
                masked.remove(i)
