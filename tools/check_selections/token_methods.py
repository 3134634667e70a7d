"""Methods that choose tokens, for good or anew each step."""

import math

import numpy as np

from method import TokenMethod, bound, pad
from model import Cache, LayerCache, softmax
from picks import Choice, Pick, Through


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
        self.channels, self.ranks = [], []
        for layer in range(self.shape.layers):
            given = self.p.get("calibration")
            ranks = given[f"model.layers.{layer}.self_attn.{self.kind}"].astype(float) if given else np.array(
                [self.measure(layer, g) for g in range(self.shape.kv_heads)])
            if layer == 0 and self.p.get("plant") == "channel":  # the most important channel counts as the least
                ranks[0, np.argmax(ranks[0])] = 0
            self.ranks.append(ranks)
            self.channels.append([np.argsort(-row, kind="stable")[:self.kept()] for row in ranks])

    def label(self, x):
        return four_bits(x) if self.p["label_bits"] == 4 else x


class DoubleSparsity(Labels):
    kind = "qk_mean"
    fetches = True
    has_control = True

    def kept(self):
        return max(1, self.shape.dim // self.p["group_factor"])

    def measure(self, layer, g):
        rows = self.cache.layers[layer]
        return np.mean([np.abs(rows.q[:, h] * rows.k[:, g]).mean(0) for h in self.heads(g)], 0)

    def choose(self, layer, n):
        return [Choice([self.pick(layer, g, n, self.channels[layer][g])]) for g in range(self.shape.kv_heads)]

    def pick(self, layer, g, n, c):
        """c: the channels of the labels"""
        rows = self.cache.layers[layer]
        keys, queries = rows.k[:n, g][:, c], [rows.q[n - 1, h][c] for h in self.heads(g)]
        labels, scale = self.label(keys), math.sqrt(len(c))
        shares = [softmax(labels @ self.label(q) / scale) for q in queries]
        slack = np.mean([p * np.expm1(self.rounding(keys, q) / scale) for p, q in zip(shares, queries)], 0)
        unsure = set()
        if self.p["label_bits"] == 4:
            unsure = set(range(n) if any(map(on_border, queries)) else np.flatnonzero(on_border(keys)).tolist())
        return Pick(np.mean(shares, 0), set(range(n)), self.p["heavy_tokens"], unsure=unsure, slack=slack)

    def rounding(self, keys, query):
        """[tokens] by how much a product of labels moves when every channel is half a level away; 16 bits: bf16's."""
        if self.p["label_bits"] == 4:
            away = np.ptp(keys, -1, keepdims=True) / 15 / 2
        else:
            away = np.abs(keys) * 2.0 ** -9
        return np.abs(query) @ np.broadcast_to(away, keys.shape).T


class AsyncTLS(Labels):
    kind = "qk_max"

    def seeds(self):
        return {(layer, g): set(blocks) for layer, row in enumerate(self.before) for g, (blocks, _) in enumerate(row)}

    def hits(self, layer, g, units, n):
        """All candidates are in the cache; what the step before asked for and had to wait for is no hit."""
        if self.slots is None:
            return set(units)
        asked, came = self.asked.pop((layer, g), (set(), set()))
        there = self.slots.step(layer, g, self.candidates[g], n) - (asked - came)
        if self.p["lag"]:
            blocks = self.before[layer][g][0]
            self.asked[layer, g] = blocks, self.slots.heads[layer, g].admit(blocks, None, n - self.prompt)
        self.settled[layer, g] = not self.tied[g] and self.settled.get((layer, g), True)
        return there & set(units) if self.settled[layer, g] else None

    def kept(self):
        return min(self.p["d_c"], self.shape.dim)

    def measure(self, layer, g):
        rows = self.cache.layers[layer]
        return np.mean([np.abs(rows.q[:, h]).max(0) * np.abs(rows.k[:, g]).max(0) for h in self.heads(g)], 0)

    def start(self):
        super().start()
        self.settled = {}  # whether no rounding has come into the cache of a (layer, KV head)
        self.asked = {}  # by (layer, KV head): what the step asked for, and what of it was there
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
        rows, choices, self.own, self.candidates, self.tied = self.cache.layers[layer], [], [], [], []
        for g in range(self.shape.kv_heads):
            now = self.blocks(layer, g, n)
            blocks, tie = self.before[layer][g] if self.p["lag"] else now
            blocks = blocks | {(n - 1) // self.bs}
            self.candidates.append(blocks)
            self.tied.append(tie or now[1])
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


class Locret(TokenMethod):
    reads_prompts = True

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
