"""Methods whose blocks come from one score of the query, the eviction head, or both."""

import numpy as np

from method import Method, bound, ceil_div
from picks import Exactly


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
        return max(0, self.p["select_blocks"] - (1 if self.p.get("window_adds_current", True) else 0))

    def choose(self, layer, n):
        aware = self.query_aware()
        return [self.choice(n, ("query-aware", self.query_score(layer, g, n), aware),
                            ("query-agnostic", self.importance(layer, g, n), self.dynamic() - aware))
                for g in range(self.shape.kv_heads)]


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
