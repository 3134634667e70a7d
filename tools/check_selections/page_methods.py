"""Methods with a memory of pages, blocks or chunks."""

import math

import numpy as np

from method import Method, bound, ceil_div
from model import Cache, LayerCache, softmax
from picks import Choice, Pick


class ArkVale(Method):
    def start(self):
        """Resident are the best pages by the last prompt token's query."""
        self.resident = [[self.first_pages(layer, g) for g in range(self.shape.kv_heads)]
                         for layer in range(self.shape.layers)]

    def first_pages(self, layer, g):
        pages, scores = ceil_div(self.prompt, self.bs), self.scores(layer, g, self.prompt)
        kept = set(range(min(self.p["sink_blocks"], pages))) | set(range(max(0, pages - self.p["window_blocks"]), pages))
        order = sorted(set(range(pages)) - kept, key=lambda b: (-scores[b], b))
        return kept | set(order[:self.p["page_budget"] - len(kept)])

    def seeds(self):
        return {(layer, g): set(pages) for layer, row in enumerate(self.resident) for g, pages in enumerate(row)}

    def scores(self, layer, g, n, ahead=False):
        """Of full pages, by the query at n - 1. ahead: by its guess in the layer before, when its key is not there."""
        rows, result = self.cache.layers[layer], np.full(ceil_div(n, self.bs), -np.inf)
        q = rows.q[n - 1]
        if ahead:
            x = self.cache.layers[layer - 1].x[n - 1:n]
            q = self.model.rotate(self.model.heads(layer, "q_proj", x), [n - 1])[0]
        shared = self.p["groups"] == "layer"
        for page in range((n - 1 if ahead else n) // self.bs):
            bounds = []
            for kv in range(self.shape.kv_heads) if shared else [g]:
                k = rows.k[page * self.bs:(page + 1) * self.bs, kv]
                low, high = k.min(0), k.max(0)
                if self.p["digest"] == "cuboid-mean":
                    centre = (low + high) / 2
                    spread = np.abs(k - centre).mean(0)
                    low, high = centre - spread, centre + spread
                bounds += [bound(q[h], low, high) for h in self.heads(kv)]
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
            scores = self.scores(layer, g, n, self.p.get("prefetch_layers", 0) > 0 and layer > 0)
            alive = self.resident[layer][g]
            if pages <= budget:
                choices.append(Choice([], set(range(pages))))
                continue
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


class InfLLM(Method):
    def first_local(self, n):
        return max(0, n - self.p["local_tokens"]) // self.bs

    @classmethod
    def prefill(cls, model, ids, p):
        """In pieces; the queries of a piece share the blocks that their mean chooses among those that had left the
        window of the first. What leaves it while the piece is read is attended from there on as far away."""
        cache, hidden = Cache(), model.embed(ids)
        for layer in range(model.shape.layers):
            rows = LayerCache()
            rows.append(model.project(layer, hidden, np.arange(len(ids))))
            cache.layers.append(rows)
            reader = cls(model, cache, p)
            out, first = [], 0
            while first < len(ids):  # pieces end where the engine's own of 512 tokens do
                last = min(len(ids), (first // p["exc_block"] + 1) * p["exc_block"], (first // 512 + 1) * 512)
                chosen = reader.piece(layer, first, last)
                for n in range(first + 1, last + 1):
                    units = [u | set(range(reader.first_local(first + 1), ceil_div(n, reader.bs))) for u in chosen]
                    out.append(reader.attend(layer, units, n))
                first = last
            hidden = model.finish(layer, hidden, np.array(out))
        cache.hidden = hidden[-1]
        return cache

    def piece(self, layer, first, last):
        mean = self.cache.layers[layer].q_plain[first:last].mean(0, keepdims=True)
        choices = self.by_query(layer, first + 1, self.model.rotate(mean, [self.p["local_tokens"]])[0])
        return [choice.best() for choice in choices]

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
        return self.by_query(layer, n, self.fixed(layer, n))

    def by_query(self, layer, n, q):
        """q: turned to the fixed distance; it stands at n - 1."""
        rows, local = self.cache.layers[layer], self.first_local(n)
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

    def weights(self, layer, h, units, n):
        """Of one query head: tokens and the attention each gets."""
        rows, local, fixed, g = self.cache.layers[layer], self.first_local(n), self.fixed(layer, n), h // self.shape.group
        far = self.tokens(layer, g, {u for u in units if u < local}, n)
        near = self.tokens(layer, g, {u for u in units if u >= local}, n)
        t = np.concatenate([far, near])
        logits = np.concatenate([rows.k_plain[far, g] @ fixed[h], rows.k[near, g] @ rows.q[n - 1, h]])
        return t, softmax(logits / math.sqrt(self.shape.dim) + rows.bias[t, g])

    def attend(self, layer, units, n):
        v, out = self.cache.layers[layer].v, []
        for h in range(self.shape.query_heads):
            g = h // self.shape.group
            t, p = self.weights(layer, h, units[g], n)
            out.append(p @ v[t, g])
        return np.array(out)

    def hits(self, layer, g, units, n):
        there = super().hits(layer, g, units, n)
        if self.slots and self.slots.heads[layer, g].policy == "lru-s":
            self.rank_blocks(self.slots.heads[layer, g], layer, g, units, n)
        return there

    def rank_blocks(self, slots, layer, g, units, n):
        """What it received from the heads of its set, times the decay of every step since: the one worth least makes
        room, before all others what is not in the paper's cache. In 64ths of a step, as the program counts."""
        local = self.first_local(n)
        heads = self.heads(g) if self.p["groups"] == "head" else range(self.shape.query_heads)
        far = [u for u in units if min(local, ceil_div(self.p["init_tokens"], self.bs)) <= u < local]
        worth = dict.fromkeys(far, 0.0)
        for h in heads if far else ():
            t, p = self.weights(layer, h, units, n)
            for u in far:
                worth[u] += p[t // self.bs == u].sum()
        for u in units:
            later = math.log(worth[u]) / -math.log(self.p["score_decay"]) if u in far else 0
            slots.rank(u, 1e9 + round(64 * (n + later)) if u in far else 0)

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
                                      [:ceil_div(self.p["outlier_tokens"], self.bs)].tolist())
                                  for g in range(self.shape.kv_heads)])
        self.held = [[self.fetched(layer, g, choice.best()) for g, choice in enumerate(self.choose(layer, self.prompt))]
                     for layer in range(self.shape.layers)]

    def fetched(self, layer, g, units):
        """Chunks whose values come from the host."""
        return {u for u in units if u < self.chunks and u not in self.outliers[layer][g]}

    def hits(self, layer, g, units, n):
        before, self.held[layer][g] = self.held[layer][g], self.fetched(layer, g, units)
        return set(units) - (self.held[layer][g] - before)

    def choose(self, layer, n):
        rows, choices = self.cache.layers[layer], []
        for g in range(self.shape.kv_heads):
            held = sorted(set(range(self.chunks)) - self.outliers[layer][g])
            scores = np.full(ceil_div(n, self.bs), -np.inf)
            if held:
                scores[held] = np.max([softmax(self.landmarks[layer][held, g] @ rows.q[n - 1, h]
                                               / math.sqrt(self.shape.dim)) for h in self.heads(g)], 0)
            forced = self.outliers[layer][g] | set(range(self.chunks, ceil_div(n, self.bs)))
            choices.append(Choice([Pick(scores, set(held), ceil_div(self.p["budget_tokens"], self.bs), "query-aware")],
                                  forced))
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
