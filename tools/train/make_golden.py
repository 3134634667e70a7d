#!/usr/bin/env python3
"""Golden fixtures from the float32 reference.

    make_golden.py MODELS_DIR OUT_DIR --prompts-from tests/golden [--check]
    make_golden.py MODELS_DIR OUT_DIR --heldout heldout.txt --seed N [--check]

MODELS_DIR holds nosa-tiny/ and, if there are any, infllmv2-tiny/ and dma-tiny/.
The prompts are those of earlier fixtures, or new ones: held-out text with
needles, chosen by the seed.  tests/golden/README.md describes every tensor.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch

from bpe import Tokenizer
from nosa_reference import Config, Reference, load_safetensors, save_safetensors
from synthetic import ADJECTIVES, NOUNS, number

STEPS, SCORED = 24, (0, 11, 23)
METHODS = ("nosa", "infllmv2", "dma", "quest", "forecast", "full")


def earlier_prompts(folder):
    """The prompts of the fixtures in `folder`: (name, ids, number asked for)."""
    with open(os.path.join(folder, "prompts.json")) as fh:
        report = json.load(fh)
    for name in ("short", "mid", "long"):
        fixture = load_safetensors(os.path.join(folder, f"golden_{name}.safetensors"))
        yield name, fixture["prompt_ids"].tolist(), report[name]["asked_for"]


def new_prompts(tok, heldout, seed):
    """short (below the budget), mid and long: natural text, needles, one question at the end."""
    with open(heldout, encoding="utf8") as fh:
        docs = [d for d in fh.read().split("\f") if len(d) > 4000]
    rng = np.random.default_rng(seed)
    for name, length, keys in (("short", 600, 1), ("mid", 3000, 4), ("long", 9000, 8)):
        pairs = []
        while len(pairs) < keys:
            who = f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"
            if who not in [p[0] for p in pairs]:
                pairs.append((who, number(rng)))
        needles = [tok.encode(f"\nThe magic number for {w} is {v}.\n") for w, v in pairs]
        who, value = pairs[int(rng.integers(keys))]
        ask = tok.encode(f"\nWhat is the magic number for {who}? The magic number for {who} is ")
        room = length - 1 - len(ask) - sum(map(len, needles))
        base = []
        while len(base) < room:
            base += tok.encode(docs[int(rng.integers(len(docs)))])
        start = int(rng.integers(0, len(base) - room + 1))
        base = base[start:start + room]
        ids, last = [0], 0
        for cut, needle in sorted(zip((rng.random(keys) * 0.9 * room).astype(int).tolist(), needles)):
            ids += base[last:cut] + needle
            last = cut
        yield name, ids + base[last:] + ask, value


def decode_all(model, token, method, layers):
    cfg, out = model.cfg, {}
    ids, logits, blocks, origin, qa_margin, ea_margin, gaps = [token], [], [], [], [], [], []
    scores = []
    for step in range(STEPS):
        row, picks = model.decode(ids[-1], method)
        logits.append(row)
        best = row.topk(2).values
        gaps.append(float(best[0] - best[1]))
        ids.append(int(row.argmax()))
        if method == "full":
            continue
        pad = lambda x: list(x) + [-1] * (cfg.budget - len(x))
        blocks.append([[pad(s.blocks) for s in layer] for layer in picks])
        origin.append([[pad(s.origin) for s in layer] for layer in picks])
        qa_margin.append([[s.qa_margin for s in layer] for layer in picks])
        ea_margin.append([[s.ea_margin for s in layer] for layer in picks])
        if step in SCORED:
            scores.append([[(s.qa_scores, s.ea_scores) for s in layer] for layer in picks])
    p = method + "."
    out[p + "generated_ids"] = np.asarray(ids, np.int32)
    out[p + "logits"] = torch.stack(logits).to(torch.float16).numpy()
    out[p + "logit_gap"] = np.asarray(gaps, np.float32)
    if method != "full":
        out[p + "blocks"] = np.asarray(blocks, np.int32)
        out[p + "origin"] = np.asarray(origin, np.int8)
        width = max(len(q) for s in scores for layer in s for q, _ in layer)
        for k, kind in ((0, "query_aware_scores"), (1, "query_agnostic_scores")):
            grid = np.full((len(SCORED), layers, cfg.kv_heads, width), -np.inf, np.float32)
            for a, s in enumerate(scores):
                for b, layer in enumerate(s):
                    for c, pair in enumerate(layer):
                        grid[a, b, c, :len(pair[k])] = pair[k].numpy()
            out[p + kind] = grid
        out[p + "query_aware_margin"] = np.asarray(qa_margin, np.float32)
        out[p + "query_agnostic_margin"] = np.asarray(ea_margin, np.float32)
    return out


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("models", help="folder of nosa-tiny/ and its siblings")
    ap.add_argument("out", help="folder for the fixtures")
    source = ap.add_mutually_exclusive_group(required=True)
    source.add_argument("--prompts-from", metavar="DIR", help="folder of earlier fixtures whose prompts to use again")
    source.add_argument("--heldout", metavar="FILE", help="held-out text for new prompts")
    ap.add_argument("--seed", type=int, default=2026, help="chooses new prompts (default 2026)")
    ap.add_argument("--check", action="store_true", help="also run in float64 and report the differences")
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.set_grad_enabled(False)
    folder = os.path.join(args.models, "nosa-tiny")
    tok = Tokenizer(os.path.join(folder, "tokenizer.json"))
    cfg = Config(os.path.join(folder, "config.json"))
    weights = load_safetensors(os.path.join(folder, "model.safetensors"))
    model = Reference(cfg, weights)
    # read before anything is written: OUT_DIR may be the folder the prompts come from
    chosen = list(earlier_prompts(args.prompts_from) if args.prompts_from else new_prompts(tok, args.heldout, args.seed))
    report = {}
    for name, ids, value in chosen:
        t0, out = time.time(), {"prompt_ids": np.asarray(ids, np.int32)}
        logits = model.prefill(ids)
        out["prefill.logits"] = logits.numpy()
        out["prefill.hidden"] = torch.stack(model.hidden_trace).numpy()
        out["prefill.bias"] = torch.stack(model.b).permute(0, 2, 1).contiguous().numpy()
        out["prefill.last_key"] = torch.stack([k[-1] for k in model.k]).numpy()
        out["prefill.last_value"] = torch.stack([v[-1] for v in model.v]).numpy()
        saved = model.clone_cache()
        answers = {}
        for method in METHODS:
            model.restore_cache(saved)
            out.update(decode_all(model, int(logits.argmax()), method, cfg.layers))
            answers[method] = tok.decode(out[method + ".generated_ids"].tolist())
        report[name] = {"prompt_tokens": len(ids), "asked_for": value, "continuations": answers}
        save_safetensors(os.path.join(args.out, f"golden_{name}.safetensors"), out, {
            "model": "nosa-tiny", "steps": STEPS, "scored_steps": ",".join(map(str, SCORED)), "answer": value})
        if args.check:
            double = Reference(cfg, weights, torch.float64)
            reference = double.prefill(ids)
            low = {"prefill_logits": float((reference - logits).abs().max())}
            saved = double.clone_cache()
            for method in METHODS:
                double.restore_cache(saved)
                other = decode_all(double, int(reference.argmax()), method, cfg.layers)
                low[method] = {"same_ids": bool((other[method + ".generated_ids"] == out[method + ".generated_ids"]).all()),
                               "logits": float(np.abs(other[method + ".logits"].astype(np.float32) -
                                                      out[method + ".logits"].astype(np.float32)).max())}
                if method != "full":
                    same = (other[method + ".blocks"] == out[method + ".blocks"]).all(-1)
                    low[method]["selections_that_differ"] = int((~same).sum())
                    low[method]["selections"] = int(same.size)
            report[name]["float64"] = low
        print(name, f"{time.time() - t0:.1f} s", json.dumps(report[name]), flush=True)
        if name == "mid":
            variants = {"prompt_ids": np.asarray(ids, np.int32)}
            for method in ("infllmv2", "dma"):
                sibling = os.path.join(args.models, method + "-tiny")
                if not os.path.isdir(sibling):
                    continue
                other = Reference(Config(os.path.join(sibling, "config.json")),
                                  load_safetensors(os.path.join(sibling, "model.safetensors")))
                first = other.prefill(ids)
                variants[f"{method}-tiny.prefill.logits"] = first.numpy()
                for key, array in decode_all(other, int(first.argmax()), method, cfg.layers).items():
                    variants[f"{method}-tiny.{key}"] = array
            if len(variants) > 1:
                save_safetensors(os.path.join(args.out, "golden_variants.safetensors"), variants)
    with open(os.path.join(args.out, "prompts.json"), "w") as fh:
        json.dump(report, fh, indent=1)


if __name__ == "__main__":
    main()
