"""What the methods share, each of which makes its choice in float64 from its paper's rule.

A method sees one sequence. `choose(layer, n)` comes after the step's token was cached, n tokens in all, and says what each
KV head must choose (picks.py); None: the layer attends to everything. `attend` then computes the attention over what was
recorded, not over what should have been, so that one difference does not hide in all that follow.
"""

import copy
import math

import numpy as np

from model import Cache, LayerCache, softmax
from picks import Choice, Pick


def ceil_div(a, b):
    return -(-a // b)


class Method:
    slots = None  # hits.BlockCache
    reads_prompts = False  # whatever the settings: by its own `prefill`
    has_control = False  # what bf16 does to its choices is computed as well, see control.py
    prefilling = False  # a sparse prefill is running
    unsure = False  # what is attended and not recorded may differ by rounding

    def __init__(self, model, cache, settings):
        self.model, self.cache, self.p, self.shape = model, cache, settings, model.shape
        self.bs = settings.get("block_size", 64)
        self.prompt = cache.tokens()
        self.start()

    def start(self):
        pass

    def prepare(self, layer, n):
        """Before `choose`, of every sequence of the step: what methods share between sequences."""

    def seeds(self):
        """{(layer, KV head): blocks that the device begins with}, beside the prompt's incomplete one."""
        return {}

    def offloaded(self, layer):
        return layer >= max(self.p.get("skip_layers", 0), self.p.get("dense_layers", 0))

    def hits(self, layer, g, units, n):
        """Which of the chosen units (None: all blocks) need no transfer. None: not told by what was chosen."""
        return self.slots.step(layer, g, units, n) if self.slots and self.offloaded(layer) else set(units or ())

    def chosen(self, layer, recorded, n):
        """The units that were recorded, of every KV head: what a method with a memory goes on with."""

    def choose_or_dense(self, layer, n):
        return None if n < self.p.get("dense_len", 0) else self.choose(layer, n)

    def heads(self, g):
        return range(g * self.shape.group, (g + 1) * self.shape.group)

    def tokens(self, layer, g, units, n):
        """Token positions of units."""
        return np.array(sorted(t for u in units for t in range(u * self.bs, min((u + 1) * self.bs, n))), int)

    def tokens_of_head(self, layer, head, units, n):
        return self.tokens(layer, head // self.shape.group, units, n)

    def attend(self, layer, units, n):
        """[query heads, dim] of the newest token."""
        rows, out = self.cache.layers[layer], []
        for head in range(self.shape.query_heads):
            g = head // self.shape.group
            t = self.tokens_of_head(layer, head, units[g], n) if units is not None else np.arange(n)
            p = self.model.shares(rows.k[t, g] @ rows.q[n - 1, head] / math.sqrt(self.shape.dim) + rows.bias[t, g])
            out.append(p @ rows.v[t, g])
        return np.array(out)

    # ---- block methods' common rules
    def forced(self, n):
        last = ceil_div(n, self.bs)
        window = self.p["window_blocks"] + (1 if self.p.get("window_adds_current", True) else 0)
        sink = set(range(min(self.p["sink_blocks"], last)))
        return sink, set(range(max(0, last - window), last)) - sink

    def choice(self, n, *picks):
        """picks: (origin, scores, count); counts are cut to what the total leaves."""
        sink, window = self.forced(n)
        blocks = set(range(ceil_div(n, self.bs)))
        return Choice([Pick(pad(s, len(blocks)), blocks, c, origin) for origin, s, c in picks], sink | window)

    def dynamic(self):
        """Blocks beyond sink and window."""
        window = self.p["window_blocks"] + (1 if self.p.get("window_adds_current", True) else 0)
        return self.p["total_blocks"] - self.p["sink_blocks"] - window

    def windows(self, rows):
        """Means of complete windows: [windows, ...]."""
        size, stride = self.p["kernel_size"], self.p["kernel_stride"]
        count = 0 if len(rows) < size else (len(rows) - size) // stride + 1
        return np.array([rows[c * stride:c * stride + size].mean(0) for c in range(count)]).reshape(
            (count, *rows.shape[1:]))

    def to_blocks(self, values, n):
        """Max over the windows that overlap a block."""
        size, stride = self.p["kernel_size"], self.p["kernel_stride"]
        result = np.full(ceil_div(n, self.bs), -np.inf)
        for c, value in enumerate(values):
            for block in range(c * stride // self.bs, min((c * stride + size - 1) // self.bs, len(result) - 1) + 1):
                result[block] = max(result[block], value)
        return result

    def query_score(self, layer, g, n):
        rows = self.cache.layers[layer]
        keys = self.windows(rows.k[:n, g])
        if not len(keys):
            return np.full(ceil_div(n, self.bs), -np.inf)
        coarse = keys  # what the softmax's sum runs over
        if self.p.get("lse") == "compressed":
            size, stride = 4 * self.p["kernel_size"], 4 * self.p["kernel_stride"]
            means = [rows.k[at:at + size, g].mean(0) for at in range(0, n - size + 1, stride)]
            coarse = np.array(means) if means else keys
        p = 0
        for h in self.heads(g):
            q = rows.q[n - 1, h] / math.sqrt(self.shape.dim)
            p = p + np.exp(keys @ q - np.logaddexp.reduce(coarse @ q))
        return self.to_blocks(p, n)

    def importance(self, layer, g, n, upto=None):
        s = self.cache.layers[layer].s[:upto or n, g]
        return self.to_blocks(self.windows(np.exp(s) if self.p.get("bias") == "dma" else s), n)


def pad(scores, count):
    return np.concatenate([scores, np.full(max(0, count - len(scores)), -np.inf)])


def bound(q, low, high):
    return np.maximum(q * low, q * high).sum()


class Full(Method):
    def choose(self, layer, n):
        return None


class TokenMethod(Method):
    fetches = False  # every token but the newest, each time; else what is kept is on the device

    def hits(self, layer, g, units, n):
        return set(units or ()) & {n - 1} if self.fetches else set(units or ())

    def tokens(self, layer, g, units, n):
        return np.array(sorted(units), int)


def sparse_prefill(make, model, ids):
    """A prompt whose every token attends to what the method chooses for it; layer by layer, token by token."""
    cache, hidden, checker = Cache(), model.embed(ids), None
    for layer in range(model.shape.layers):
        rows = LayerCache()
        rows.append(model.project(layer, hidden, np.arange(len(ids))))
        cache.layers.append(rows)
        checker = make(cache)
        checker.prefilling = True
        out = []
        for n in range(1, len(ids) + 1):
            choices = checker.choose_or_dense(layer, n)
            out.append(checker.attend(layer, None if choices is None else [c.best() for c in choices], n))
        hidden = model.finish(layer, hidden, np.array(out))
    cache.hidden = hidden[-1]
    return cache


def copy_of(cache):
    return Cache([copy.copy(layer) for layer in cache.layers], cache.hidden)
