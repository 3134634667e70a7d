#!/usr/bin/env python3
"""Makes tests/golden/denoise: three tiny random checkpoints (SDAR's, LLaDA's and Dream's form) and what decoding them gives,
computed here in float64 from the papers' rules, apart from the engine. Needs numpy; with torch and transformers (--library)
the logits of LLaDA's and Dream's forward are compared with the library's Llama and Qwen2 layers run without a causal mask.

    python3 tools/make_denoise_reference.py tests/golden/denoise [--library]

Every forward has the smallest margin of the decisions that led to it: by how much a number would have to change to change
an id, the set that is written or a tile that is kept.
"""
import argparse
import json
import pathlib

import numpy as np

VOCAB, MASK, EOS = 64, 60, 1
HIDDEN, LAYERS, HEADS, KV_HEADS, DIM, FFN, THETA, EPS = 32, 2, 4, 2, 8, 48, 10000.0, 1e-6


def bf16(values):
    """Cut to bfloat16, so that every reader has the same numbers."""
    return (np.asarray(values, np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32)


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = (values.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


class Form:
    """What a family calls its tensors and what its layers have."""

    def __init__(self, kv_heads, bias, norms, names, layer, head, embedding, final):
        self.kv_heads, self.bias, self.norms = kv_heads, bias, norms
        self.names, self.layer, self.head, self.embedding, self.final = names, layer, head, embedding, final


LLAMA = {"in": "input_layernorm", "post": "post_attention_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
         "v": "self_attn.v_proj", "o": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj",
         "down": "mlp.down_proj", "qn": "self_attn.q_norm", "kn": "self_attn.k_norm"}
LLADA = {"in": "attn_norm", "post": "ff_norm", "q": "q_proj", "k": "k_proj", "v": "v_proj", "o": "attn_out",
         "gate": "ff_proj", "up": "up_proj", "down": "ff_out"}
FORMS = {
    "sdar": Form(KV_HEADS, False, True, LLAMA, "model.layers.", "lm_head", "model.embed_tokens", "model.norm"),
    "llada": Form(HEADS, False, False, LLADA, "model.transformer.blocks.", "model.transformer.ff_out",
                  "model.transformer.wte", "model.transformer.ln_f"),
    "dream": Form(KV_HEADS, True, False, LLAMA, "model.layers.", "lm_head", "model.embed_tokens", "model.norm"),
}


def config_of(family):
    if family == "llada":
        return {"architectures": ["LLaDAModelLM"], "model_type": "llada", "d_model": HIDDEN, "n_layers": LAYERS,
                "n_heads": HEADS, "n_kv_heads": HEADS, "mlp_hidden_size": FFN, "mlp_ratio": 4, "vocab_size": VOCAB,
                "embedding_size": VOCAB, "rms_norm_eps": EPS, "rope": True, "rope_theta": THETA,
                "rope_full_precision": True, "include_bias": False, "include_qkv_bias": False,
                "bias_for_layer_norm": False, "attention_layer_norm": False, "alibi": False, "input_emb_norm": False,
                "scale_logits": False, "activation_type": "silu", "block_type": "llama", "layer_norm_type": "rms",
                "weight_tying": False, "max_sequence_length": 1024, "mask_token_id": MASK, "eos_token_id": EOS,
                "pad_token_id": EOS, "multi_query_attention": None}
    config = {"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
              "num_key_value_heads": KV_HEADS, "intermediate_size": FFN, "vocab_size": VOCAB, "rms_norm_eps": EPS,
              "rope_theta": THETA, "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False,
              "max_position_embeddings": 1024, "mask_token_id": MASK, "bos_token_id": EOS, "eos_token_id": EOS}
    if family == "dream":
        return {"architectures": ["DreamModel"], "model_type": "Dream", "use_sliding_window": False, **config}
    return {"architectures": ["SDARForCausalLM"], "model_type": "sdar", "head_dim": DIM, "attention_bias": False,
            "block_size": 16, "use_sliding_window": False, **config}


def tensors_of(family, seed):
    form, random = FORMS[family], np.random.default_rng(seed)

    def matrix(rows, cols, scale=1.0):
        return bf16(random.normal(0, scale / np.sqrt(cols), (rows, cols)))

    def norm(n):
        return bf16(random.normal(1, 0.1, n))

    # A head of greater deviation: confidences from a few per cent to nearly one.
    t = {form.embedding + ".weight": bf16(random.normal(0, 1, (VOCAB, HIDDEN))), form.head + ".weight":
         matrix(VOCAB, HIDDEN, 2.5), form.final + ".weight": norm(HIDDEN)}
    for i in range(LAYERS):
        def put(part, values, kind="weight"):
            t[f"{form.layer}{i}.{form.names[part]}.{kind}"] = values
        put("in", norm(HIDDEN))
        put("post", norm(HIDDEN))
        for part, heads in (("q", HEADS), ("k", form.kv_heads), ("v", form.kv_heads)):
            put(part, matrix(heads * DIM, HIDDEN, 2.0 if part != "v" else 1.0))
            if form.bias:
                put(part, bf16(random.normal(0, 0.3, heads * DIM)), "bias")
        put("o", matrix(HIDDEN, HEADS * DIM))
        put("gate", matrix(FFN, HIDDEN))
        put("up", matrix(FFN, HIDDEN))
        put("down", matrix(HIDDEN, FFN))
        if form.norms:
            put("qn", norm(DIM))
            put("kn", norm(DIM))
    return t


def rms(x, weight):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight


def softmax(s):
    e = np.exp(s - s.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Reference:
    """A model in float64. Keys and values of a forward replace those of earlier ones; what may see what is the caller's."""

    def __init__(self, family, tensors):
        self.form, self.shifted = FORMS[family], family == "dream"
        self.w = {name: values.astype(np.float64) for name, values in tensors.items()}
        self.kv, self.masks, self.kept = {}, {}, {}

    def rotate(self, x, positions):
        angles = positions[:, None] * THETA ** (-2.0 * np.arange(DIM // 2) / DIM)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        a, b = x[..., :DIM // 2], x[..., DIM // 2:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def part(self, layer, name, x):
        stem = f"{self.form.layer}{layer}.{self.form.names[name]}"
        y = x @ self.w[stem + ".weight"].T
        return y + self.w[stem + ".bias"] if stem + ".bias" in self.w else y

    def norm(self, layer, name, x):
        return rms(x, self.w[f"{self.form.layer}{layer}.{self.form.names[name]}.weight"])

    def forward(self, ids, first, attend, total):
        """ids at positions first..; attend(layer, q [n, heads, d], keys and values [total, kv_heads, d]) -> [n, heads, d].
        Returns logits [n, vocab]."""
        n, positions = len(ids), np.arange(first, first + len(ids))
        x = self.w[self.form.embedding + ".weight"][np.asarray(ids)]
        for layer in range(LAYERS):
            h = self.norm(layer, "in", x)
            q = self.part(layer, "q", h).reshape(n, HEADS, DIM)
            k = self.part(layer, "k", h).reshape(n, self.form.kv_heads, DIM)
            v = self.part(layer, "v", h).reshape(n, self.form.kv_heads, DIM)
            if self.form.norms:
                q, k = self.norm(layer, "qn", q), self.norm(layer, "kn", k)
            q, k = self.rotate(q, positions), self.rotate(k, positions)
            keys, values = self.kv.setdefault(layer, [np.zeros((0,) + k.shape[1:])] * 2)
            if len(keys) < total:
                grow = np.zeros((total - len(keys),) + k.shape[1:])
                keys, values = np.concatenate([keys, grow]), np.concatenate([values, grow])
            keys[first:first + n], values[first:first + n] = k, v
            self.kv[layer] = [keys, values]
            x = x + self.part(layer, "o", attend(layer, q, keys[:total], values[:total]).reshape(n, HEADS * DIM))
            h = self.norm(layer, "post", x)
            gate = self.part(layer, "gate", h)
            x = x + self.part(layer, "down", gate / (1 + np.exp(-gate)) * self.part(layer, "up", h))
        return rms(x, self.w[self.form.final + ".weight"]) @ self.w[self.form.head + ".weight"].T

    def everything(self, layer, q, keys, values, allowed=None):
        """allowed [heads, n, total] or None. Returns [n, heads, d]."""
        group = HEADS // self.form.kv_heads
        out = np.zeros_like(q)
        for head in range(HEADS):
            s = q[:, head] @ keys[:, head // group].T / np.sqrt(DIM)
            if allowed is not None:
                s = np.where(allowed[head], s, -np.inf)
            out[:, head] = softmax(s) @ values[:, head // group]
        return out


def candidates_of(logits):
    """id, probability, second probability, negative entropy and the margin of the id, over ids that may be written."""
    allowed = np.arange(VOCAB) < MASK
    s = np.where(allowed, logits, -np.inf)
    p = softmax(s)
    best = s.argmax(-1)
    ordered = np.sort(p, -1)
    raw = np.sort(s, -1)
    entropy = np.where(p > 0, p * np.log(p + 1e-10), 0).sum(-1)
    return best, p.max(-1), ordered[:, -2], entropy, raw[:, -1] - raw[:, -2]


def highest(ranks, positions, count):
    """The count highest, ties to the lower position, and by how much the last one leads the first that is left."""
    order = sorted(range(len(ranks)), key=lambda i: (-ranks[i], positions[i]))
    margin = ranks[order[count - 1]] - ranks[order[count]] if 0 < count < len(order) else np.inf
    return sorted(positions[i] for i in order[:count]), margin


def confident(confidence, positions, rule, value):
    order = sorted(range(len(positions)), key=lambda i: (-confidence[i], positions[i]))
    written, margin = [positions[order[0]]], np.inf
    if len(order) > 1:
        margin = confidence[order[0]] - confidence[order[1]]
    for j, i in enumerate(order[1:], 2):
        least = value if rule == "threshold" else 1 - value / (j + 1)
        margin = min(margin, abs(confidence[i] - least))
        if confidence[i] < least:
            break
        written.append(positions[i])
    return sorted(written), margin


def number(x):
    return None if not np.isfinite(x) else float(f"{x:.7g}")


def record(block, step, ids, positions, picked, confidence, written, margins, **more):
    return {"block": block, "step": step, "ids": [int(i) for i in ids], "masked": [int(p) for p in positions],
            "tokens": [int(i) for i in picked], "confidence": [number(c) for c in confidence],
            "written": [int(p) for p in written], "margin_token": number(min(margins[0], default=np.inf)),
            "margin_choice": number(margins[1]), **more}


def kept_outside(importance, kernel, count):
    """Indices of the `count` tokens of highest importance after a maximum over `kernel` neighbours, ties to the lower, and by
    how much an importance would have to change to change them. Tokens that share a maximum are equal by the rule."""
    reach = kernel // 2
    pooled = np.array([importance[max(0, i - reach):i + reach + 1].max() for i in range(len(importance))])
    order = sorted(range(len(pooled)), key=lambda i: (-pooled[i], i))
    if not 0 < count < len(order):
        return sorted(order[:count]), np.inf
    last = pooled[order[count - 1]]
    others = np.abs(importance[importance != last] - last)
    apart = others.min(initial=np.inf) if pooled[order[count]] == last else last - pooled[order[count]]
    return sorted(order[:count]), apart


def ranks_of(alg, conf, second, entropy):
    return {"maskgit_plus": conf, "topk_margin": conf - second, "entropy": entropy}[alg]


def run_evicting(model, prompt, length, o):
    """LLaDA's loop, where a block's third forward and those after it attend to what its second one kept (Sparse-dLLM). On
    Dream's models a block's first forward writes the block's first token, and the others go by `alg`."""
    block, steps = o["block_length"], o.get("steps", length) or length
    shared, group = steps // (length // block), HEADS // model.form.kv_heads
    x, start, forwards = list(prompt) + [MASK] * length, len(prompt), []
    total = len(x)
    masked = [False] * start + [True] * length
    for b in range(length // block):
        s, e = start + b * block, start + (b + 1) * block
        outside = np.array([p for p in range(total) if not s <= p < e])
        count, kept, step = int(len(outside) * o["ratio"]), {}, 0
        while any(masked[s:e]):
            layers = []

            def attend(layer, q, keys, values):
                if step < 2:
                    layers.append({"mode": "dense"})
                if step == 1:
                    mean = q[s:e].mean(0)
                    products = np.array([keys[:, head // group] @ mean[head] for head in range(HEADS)]).mean(0)
                    chosen, margin = kept_outside(products[outside], o["kernel"], count)
                    kept[layer] = outside[chosen], margin
                if step < 2:
                    return model.everything(layer, q, keys, values)
                positions, margin = kept[layer]
                layers.append({"mode": "sparse", "pages": [[int(p) for p in positions]] * model.form.kv_heads,
                               "density": [len(positions) / len(outside)] * model.form.kv_heads,
                               "margin_kept": number(margin)})
                allowed = np.zeros((HEADS, len(q), len(keys)), bool)
                allowed[:, :, positions] = allowed[:, :, s:e] = True
                return model.everything(layer, q, keys, values, allowed)

            first, last = (0, total) if step < 2 else (s, e)
            logits = model.forward(x[first:last], first, attend, total)
            positions = [p for p in range(s, e) if masked[p]]
            shift = 1 if model.shifted else 0
            picked, conf, second, entropy, lead = candidates_of(logits[[p - shift - first for p in positions]])
            quota = block // shared + (1 if step < block % shared else 0) if step < shared else 0
            ranks = ranks_of(o["alg"], conf, second, entropy) if model.shifted else conf
            if model.shifted and step == 0:
                written, margin = [s], np.inf
            else:
                written, margin = highest(ranks, positions, min(max(1, quota), len(positions)))
            forwards.append(record(b, step, x[s:e], positions, picked, conf, written, (lead, margin), layers=layers))
            for p, token in zip(positions, picked):
                if p in written:
                    x[p], masked[p] = int(token), False
            step += 1
    return x[start:], forwards


class Plain:
    """Forwards of a whole canvas in which every token sees every other one."""

    def __init__(self, model, prompt, total, o):
        self.model, self.prompt, self.total, self.o, self.count = model, prompt, total, o, -1

    def __call__(self, x):
        """Logits [total, vocab] of the run's next forward, and what its layers did or None."""
        self.count += 1
        return self.model.forward(x, 0, self.model.everything, self.total), None


class Tiles(Plain):
    """SparseD: forward e, counted from 0, makes a mask of tiles for every query head; those after it attend under it."""

    def __call__(self, x):
        self.count += 1
        self.layers = []
        return self.model.forward(x, 0, self.attend, self.total), self.layers

    def attend(self, layer, q, keys, values):
        steps = self.o.get("steps", 0) or self.total - self.prompt
        last_dense = int(steps * self.o["skip"]) + 1
        if self.count > last_dense:
            return self.masked(layer, q, keys, values)
        self.layers.append({"mode": "dense"})
        if self.count == last_dense:
            self.make(layer, q, keys)
        return self.model.everything(layer, q, keys, values)

    def make(self, layer, q, keys):
        tile, group = self.o["tile"], HEADS // self.model.form.kv_heads
        tiles = -(-self.total // tile)
        begin = min(-(-self.prompt // tile), tiles - 1)
        by = HEADS if self.o.get("scale") == "reference" and not self.model.shifted else DIM
        mask, margin = np.zeros((HEADS, tiles, tiles), bool), np.inf

        def best(p, first, row):
            numbers = list(range(first, tiles))
            a = [p[row * tile:(row + 1) * tile, (j - first) * tile:(j - first + 1) * tile].sum() for j in numbers]
            kept = min(len(numbers), max(1, int(len(numbers) * self.o["select"]) + 1))
            return highest(np.array(a), numbers, kept)

        for head in range(HEADS):
            scores = q[:, head] @ keys[:, head // group].T / np.sqrt(by)
            p, own = softmax(scores), softmax(scores[:, begin * tile:])
            for row in range(tiles):
                of_all, lead = best(p, 0, row)
                of_generated, own_lead = best(own, begin, row)
                mask[head, row, [j for j in of_all if j < begin]] = True
                mask[head, row, of_generated] = True
                margin = min(margin, lead, own_lead)
        self.model.masks[layer] = mask, margin

    def masked(self, layer, q, keys, values):
        tile, group, total = self.o["tile"], HEADS // self.model.form.kv_heads, self.total
        mask, margin = self.model.masks[layer]
        of_tile = np.minimum(tile, total - np.arange(mask.shape[1]) * tile)
        pages = [np.flatnonzero(mask[g * group:(g + 1) * group].any((0, 1))) for g in range(self.model.form.kv_heads)]
        self.layers.append({"mode": "sparse", "pages": [[int(i) for i in own] for own in pages],
                            "density": [number(of_tile[own].sum() / total) for own in pages],
                            "rows": [[[number(of_tile[row].sum() / total) for row in mask[h]]
                                      for h in range(g * group, (g + 1) * group)]
                                     for g in range(self.model.form.kv_heads)], "margin_tile": number(margin)})
        allowed = mask.repeat(tile, 1).repeat(tile, 2)[:, :total, :total]
        return self.model.everything(layer, q, keys, values, allowed)


def least_alike(likeness, start, count):
    """The positions of least likeness, ties to the lower one, and the margin as an angle. What is closer to 1 than 1e-12 is
    1: the same values."""
    same = likeness > 1 - 1e-12
    angles = np.where(same, 0.0, np.sqrt(2 * (1 - likeness)))
    chosen, margin = highest(angles, list(range(start, start + len(angles))), count)
    return chosen, margin if margin > 0 else (angles[~same] - np.sqrt(2e-12)).min(initial=np.inf)


class Features(Plain):
    """dLLM-Cache: a layer adds to a token that it does not compute what it added to it before."""

    def __call__(self, x):
        self.count += 1
        model, o, start, total = self.model, self.o, self.prompt, self.total
        kv_heads, layers = model.form.kv_heads, []
        stream = model.w[model.form.embedding + ".weight"][np.asarray(x)]
        for layer in range(LAYERS):
            if self.count == 0:
                model.kept[layer] = {"k": np.zeros((total, kv_heads, DIM)), "v": np.zeros((total, kv_heads, DIM)),
                                     "computed_v": np.zeros((total, kv_heads, DIM)),
                                     "attention": np.zeros((total, HIDDEN)), "mlp": np.zeros((total, HIDDEN))}
            of = model.kept[layer]
            h, margin = model.norm(layer, "in", stream), np.inf
            v = model.part(layer, "v", h).reshape(total, kv_heads, DIM)
            computed = list(range(start)) if layer == 0 or self.count % o["prompt_interval_steps"] == 0 else []
            if layer == 0 or self.count % o["gen_interval_steps"] == 0:
                computed += range(start, total)
            elif o["transfer_ratio"] > 0:
                with_what = of["computed_v" if o.get("reference") == "last_recomputed" else "v"]
                a, b = v[start:].reshape(total - start, -1), with_what[start:].reshape(total - start, -1)
                likeness = (a * b).sum(-1) / (np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
                chosen, margin = least_alike(likeness, start, int((total - start) * o["transfer_ratio"]))
                computed += chosen
                of["v"][start:] = v[start:]
            at = np.array(computed, int)
            q = model.rotate(model.part(layer, "q", h[at]).reshape(len(at), HEADS, DIM), at)
            of["k"][at] = model.rotate(model.part(layer, "k", h[at]).reshape(len(at), kv_heads, DIM), at)
            of["v"][at] = of["computed_v"][at] = v[at]
            attended = model.everything(layer, q, of["k"], of["v"]).reshape(len(at), HEADS * DIM)
            of["attention"][at] = model.part(layer, "o", attended)
            stream = stream + of["attention"]
            h = model.norm(layer, "post", stream[at])
            gate = model.part(layer, "gate", h)
            of["mlp"][at] = model.part(layer, "down", gate / (1 + np.exp(-gate)) * model.part(layer, "up", h))
            stream = stream + of["mlp"]
            if len(at) == total:
                layers.append({"mode": "dense"})
            else:
                layers.append({"mode": "sparse", "pages": [computed] * kv_heads,
                               "density": [number(len(at) / total)] * kv_heads, "margin_value": number(margin)})
        return rms(stream, model.w[model.form.final + ".weight"]) @ model.w[model.form.head + ".weight"].T, layers


def whole_forwards(model, start, total, o):
    kind = Tiles if "tile" in o else Features if o.get("cache") == "dllm" else Plain
    return kind(model, start, total, o)


def noted(layers):
    return {} if layers is None else {"layers": layers}


def run_llada(model, prompt, length, o):
    block, steps = o.get("block_length", length) or length, o.get("steps", length) or length
    shared = steps // (length // block)
    x, start, forwards = list(prompt) + [MASK] * length, len(prompt), []
    masked = [False] * start + [True] * length
    whole = whole_forwards(model, start, len(x), o)
    for b in range(length // block):
        s, e = start + b * block, start + (b + 1) * block
        step = 0
        while any(masked[s:e]):
            first, layers = 0, None
            if step > 0 and o.get("cache", "none") in ("prefix", "dual"):
                first, last = s, e if o["cache"] == "dual" else len(x)
                logits = model.forward(x[first:last], first, model.everything, len(x))
            else:
                logits, layers = whole(x)
            positions = [p for p in range(s, e) if masked[p]]
            picked, conf, _, _, lead = candidates_of(logits[[p - first for p in positions]])
            if o.get("parallel", "none") == "none":
                count = block // shared + (1 if step < block % shared else 0)
                written, margin = highest(conf, positions, min(count, len(positions)))
            else:
                written, margin = confident(conf, positions, o["parallel"], o[o["parallel"]])
            forwards.append(record(b, step, x[s:e], positions, picked, conf, written, (lead, margin), **noted(layers)))
            for p, token in zip(positions, picked):
                if p in written:
                    x[p], masked[p] = int(token), False
            step += 1
    return x[start:], forwards


def run_dream(model, prompt, length, o):
    steps, eps = o.get("steps", length) or length, o.get("eps", 1e-3)
    x, start, forwards = list(prompt) + [MASK] * length, len(prompt), []
    masked = [False] * start + [True] * length
    step, whole = 0, whole_forwards(model, start, len(x), o)
    while any(masked):
        logits, layers = whole(x)
        shifted = np.concatenate([logits[:1], logits[:-1]])
        positions = [p for p in range(len(x)) if masked[p]]
        picked, conf, second, entropy, lead = candidates_of(shifted[positions])
        ranks = ranks_of(o["alg"], conf, second, entropy)
        t = [1 + (eps - 1) * i / steps for i in range(steps + 1)]
        count = len(positions) if step + 1 >= steps else int(len(positions) * (1 - t[step + 1] / t[step]))
        if o.get("parallel", "none") == "none":
            written, margin = highest(ranks, positions, count)
        else:
            written, margin = confident(conf, positions, o["parallel"], o[o["parallel"]])
        forwards.append(record(0, step, x[start:], positions, picked, conf, written, (lead, margin), **noted(layers)))
        for p, token in zip(positions, picked):
            if p in written:
                x[p], masked[p] = int(token), False
        step += 1
    return x[start:], forwards


def run_dream_cached(model, prompt, length, o):
    """Fast-dLLM on Dream, block by block: a block's first forward reads everything and writes the block's first token, whose
    logits stand before the block; the others read the block (dual) or the block and what follows (prefix), with the keys and
    values that all else had in the first one. In a block the noise falls as in Dream's loop in the whole canvas."""
    block, eps = o.get("block_length", length) or length, o.get("eps", 1e-3)
    share_of = (o.get("steps", length) or length) // (length // block)
    t = [1 + (eps - 1) * i / share_of for i in range(share_of + 1)]
    x, start, forwards = list(prompt) + [MASK] * length, len(prompt), []
    masked = [False] * start + [True] * length
    for b in range(length // block):
        s, e, step = start + b * block, start + (b + 1) * block, 0
        while any(masked[s:e]):
            first, last = (0, len(x)) if step == 0 else (s, e if o["cache"] == "dual" else len(x))
            logits = model.forward(x[first:last], first, model.everything, len(x))
            positions = [p for p in range(s, e) if masked[p]]
            picked, conf, second, entropy, lead = candidates_of(logits[[p - 1 - first for p in positions]])
            if step == 0:
                written, margin = [s], np.inf
            elif o.get("parallel", "none") != "none":
                written, margin = confident(conf, positions, o["parallel"], o[o["parallel"]])
            else:
                final = step + 1 >= share_of
                count = len(positions) if final else int(len(positions) * (1 - t[step + 1] / t[step]))
                written, margin = highest(ranks_of(o["alg"], conf, second, entropy), positions, count)
            forwards.append(record(b, step, x[s:e], positions, picked, conf, written, (lead, margin)))
            for p, token in zip(positions, picked):
                if p in written:
                    x[p], masked[p] = int(token), False
            step += 1
    return x[start:], forwards


def mean_square_change(now, before):
    """Of each token, over its heads and channels; below 1e-10 of its mean square it is 0."""
    n = len(now)
    now, before = now.reshape(n, -1), before.reshape(n, -1)
    change, size = ((now - before) ** 2).mean(-1), (now ** 2).mean(-1)
    return [number(c) for c in np.where(change < 1e-10 * size, 0, change)]


def run_full(model, prompt, length, o):
    """SDAR's loop, low_confidence_static, dense, with the changes of queries, keys and values."""
    return run_sparsed(model, prompt, length, {**o, "tile": 16, "budget": 1, "skip": 1}, changes=True)


def run_sparsed(model, prompt, length, o, changes=False):
    """SDAR's loop, low_confidence_static, with SparseD's mask over the prefix."""
    b, tile, budget, skip = o["block"], o["tile"], o["budget"], o["skip"]
    steps = o.get("steps", b) or b
    dense_until, forwards = int(steps * skip) + 1, []
    filled, total = len(prompt) // b * b, (len(prompt) + length + b - 1) // b * b

    def causal(layer, q, keys, values):
        rows = np.arange(len(q))[:, None] // b >= np.arange(len(keys))[None] // b
        return model.everything(layer, q, keys, values, np.broadcast_to(rows, (HEADS,) + rows.shape))

    if filled:
        model.forward(prompt[:filled], 0, causal, filled)
    x = list(prompt)
    for s in range(filled, total, b):
        x = x[:s + b] + [MASK] * (s + b - len(x))
        masked = [p >= len(prompt) for p in range(s, s + b)]
        masks, tiles, rows, before = {}, -(-s // tile), -(-b // tile), {}
        step, clean = 0, False
        while True:
            layers = []
            make, sparse = step + 1 == dense_until and s > 0 and not clean, step + 1 > dense_until and s > 0 and (
                not clean or o.get("final") == "reuse")

            def attend(layer, q, keys, values):
                group = HEADS // model.form.kv_heads
                margin = np.inf
                if make:
                    mask = np.zeros((HEADS, rows, tiles), bool)
                    kept = min(tiles, tiles * budget // s + 1)
                    by = HEADS if o.get("scale") == "reference" else DIM
                    for head in range(HEADS):
                        p = softmax(q[:, head] @ keys[:s, head // group].T / np.sqrt(by))
                        for row in range(rows):
                            a = np.array([p[row * tile:(row + 1) * tile, j * tile:(j + 1) * tile].sum()
                                          for j in range(tiles)])
                            chosen, lead = highest(a, list(range(tiles)), kept)
                            margin = min(margin, lead)
                            mask[head, row, chosen] = True
                    masks[layer] = (mask, margin)
                if not sparse:
                    now = {"delta": q, "delta_keys": keys[s:].copy(), "delta_values": values[s:].copy()}
                    more = {key: mean_square_change(now[key], before[layer][key]) for key in now} if changes and step else {}
                    before[layer] = now
                    layers.append({"mode": "dense", **more})
                    return model.everything(layer, q, keys, values)
                mask, margin = masks[layer]
                of_tile = np.minimum(tile, s - np.arange(tiles) * tile)
                pages = [np.flatnonzero(mask[g * group:(g + 1) * group].any((0, 1))) for g in range(model.form.kv_heads)]
                layers.append({"mode": "sparse", "pages": [[int(i) for i in own] for own in pages],
                               "density": [float(of_tile[own].sum() / s) for own in pages],
                               "rows": [[[float(of_tile[mask[h, r]].sum() / s) for r in range(rows)]
                                         for h in range(g * group, (g + 1) * group)]
                                        for g in range(model.form.kv_heads)], "margin_tile": number(margin)})
                allowed = np.ones((HEADS, b, s + b), bool)
                for head in range(HEADS):
                    for i in range(b):
                        allowed[head, i, :s] = np.repeat(mask[head, i // tile], tile)[:s]
                return model.everything(layer, q, keys, values, allowed)

            logits = model.forward(x[s:s + b], s, attend, s + b)
            ids = x[s:s + b]
            if clean:
                forwards.append(record(s // b, step, ids, [], [], [], [], ([], np.inf), layers=layers))
                break
            positions = [s + i for i in range(b) if masked[i]]
            picked, conf, _, _, lead = candidates_of(logits[[p - s for p in positions]])
            count = b // steps + (1 if step < b % steps else 0)
            written, margin = highest(conf, positions, max(1, min(count, len(positions))))
            forwards.append(record(s // b, step, ids, positions, picked, conf, written, (lead, margin), layers=layers))
            for p, token in zip(positions, picked):
                if p in written:
                    x[p], masked[p - s] = int(token), False
            clean, step = not any(masked), step + 1
    return x[len(prompt):len(prompt) + length], forwards


RUNS = [
    ("sdar", "sparsed", 140, 40, {"block": 16, "tile": 16, "budget": 48, "skip": 0.2}),
    ("sdar", "sparsed", 203, 40, {"block": 32, "tile": 16, "budget": 40, "skip": 0.3, "final": "reuse"}),
    ("sdar", "sparsed", 100, 24, {"block": 8, "tile": 32, "budget": 33, "skip": 0, "steps": 4, "scale": "reference"}),
    ("llada", "full", 37, 16, {}),
    ("llada", "full", 70, 32, {"block_length": 8, "steps": 16}),
    ("llada", "full", 20, 24, {"block_length": 8, "steps": 15}),
    ("llada", "full", 41, 32, {"block_length": 16, "cache": "prefix"}),
    ("llada", "full", 41, 32, {"block_length": 16, "cache": "dual", "steps": 16}),
    ("llada", "full", 33, 32, {"block_length": 16, "cache": "dual", "parallel": "threshold", "threshold": 0.5}),
    ("llada", "full", 33, 32, {"block_length": 32, "parallel": "factor", "factor": 1.5}),
    ("dream", "full", 45, 20, {"alg": "maskgit_plus"}),
    ("dream", "full", 66, 24, {"alg": "topk_margin", "steps": 8}),
    ("dream", "full", 30, 24, {"alg": "entropy", "steps": 30, "eps": 0.01}),
    ("llada", "sparse-dllm", 41, 32, {"block_length": 16, "ratio": 0.5, "kernel": 3}),
    ("llada", "sparse-dllm", 100, 32, {"block_length": 8, "ratio": 0.2, "kernel": 5, "steps": 16}),
    ("llada", "sparse-dllm", 30, 24, {"block_length": 12, "ratio": 0.7, "kernel": 1}),
    ("llada", "sparsed", 70, 32, {"block_length": 16, "tile": 16, "select": 0.3, "skip": 0.2}),
    ("llada", "sparsed", 41, 24, {"block_length": 8, "tile": 32, "select": 0.2, "skip": 0, "scale": "reference", "steps": 12}),
    ("llada", "sparsed", 20, 8, {"block_length": 8, "tile": 64, "select": 0.1, "skip": 0.1}),
    ("dream", "sparsed", 90, 24, {"alg": "maskgit_plus", "tile": 16, "select": 0.25, "skip": 0.1, "steps": 12}),
    ("dream", "sparsed", 52, 20, {"alg": "entropy", "tile": 16, "select": 0.4, "skip": 0.3, "scale": "reference"}),
    ("dream", "sparse-dllm", 41, 32, {"block_length": 16, "ratio": 0.5, "kernel": 3, "alg": "entropy"}),
    ("dream", "sparse-dllm", 60, 24, {"block_length": 8, "ratio": 0.3, "kernel": 5, "alg": "maskgit_plus", "steps": 12}),
    ("dream", "sparse-dllm", 33, 24, {"block_length": 12, "ratio": 0.7, "kernel": 1, "alg": "topk_margin"}),
    ("llada", "full", 41, 32, {"block_length": 8, "cache": "dllm", "prompt_interval_steps": 5, "gen_interval_steps": 3,
                               "transfer_ratio": 0.25}),
    ("llada", "full", 30, 24, {"cache": "dllm", "prompt_interval_steps": 7, "gen_interval_steps": 5, "transfer_ratio": 0.3,
                               "reference": "last_recomputed"}),
    ("llada", "full", 25, 24, {"block_length": 12, "cache": "dllm", "prompt_interval_steps": 3, "gen_interval_steps": 100,
                               "transfer_ratio": 0.2, "parallel": "threshold", "threshold": 0.5}),
    ("dream", "full", 45, 20, {"alg": "maskgit_plus", "cache": "dllm", "prompt_interval_steps": 4, "gen_interval_steps": 6,
                               "transfer_ratio": 0.2}),
    ("dream", "full", 35, 24, {"alg": "entropy", "steps": 12, "cache": "dllm", "prompt_interval_steps": 5,
                               "gen_interval_steps": 2, "transfer_ratio": 0}),
    ("sdar", "full", 75, 24, {"block": 8}),
    ("sdar", "full", 40, 32, {"block": 16, "steps": 5}),
    ("dream", "full", 41, 32, {"alg": "maskgit_plus", "block_length": 16, "cache": "prefix"}),
    ("dream", "full", 41, 32, {"alg": "entropy", "block_length": 8, "cache": "dual", "steps": 16}),
    ("dream", "full", 33, 24, {"alg": "topk_margin", "block_length": 12, "cache": "dual", "eps": 0.01}),
    ("dream", "full", 60, 24, {"alg": "entropy", "block_length": 24, "cache": "prefix", "steps": 9}),
    ("dream", "full", 33, 32, {"alg": "maskgit_plus", "block_length": 16, "cache": "dual", "parallel": "threshold",
                               "threshold": 0.5}),
    ("dream", "full", 50, 32, {"alg": "maskgit_plus", "block_length": 8, "cache": "prefix", "parallel": "factor",
                               "factor": 1.5}),
    ("dream", "full", 33, 24, {"alg": "maskgit_plus", "parallel": "threshold", "threshold": 0.4}),
]


# Below these a decision could fall otherwise in float32. A logit, a probability, attention summed over a tile, a
# product of a query and a key, an angle.
LEAST = {"margin_token": 5e-4, "margin_choice": 1e-4, "margin_tile": 1e-5, "margin_kept": 1e-4, "margin_value": 1e-5}


def least_margins(forwards):
    of = {key: [f[key] for f in forwards] for key in ("margin_token", "margin_choice")}
    for key in ("margin_tile", "margin_kept", "margin_value"):
        of[key] = [layer.get(key) for f in forwards for layer in f.get("layers", [])]
    return {key: min((v for v in values if v is not None), default=np.inf) for key, values in of.items()}


def compare_with_library(family, model, tensors):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
    config = dict(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, vocab_size=VOCAB,
                  num_key_value_heads=FORMS[family].kv_heads, intermediate_size=FFN, rms_norm_eps=EPS,
                  max_position_embeddings=1024, tie_word_embeddings=False,
                  rope_parameters={"rope_type": "default", "rope_theta": THETA}, attn_implementation="eager")
    net = (LlamaForCausalLM(LlamaConfig(**config)) if family == "llada" else Qwen2ForCausalLM(Qwen2Config(**config)))
    net = net.double().eval()
    names = {form: other for form, other in zip(LLADA.values(), LLAMA.values())} if family == "llada" else {}
    state = {}
    for name, values in tensors.items():
        if family == "llada":
            name = name.replace("model.transformer.ff_out", "lm_head").replace("model.transformer.wte", "model.embed_tokens")
            name = name.replace("model.transformer.ln_f", "model.norm")
            if name.startswith("model.transformer.blocks."):
                _, _, _, layer, part, kind = name.split(".")
                name = f"model.layers.{layer}.{names[part]}.{kind}"
        state[name] = torch.tensor(values.astype(np.float64))
    print(net.load_state_dict(state, strict=False))
    ids = np.random.default_rng(5).integers(2, VOCAB, 50)
    with torch.no_grad():
        all_see_all = torch.zeros(1, 1, len(ids), len(ids), dtype=torch.float64)
        got = net(torch.tensor(ids)[None], attention_mask=all_see_all).logits[0].numpy()
    want = model.forward(ids, 0, model.everything, len(ids))
    print(f"{family}: largest difference to the library {np.abs(got - want).max():.2e} of {np.abs(want).max():.2f}")


def loop_of(family, method, options):
    if method == "sparse-dllm":
        return run_evicting
    if family == "dream":
        return run_dream_cached if options.get("cache") in ("prefix", "dual") else run_dream
    return run_llada if family == "llada" else run_sparsed if method == "sparsed" else run_full


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--library", action="store_true", help="compare forwards with transformers as well")
    args = parser.parse_args()
    tensors = {}
    for seed, family in enumerate(FORMS):
        folder = args.folder / family
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config_of(family), indent=1) + "\n")
        tensors[family] = tensors_of(family, seed + 11)
        write_safetensors(folder / "model.safetensors", tensors[family])
        if args.library and family != "sdar":
            compare_with_library(family, Reference(family, tensors[family]), tensors[family])
    with (args.folder / "runs.jsonl").open("w") as file:
        for i, (family, method, tokens, length, options) in enumerate(RUNS):
            for seed in range(100 + i, 100 + i + 50 * 13, 13):  # the first prompt that decides nothing closely
                prompt = [int(t) for t in np.random.default_rng(seed).integers(2, MASK, tokens)]
                loop = loop_of(family, method, options)
                made, forwards = loop(Reference(family, tensors[family]), prompt, length, options)
                least = least_margins(forwards)
                if all(least[key] >= bound for key, bound in LEAST.items()):
                    break
            print(family, options, len(forwards), "forwards, seed", seed, "least margins", least)
            json.dump({"name": f"{family}_{i}", "family": family, "method": method, "prompt_ids": prompt,
                       "max_new_tokens": length, "options": options, "generated_ids": made, "forwards": forwards},
                      file, separators=(",", ":"))
            file.write("\n")


if __name__ == "__main__":
    main()
