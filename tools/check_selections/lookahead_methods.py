"""Methods that choose a layer ahead."""

import math

import numpy as np

from block_methods import NOSA
from method import Method, TokenMethod, ceil_div
from picks import Exactly


class SparDA(NOSA):
    """Layer l's blocks by layer l-1's Forecast against the keys that were there before this token."""

    def forecast(self, layer, g, n):
        name, source = ("q_curr_proj", 0) if layer == 0 else ("q_future_proj", layer - 1)
        x = self.cache.layers[source].x[n - 1:n]
        q = self.model.rotate(self.model.heads(source, name, x), [n - 1])[0, g]
        seen = n if layer == 0 or self.prefilling else n - 1
        return self.to_blocks(self.windows(self.cache.layers[layer].k[:seen, g]) @ q, n), seen

    def offloaded(self, layer):
        return layer > 0 or self.p.get("offload_layer0", True)

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
    fetches = True

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

    def prepare(self, layer, n):
        if layer < self.p["dense_layers"]:
            return
        x = self.cache.layers[layer - 1].x[n - 1:n]
        q = self.model.rotate(self.model.heads(layer, "q_proj", x), [n - 1])[0]
        self.scores = []
        for h in range(self.shape.query_heads):
            a = self.directions[layer][h]
            self.scores.append((self.cache.layers[layer].k[:n - 1, h // self.shape.group] @ a) @ (q[h] @ a)
                               / math.sqrt(self.shape.dim))
            self.near(layer, n).append([int((self.scores[-1] > self.limit(self.scores[-1], slack)).sum())
                                        for slack in (0, 1e-5, -1e-5)])

    def limit(self, scores, slack):
        return scores.max() - self.p["alpha"] + slack * np.abs(scores).max()

    def near(self, layer, n):
        """How many tokens come near the best, of every query head of the step's sequences; then by rounding."""
        return self.p["together"].setdefault((layer, n - self.prompt), [])

    def choose(self, layer, n):
        if layer < self.p["dense_layers"]:
            return None
        scores = self.scores
        count, least, most = (min(max(1, int(mean)), self.p["max_num_kv"])
                              for mean in np.sum(self.near(layer, n), 0) // len(self.near(layer, n)))
        self.unsure |= least != most
        self.own, choices = [], []
        for g in range(self.shape.kv_heads):
            units, maybe = {n - 1}, set()
            for h in self.heads(g):
                order = np.lexsort((np.arange(n - 1), -scores[h]))
                self.own.append(set(order[:count].tolist()) | {n - 1})
                units |= self.own[-1]
                limit = scores[h][order[count - 1]] if count <= n - 1 else 0
                ties = np.flatnonzero(np.abs(scores[h] - limit) < 1e-4 * np.abs(scores[h]).max())
                self.unsure |= len(ties) > 1
                maybe |= set(ties.tolist())
                maybe |= set(order[least:most].tolist())
            choices.append(Exactly(units, maybe))
        return choices

    def tokens_of_head(self, layer, head, units, n):
        return np.array(sorted(self.own[head]))
