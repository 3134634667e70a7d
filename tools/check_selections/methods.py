"""Every method's choice in float64, each from its paper's rule.

A method sees one sequence. `choose(layer, n)` comes after the step's token was cached, n tokens in all, and says what each
KV head must choose (picks.py); None: the layer attends to everything. `attend` then computes the attention over what was
recorded, not over what should have been, so that one difference does not hide in all that follow.
"""

import copy
import math

import numpy as np

from model import Cache, LayerCache, softmax
from picks import Choice, Exactly, Pick, Through


def ceil_div(a, b):
    return -(-a // b)


class Method:
    prefilling = False  # a sparse prefill is running
    unsure = False  # what is attended and not recorded may differ by rounding

    def __init__(self, model, cache, settings):
        self.model, self.cache, self.p, self.shape = model, cache, settings, model.shape
        self.bs = settings.get("block_size", 64)
        self.prompt = cache.tokens()
        self.start()

    def start(self):
        pass

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
            p = softmax(rows.k[t, g] @ rows.q[n - 1, head] / math.sqrt(self.shape.dim) + rows.bias[t, g])
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


class Streaming(Method):
    def choose(self, layer, n):
        return [self.choice(n) for _ in range(self.shape.kv_heads)]


class InfLLMv2(Method):
    def choose(self, layer, n):
        return [self.choice(n, ("query-aware", self.query_score(layer, g, n), self.dynamic()))
                for g in range(self.shape.kv_heads)]


class DMA(Method):
    def choose(self, layer, n):
        return [self.choice(n, ("query-agnostic", self.importance(layer, g, n), self.dynamic()))
                for g in range(self.shape.kv_heads)]


class NOSA(Method):
    def query_aware(self):
        """Phase 1 takes init + window + topk_q blocks, where the window of the public code has one block more."""
        return self.p["select_blocks"] - (1 if self.p.get("window_adds_current", True) else 0)

    def choose(self, layer, n):
        aware = self.query_aware()
        return [self.choice(n, ("query-aware", self.query_score(layer, g, n), aware),
                            ("query-agnostic", self.importance(layer, g, n), self.dynamic() - aware))
                for g in range(self.shape.kv_heads)]


def bound(q, low, high):
    return np.maximum(q * low, q * high).sum()


class Quest(Method):
    def score(self, layer, g, n, heads=None):
        rows, kind = self.cache.layers[layer], self.p.get("bound", "max")
        scores = np.full(ceil_div(n, self.bs), -np.inf)
        for block in range(n // self.bs if kind != "max" else len(scores)):
            k = rows.k[block * self.bs:min(n, (block + 1) * self.bs), g]
            low, high = k.min(0), k.max(0)
            if kind == "cuboid-mean":
                centre = (low + high) / 2
                spread = np.abs(k - centre).mean(0)
                low, high = centre - spread, centre + spread
            per_head = [bound(rows.q[n - 1, h], low, high) for h in heads or self.heads(g)]
            scores[block] = sum(per_head) if self.p.get("group", "sum") == "sum" else max(per_head)
        return scores

    def choose(self, layer, n):
        if layer < self.p["skip_layers"]:
            return None
        if self.p.get("group") == "per_query_head":
            return self.per_head(layer, n)
        return [self.choice(n, ("query-aware", self.score(layer, g, n), self.dynamic()))
                for g in range(self.shape.kv_heads)]

    def per_head(self, layer, n):
        self.own, choices = [], []
        sink, window = self.forced(n)
        for g in range(self.shape.kv_heads):
            units, maybe = set(), set()
            for h in self.heads(g):
                scores = self.score(layer, g, n, [h])
                choice = self.choice(n, ("query-aware", scores, self.dynamic()))
                self.own.append(choice.best())
                units |= self.own[-1]
                limit = min((scores[b] for b in self.own[-1] - sink - window), default=np.inf)
                near = {b for b, s in enumerate(scores) if abs(s - limit) < 1e-4 * np.abs(limit)}
                maybe |= near if len(near) > 1 else set()
            self.unsure |= bool(maybe)
            choices.append(Exactly(units, maybe))
        return choices

    def tokens_of_head(self, layer, head, units, n):
        return self.tokens(layer, None, self.own[head] if self.p.get("group") == "per_query_head" else units, n)


class TokenMethod(Method):
    def tokens(self, layer, g, units, n):
        return np.array(sorted(units), int)


class DMAToken(TokenMethod):
    def choose(self, layer, n):
        return [Choice([Pick(self.cache.layers[layer].s[:n, g], set(range(n)), self.p["budget_tokens"])])
                for g in range(self.shape.kv_heads)]


def four_bits(x):
    """Asymmetric, per vector (the last axis)."""
    low, width = x.min(-1, keepdims=True), np.ptp(x, -1, keepdims=True)
    scale = 15 / np.where(width == 0, 1, width)
    return np.clip(np.round((x - low) * scale), 0, 15) / scale + low


def on_border(x):
    """Whether float32, some layers in, may round a channel to the other of two levels."""
    low, width = x.min(-1, keepdims=True), np.ptp(x, -1, keepdims=True)
    level = (x - low) * 15 / np.where(width == 0, 1, width)
    return (np.abs(level - np.floor(level) - 0.5) < 3e-3).any(-1)


class Labels(TokenMethod):
    """Channels come from the calibration, or else from the prompt."""
    kind = ""

    def start(self):
        self.channels = []
        for layer in range(self.shape.layers):
            given = self.p.get("calibration")
            ranks = given[f"model.layers.{layer}.self_attn.{self.kind}"].astype(float) if given else np.array(
                [self.measure(layer, g) for g in range(self.shape.kv_heads)])
            self.channels.append([np.argsort(-row, kind="stable")[:self.kept()] for row in ranks])

    def label(self, x):
        return four_bits(x) if self.p["label_bits"] == 4 else x


class DoubleSparsity(Labels):
    kind = "qk_mean"

    def kept(self):
        return max(1, self.shape.dim // self.p["group_factor"])

    def measure(self, layer, g):
        rows = self.cache.layers[layer]
        return np.mean([np.abs(rows.q[:, h] * rows.k[:, g]).mean(0) for h in self.heads(g)], 0)

    def choose(self, layer, n):
        rows, choices = self.cache.layers[layer], []
        for g in range(self.shape.kv_heads):
            c = self.channels[layer][g]
            keys = self.label(rows.k[:n, g][:, c])
            scores = np.mean([softmax(keys @ self.label(rows.q[n - 1, h][c]) / math.sqrt(len(c)))
                              for h in self.heads(g)], 0)
            unsure = set()
            if self.p["label_bits"] == 4:
                unsure = set(np.flatnonzero(on_border(rows.k[:n, g][:, c])).tolist())
                if any(on_border(rows.q[n - 1, h][c]) for h in self.heads(g)):
                    unsure = set(range(n))
            choices.append(Choice([Pick(scores, set(range(n)), self.p["heavy_tokens"], unsure=unsure)]))
        return choices


class AsyncTLS(Labels):
    kind = "qk_max"

    def kept(self):
        return min(self.p["d_c"], self.shape.dim)

    def measure(self, layer, g):
        rows = self.cache.layers[layer]
        return np.mean([np.abs(rows.q[:, h]).max(0) * np.abs(rows.k[:, g]).max(0) for h in self.heads(g)], 0)

    def start(self):
        super().start()
        self.before = [[self.blocks(layer, g, self.prompt) for g in range(self.shape.kv_heads)]
                       for layer in range(self.shape.layers)]

    def blocks(self, layer, g, n):
        """M of the query at n - 1: the best complete blocks, sink and window in the count; the newest comes on top.
        -> those, and whether rounding may decide who is last"""
        rows, newest = self.cache.layers[layer], (n - 1) // self.bs
        scores = np.full(newest + 1, -np.inf)
        for block in range(newest):
            k = rows.k[block * self.bs:(block + 1) * self.bs, g]
            scores[block] = sum(bound(rows.q[n - 1, h], k.min(0), k.max(0)) for h in self.heads(g))
        forced = set(range(min(self.p["sink_blocks"], newest))) | set(
            range(max(0, newest - self.p["window_blocks"]), newest))
        order = sorted(set(range(newest)) - forced, key=lambda b: (-scores[b], b))
        count = max(0, self.p["k_b"] - len(forced))
        tie = 0 < count < len(order) and scores[order[count - 1]] - scores[order[count]] < 1e-5 * abs(scores[order[0]])
        return forced | set(order[:count]) | {newest}, tie

    def choose(self, layer, n):
        """The trace holds the blocks of the chosen tokens."""
        rows, choices, self.own = self.cache.layers[layer], [], []
        for g in range(self.shape.kv_heads):
            now = self.blocks(layer, g, n)
            blocks, tie = self.before[layer][g] if self.p["lag"] else now
            blocks = blocks | {(n - 1) // self.bs}
            self.before[layer][g] = now
            t = np.array(sorted(t for b in blocks for t in range(b * self.bs, min(n, (b + 1) * self.bs))))
            c = self.channels[layer][g]
            keys = self.label(rows.k[t, g][:, c])
            scores = np.mean([softmax(keys @ rows.q[n - 1, h][c] / math.sqrt(self.shape.dim))
                              for h in self.heads(g)], 0)
            best = t[np.lexsort((t, -scores))][:self.p["k_t"]]
            self.own.append(set(best.tolist()))
            choices.append(Through(dict(zip(t.tolist(), scores)), best, self.bs, tie))
            self.unsure |= tie or choices[-1].close(1e-4)
        return choices

    def tokens(self, layer, g, units, n):
        return np.array(sorted(self.own[g]))


class H2O(TokenMethod):
    def start(self):
        self.heavy = self.p["heavy_tokens"] or max(1, int(self.p["heavy_ratio"] * self.prompt))
        self.recent = self.p["recent_tokens"] or max(1, int(self.p["recent_ratio"] * self.prompt))
        self.mass, self.kept = [], []
        for layer in range(self.shape.layers):
            rows = self.cache.layers[layer]
            mass = np.zeros((self.shape.kv_heads, self.prompt))
            for first in range(0, self.prompt, 512):
                last = min(first + 512, self.prompt)
                for head in range(self.shape.query_heads):
                    mass[head // self.shape.group, :last] += self.model.probabilities(rows, head, first, last).sum(0)
            self.mass.append(mass)
            self.kept.append([None] * self.shape.kv_heads)

    def keep(self, g, layer, alive, n):
        """The recent ones and the heaviest of the others, as a Choice among those alive."""
        recent = {t for t in alive if t >= n - self.recent}
        return Choice([Pick(self.mass[layer][g], set(alive), self.heavy)], recent)

    def choose(self, layer, n):
        """Attended now: what was kept after the last step, and the newest token."""
        self.mass[layer] = np.concatenate([self.mass[layer], np.zeros((self.shape.kv_heads, 1))], 1)
        choices = []
        for g in range(self.shape.kv_heads):
            alive = self.kept[layer][g] if self.kept[layer][g] is not None else set(range(n - 1))
            choice = self.keep(g, layer, alive, n - 1)
            choice.forced = (choice.forced or set()) | {n - 1}
            choices.append(choice)
        return choices

    def chosen(self, layer, recorded, n):
        rows = self.cache.layers[layer]
        for g in range(self.shape.kv_heads):
            t = np.array(sorted(recorded[g]))
            for h in self.heads(g):
                p = softmax(rows.k[t, g] @ rows.q[n - 1, h] / math.sqrt(self.shape.dim) + rows.bias[t, g])
                self.mass[layer][g, t] += p
            self.kept[layer][g] = set(recorded[g])


class SnapKV(TokenMethod):
    def start(self):
        self.kept = []
        w, p = min(self.p["window_tokens"], self.prompt), self.prompt
        for layer in range(self.shape.layers):
            rows, choices = self.cache.layers[layer], []
            for g in range(self.shape.kv_heads):
                window = set(range(p - w, p))
                if p <= self.p["capacity_tokens"]:
                    choices.append((set(range(p)), np.zeros(p), 0))
                    continue
                votes = sum(self.model.probabilities(rows, h, p - w, p).sum(0) for h in self.heads(g))[:p - w]
                half = self.p["pooling_kernel"] // 2
                pooled = np.array([(np.max if self.p["pooling"] == "max" else lambda a: np.sum(a) / (2 * half + 1))(
                    votes[max(0, t - half):t + half + 1]) for t in range(p - w)])
                choices.append((window, pad(pooled, p), self.p["capacity_tokens"] - w))
            self.kept.append(choices)

    def choose(self, layer, n):
        result = []
        for forced, scores, count in self.kept[layer]:
            result.append(Choice([Pick(pad(scores, n), set(range(self.prompt)), count)],
                                 forced | set(range(self.prompt, n))))
        return result


class ArkVale(Method):
    def start(self):
        self.resident = [[None] * self.shape.kv_heads for _ in range(self.shape.layers)]

    def scores(self, layer, g, n):
        """Of full pages, by the query at n - 1."""
        rows, result = self.cache.layers[layer], np.full(ceil_div(n, self.bs), -np.inf)
        shared = self.p["groups"] == "layer"
        for page in range(n // self.bs):
            bounds = []
            for kv in range(self.shape.kv_heads) if shared else [g]:
                k = rows.k[page * self.bs:(page + 1) * self.bs, kv]
                low, high = k.min(0), k.max(0)
                if self.p["digest"] == "cuboid-mean":
                    centre = (low + high) / 2
                    spread = np.abs(k - centre).mean(0)
                    low, high = centre - spread, centre + spread
                bounds += [bound(rows.q[n - 1, h], low, high) for h in self.heads(kv)]
            result[page] = np.mean(bounds)
        return result

    def choose(self, layer, n):
        if layer < self.p["skip_layers"]:
            return None
        choices, pages = [], ceil_div(n, self.bs)
        budget = self.p["page_budget"]
        topk = self.p["page_topks"] or budget // 2
        sink = set(range(min(self.p["sink_blocks"], pages)))
        window = set(range(max(0, pages - self.p["window_blocks"]), pages)) - sink
        for g in range(self.shape.kv_heads):
            scores = self.scores(layer, g, n)
            alive = self.resident[layer][g]
            if pages <= budget:
                choices.append(Choice([], set(range(pages))))
                continue
            if alive is None:  # seeded by the last prompt token's query, then this step's
                first = self.scores(layer, g, n - 1)
                seeded = ceil_div(n - 1, self.bs)
                seed_window = set(range(max(0, seeded - self.p["window_blocks"]), seeded))
                seed_rest = set(range(seeded)) - sink - seed_window
                order = sorted(seed_rest, key=lambda b: (-first[b], b))
                alive = sink | seed_window | set(order[:budget - len(sink | seed_window)])
            # page n - window competes although it stays anyway: candidates are [sink, n - window + 1)
            dynamic = max(0, topk - self.p["sink_blocks"] - (self.p["window_blocks"] - 1))
            candidates = set(range(self.p["sink_blocks"], pages - self.p["window_blocks"] + 1))
            order = sorted(candidates, key=lambda b: (-scores[b], b))
            must = set(order[:dynamic])
            recalled = must - sink - window
            forced = sink | window
            choices.append(Choice([Pick(scores, candidates, len(recalled), "query-aware"),
                                   Pick(scores, alive, max(0, budget - len(forced | recalled)), "query-agnostic")],
                                  forced))
        return choices

    def chosen(self, layer, recorded, n):
        for g in range(self.shape.kv_heads):
            self.resident[layer][g] = set(recorded[g])


class SparDA(NOSA):
    """Layer l's blocks by layer l-1's Forecast against the keys that were there before this token."""

    def forecast(self, layer, g, n):
        name, source = ("q_curr_proj", 0) if layer == 0 else ("q_future_proj", layer - 1)
        x = self.cache.layers[source].x[n - 1:n]
        q = self.model.rotate(self.model.heads(source, name, x), [n - 1])[0, g]
        seen = n if layer == 0 or self.prefilling else n - 1
        return self.to_blocks(self.windows(self.cache.layers[layer].k[:seen, g]) @ q, n), seen

    def choose(self, layer, n):
        choices = []
        for g in range(self.shape.kv_heads):
            score, seen = self.forecast(layer, g, n)
            if self.p["backbone"] == "infllmv2":
                picks = [("query-aware", score, self.dynamic())]
            else:
                aware = self.query_aware()
                picks = [("query-aware", score, aware),
                         ("query-agnostic", self.importance(layer, g, n, seen), self.dynamic() - aware)]
            choices.append(self.choice(n, *picks))
        return choices


class InfiniGen(Method):
    def start(self):
        """Directions of the group-mean query over the warm-up, most varied first."""
        warm = min(self.p["warmup_tokens"], self.prompt)
        self.skew = []
        for layer in range(self.shape.layers):
            q = self.cache.layers[layer].q[:warm]
            self.skew.append([np.linalg.svd(q[:, list(self.heads(g))].mean(1), full_matrices=True)[2]
                              [:self.p["partial_dims"]].T for g in range(self.shape.kv_heads)])

    def guess(self, layer, n):
        x = self.cache.layers[layer - 1].x[n - 1:n]
        return self.model.rotate(self.model.heads(layer, "q_proj", x), [n - 1])[0]

    def choose(self, layer, n):
        if layer < self.p["dense_layers"]:
            return None
        q, choices = self.guess(layer, n), []
        for g in range(self.shape.kv_heads):
            a = self.skew[layer][g]
            token = (self.cache.layers[layer].k[:n - 1, g] @ a) @ (q[list(self.heads(g))].sum(0) @ a)
            blocks = np.array([token[b * self.bs:(b + 1) * self.bs].max(initial=-np.inf)
                               for b in range(ceil_div(n, self.bs))])
            choices.append(self.choice(n, ("query-aware", blocks, self.dynamic())))
        return choices


class InfiniGenToken(TokenMethod):
    """The trace holds the union over a group's query heads; all heads of a layer take the same number of tokens."""

    def start(self):
        warm = min(self.p["warmup_tokens"], self.prompt)
        self.directions = []
        for rows in self.cache.layers:
            heads = []
            for h in range(self.shape.query_heads):
                # Ordering them by the singular values of queries and keys, as the paper does, changes no choice.
                a = np.linalg.svd(rows.q[:warm, h], full_matrices=True)[2].T
                kept = max(1, int(self.p["partial_ratio"] * self.shape.dim))
                heads.append(a[:, np.argsort(-np.abs(rows.q[:, h] @ a).sum(0), kind="stable")[:kept]])
            self.directions.append(heads)

    def choose(self, layer, n):
        if layer < self.p["dense_layers"]:
            return None
        x = self.cache.layers[layer - 1].x[n - 1:n]
        q = self.model.rotate(self.model.heads(layer, "q_proj", x), [n - 1])[0]
        scores, near, sure = [], [], []
        for h in range(self.shape.query_heads):
            a = self.directions[layer][h]
            scores.append((self.cache.layers[layer].k[:n - 1, h // self.shape.group] @ a) @ (q[h] @ a)
                          / math.sqrt(self.shape.dim))
            near.append(int((scores[-1] > scores[-1].max() - self.p["alpha"]).sum()))
        count = min(max(1, sum(near) // len(near)), self.p["max_num_kv"])
        self.own, choices = [], []
        for g in range(self.shape.kv_heads):
            units, maybe = {n - 1}, set()
            for h in self.heads(g):
                order = np.lexsort((np.arange(n - 1), -scores[h]))
                self.own.append(set(order[:count].tolist()) | {n - 1})
                units |= self.own[-1]
                limit = scores[h][order[count - 1]] if count <= n - 1 else 0
                maybe |= set(np.flatnonzero(np.abs(scores[h] - limit) < 1e-4 * np.abs(scores[h]).max()).tolist())
            choices.append(Exactly(units, maybe))
        return choices

    def tokens_of_head(self, layer, head, units, n):
        return np.array(sorted(self.own[head]))


class InfLLM(Method):
    def first_local(self, n):
        return max(0, n - self.p["local_tokens"]) // self.bs

    def start(self):
        """Mass that tokens received from queries in whose local window they lay, the window's oldest block whole."""
        self.mass = []
        for layer, rows in enumerate(self.cache.layers):
            mass = np.zeros((self.shape.query_heads, self.prompt))
            for n in range(1, self.prompt + 1):
                self.give(layer, mass, n)
            self.mass.append(mass)

    def give(self, layer, mass, n):
        rows, first = self.cache.layers[layer], self.first_local(n) * self.bs
        for h in range(self.shape.query_heads):
            g = h // self.shape.group
            mass[h, first:n] += softmax(rows.k[first:n, g] @ rows.q[n - 1, h] / math.sqrt(self.shape.dim)
                                        + rows.bias[first:n, g])

    def fixed(self, layer, n):
        """The query as if local_tokens after the keys it meets, which are not rotated."""
        return self.model.rotate(self.cache.layers[layer].q_plain[n - 1:n], [self.p["local_tokens"]])[0]

    def choose(self, layer, n):
        rows, local, q = self.cache.layers[layer], self.first_local(n), self.fixed(layer, n)
        init = min(local, ceil_div(self.p["init_tokens"], self.bs))
        per_head = np.zeros((self.shape.kv_heads, ceil_div(n, self.bs)))
        for block in range(init, local):
            span = slice(block * self.bs, (block + 1) * self.bs)
            for h in range(self.shape.query_heads):
                mass = self.mass[layer][h, span]
                best = np.lexsort((np.arange(self.bs), -mass))[:self.p["repr_topk"]]
                key = rows.k_plain[span, h // self.shape.group][best].mean(0)
                per_head[h // self.shape.group, block] += q[h] @ key
        scores = per_head if self.p["groups"] == "head" else np.tile(per_head.sum(0), (self.shape.kv_heads, 1))
        return [Choice([Pick(scores[g], set(range(init, local)), self.p["topk_blocks"], "query-aware")],
                       set(range(init)) | set(range(local, ceil_div(n, self.bs)))) for g in range(self.shape.kv_heads)]

    def attend(self, layer, units, n):
        rows, local, fixed, out = self.cache.layers[layer], self.first_local(n), self.fixed(layer, n), []
        for h in range(self.shape.query_heads):
            g = h // self.shape.group
            far = self.tokens(layer, g, {u for u in units[g] if u < local}, n)
            near = self.tokens(layer, g, {u for u in units[g] if u >= local}, n)
            t = np.concatenate([far, near])
            logits = np.concatenate([rows.k_plain[far, g] @ fixed[h], rows.k[near, g] @ rows.q[n - 1, h]])
            out.append(softmax(logits / math.sqrt(self.shape.dim) + rows.bias[t, g]) @ rows.v[t, g])
        return np.array(out)

    def chosen(self, layer, recorded, n):
        self.mass[layer] = np.concatenate([self.mass[layer], np.zeros((self.shape.query_heads, 1))], 1)
        self.give(layer, self.mass[layer], n)


class ShadowKV(Method):
    def start(self):
        self.bs = self.p["chunk_tokens"]
        self.chunks = max(0, self.prompt // self.bs - self.p["local_chunks"])  # those before the local ones
        self.keys, self.landmarks, self.outliers = [], [], []
        for rows in self.cache.layers:
            wide = rows.k_plain.reshape(self.prompt, -1)
            u, s, vt = np.linalg.svd(wide, full_matrices=False)
            low = (u[:, :self.p["rank"]] * s[:self.p["rank"]]) @ vt[:self.p["rank"]]
            self.keys.append(self.model.rotate(low.reshape(rows.k_plain.shape), np.arange(self.prompt)))
            parts = rows.k[:self.chunks * self.bs].reshape(self.chunks, self.bs, self.shape.kv_heads, self.shape.dim)
            mean = parts.mean(1)
            cosine = (parts * mean[:, None]).sum(-1) / np.linalg.norm(parts, axis=-1) \
                / np.linalg.norm(mean, axis=-1)[:, None]
            least = cosine.min(1)
            self.landmarks.append(mean)
            self.outliers.append([set(np.lexsort((np.arange(self.chunks), least[:, g]))
                                      [:self.p["outlier_tokens"] // self.bs].tolist())
                                  for g in range(self.shape.kv_heads)])

    def choose(self, layer, n):
        rows, choices = self.cache.layers[layer], []
        for g in range(self.shape.kv_heads):
            held = sorted(set(range(self.chunks)) - self.outliers[layer][g])
            scores = np.full(ceil_div(n, self.bs), -np.inf)
            if held:
                scores[held] = np.max([softmax(self.landmarks[layer][held, g] @ rows.q[n - 1, h]
                                               / math.sqrt(self.shape.dim)) for h in self.heads(g)], 0)
            forced = self.outliers[layer][g] | set(range(self.chunks, ceil_div(n, self.bs)))
            choices.append(Choice([Pick(scores, set(held), self.p["budget_tokens"] // self.bs, "query-aware")], forced))
        return choices

    def attend(self, layer, units, n):
        rows, out = self.cache.layers[layer], []
        for h in range(self.shape.query_heads):
            g = h // self.shape.group
            t = self.tokens(layer, g, units[g], n)
            exact = np.array([x >= self.chunks * self.bs or x // self.bs in self.outliers[layer][g] for x in t])
            k = np.where(exact[:, None], rows.k[t, g], self.keys[layer][np.minimum(t, self.prompt - 1), g])
            out.append(softmax(k @ rows.q[n - 1, h] / math.sqrt(self.shape.dim) + rows.bias[t, g]) @ rows.v[t, g])
        return np.array(out)


class Locret(TokenMethod):
    @classmethod
    def prefill(cls, model, ids, p):
        """Chunk by chunk; a chunk sees what the earlier ones left, and itself."""
        cache, hidden, chunk = Cache(), model.embed(ids), p["prefill_chunk"]
        cache.alive, cache.importance, n = [], [], len(ids)
        for layer in range(model.shape.layers):
            rows = LayerCache()
            rows.append(model.project(layer, hidden, np.arange(n)))
            cache.layers.append(rows)
            r = importance(model, layer, rows, p["retaining"])
            out, alive = np.zeros((n, model.shape.query_heads, model.shape.dim)), [[] for _ in range(r.shape[1])]
            for first in range(0, n, chunk):
                last = min(first + chunk, n)
                for g in range(model.shape.kv_heads):
                    if first:
                        alive[g] = evict(alive[g], r[:, g], p["budget_tokens"], p["stabilizers"])
                    seen = np.array(alive[g] + list(range(first, last)))
                    for h in range(g * model.shape.group, (g + 1) * model.shape.group):
                        logits = rows.q[first:last, h] @ rows.k[seen, g].T / math.sqrt(model.shape.dim)
                        logits = logits + rows.bias[seen, g]
                        logits[seen[None] > np.arange(first, last)[:, None]] = -np.inf
                        out[first:last, h] = softmax(logits) @ rows.v[seen, g]
                    alive[g] = seen.tolist()
            cache.alive.append([evict(a, r[:, g], p["budget_tokens"], p["stabilizers"]) for g, a in enumerate(alive)])
            cache.importance.append(r)
            hidden = model.finish(layer, hidden, out)
        cache.hidden = hidden[-1]
        return cache

    def start(self):
        self.alive, self.r = [list(a) for a in self.cache.alive], list(self.cache.importance)

    def choose(self, layer, n):
        rows, choices = self.cache.layers[layer], []
        last = LayerCache(**{name: getattr(rows, name)[n - 1:n] for name in ("q_plain", "k_plain", "v")})
        self.r[layer] = np.concatenate([self.r[layer], importance(self.model, layer, last, self.p["retaining"])])
        for g in range(self.shape.kv_heads):
            alive, local = set(self.alive[layer][g]) | {n - 1}, self.p["local_len"]
            if len(alive) <= self.p["budget_tokens"]:
                choices.append(Choice([], alive))
                continue
            recent = set(sorted(alive)[-local:])
            choices.append(Choice([Pick(self.r[layer][:, g], alive, self.p["budget_tokens"] - local)], recent))
        return choices

    def chosen(self, layer, recorded, n):
        self.alive[layer] = [set(r) for r in recorded]


def importance(model, layer, rows, weights):
    """[tokens, KV heads]: a perceptron of query, key and value before rotation, SiLU between."""
    n = len(rows.v)
    x = np.concatenate([rows.q_plain.reshape(n, -1), rows.k_plain.reshape(n, -1), rows.v.reshape(n, -1)], 1)
    h = x @ weights[f"model.layers.{layer}.self_attn.fc1.weight"].astype(float).T
    return h / (1 + np.exp(-h)) @ weights[f"model.layers.{layer}.self_attn.fc2.weight"].astype(float).T


def evict(alive, r, budget, recent):
    if len(alive) <= budget:
        return list(alive)
    others, stay = alive[:len(alive) - recent], alive[len(alive) - recent:]
    return sorted(sorted(others, key=lambda t: (-r[t], t))[:budget - recent]) + stay


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


COUPLED = {"infinigen-token"}  # whose sequences share a number
NEEDS_EVICTION_HEAD = {"dma", "nosa", "dma-token"}


def copy_of(cache):
    return Cache([copy.copy(layer) for layer in cache.layers], cache.hidden)
