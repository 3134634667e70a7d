#!/usr/bin/env python3
"""Evaluate checkpoints on one GPU: perplexity, retrieval, far attention held, locality, Forecast recall.

    evaluate.py --data DATA --out RESULT.json nosa=MODEL.safetensors [nosa-older=... infllmv2=... dma=...]

Weights are the bf16 ones of the checkpoint.  A prefill marked F attends to every
earlier token and only the answer is decoded sparsely; S is sparse from the start.
What takes long comes last; the result holds whatever is done.
"""
import argparse
import itertools
import json
import os

import numpy as np
import torch
from tokenizers import Tokenizer

import sparse_attention as sa
from batches import Synthetic
from losses import NEG, block_mass, free_blocks, pool, query_aware_scores, take, two_picks, visible_windows
from model import Model, base_config, shifted
from nosa_reference import load_safetensors
from synthetic import magic_prompt, passkey_prompt
from train import LONG, SHORT, THETA_LONG

PERPLEXITY_LENGTHS, FAR_LENGTHS, RETRIEVAL_LENGTHS = (SHORT, LONG), (8192, LONG), (4096, 8192, LONG)


def perplexity(model, ids, length, method, bias, sequences):
    total, count, batch = 0.0, 0, max(1, 65536 // length)
    for n in range(max(1, sequences // batch)):
        at = n * batch * length
        if at + batch * length > len(ids):
            break
        x = ids[at:at + batch * length].view(batch, length).long().clone()
        y = torch.cat((x[:, 1:], x[:, :1]), 1)
        x[:, 0] = 0
        h, _ = model.sparse_forward(x, method, bias)
        for row in range(batch):
            logp = model.logits(h[row]).log_softmax(-1)
            total -= logp[:-1].gather(-1, y[row, :-1, None]).sum().item()
            count += length - 1
    return float(np.exp(total / count))


def short_documents(ids, most=6000):
    """The documents of less than `most` tokens, one after the other: no piece of a longer one, cut by other seeds once."""
    ends = np.flatnonzero(ids == 1) + 1
    return np.concatenate([part for part in np.split(ids, ends) if len(part) < most])


def exact_match(model, prompts, method, bias, full_prefill, batch=4):
    """Share of prompts whose whole answer is decoded greedily (checked in one teacher-forced pass)."""
    right = 0
    for lo in range(0, len(prompts), batch):
        part = prompts[lo:lo + batch]
        size = len(part[0][0]) + len(part[0][1])
        size += -size % 64
        ids = torch.zeros(len(part), size, dtype=torch.long, device=model.device)
        for row, (prompt, answer) in enumerate(part):
            ids[row, :len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        dense = torch.tensor([len(p) for p, _ in part], device=model.device) if full_prefill else None
        h, _ = model.sparse_forward(ids, method, bias, dense_rows=dense)
        for row, (prompt, answer) in enumerate(part):
            at = len(prompt) - 1
            guess = model.logits(h[row, at:at + len(answer)]).argmax(-1).tolist()
            right += guess == answer
    return right / len(prompts)


def retrieval_prompts(natural, encode, length, count):
    """Prompts of one length, by task: a pass key at five depths, one of 4 and one of 16 keys."""
    rng = np.random.default_rng(length)
    sets = {f"passkey@{d}": [passkey_prompt(rng, natural, encode, 0, length, d) for _ in range(count(20))]
            for d in (0.05, 0.25, 0.5, 0.75, 0.95)}
    for keys in (4, 16):
        sets[f"magic{keys}"] = [magic_prompt(rng, natural, encode, 0, length, keys) for _ in range(count(40))]
    return sets


def locality(model, ids, method, bias, start=2048):
    """gamma at every step and layer/KV head: (raw, the block just begun counted as resident)."""
    rows = {}

    def watch(i, h, q, k, b, sel):
        s = sel[0].bool()                                       # [G, NB, T]
        now, before = s[:, :, start:], s[:, :, start - 1:-1]
        size = now.sum(1).float()
        raw = (now & before).sum(1) / size
        t = torch.arange(start, s.shape[-1], device=s.device)
        fresh = (t % 64 == 0).float()
        rows[i] = (raw, raw + fresh / size)
    model.sparse_forward(ids[None], method, bias, watch=watch)
    out = {"mean": [], "min_raw": [], "min": [], "steps": int(len(ids) - start)}
    for i in range(8):
        raw, gamma = rows[i]
        out["mean"].append([round(v, 4) for v in gamma.mean(-1).tolist()])
        out["min_raw"].append([round(v, 4) for v in raw.amin(-1).tolist()])
        out["min"].append([round(v, 4) for v in gamma.amin(-1).tolist()])
    return out


FAR_COLUMNS = ("query-aware", "query-agnostic", "random", "best", "recent", "far of all")


def far_mass(model, ids, length, sequences, positions=256, first=1024, batch=4):
    """Who holds the far attention: shares of the mass outside sink and window, decoding with NOSA.

    At `positions` random queries of each sequence (from `first` on), for every
    layer and KV head, full attention is computed and its mass on the far blocks
    divided: the 4 query-aware blocks; the 7 query-agnostic ones; 7 random ones of
    what the query-aware choice left (their expectation); the 7 best of those (an
    upper bound that knows the answer); the 7 most recent of those (what a longer
    window would hold); and, last, the far share of all attention.  Shares are
    averaged over queries and heads with equal weight.
    """
    gen = torch.Generator(device=ids.device).manual_seed(length)
    layers = model.cfg["num_hidden_layers"]
    total, rounds = torch.zeros(layers, len(FAR_COLUMNS)), 0
    for n in range(max(1, sequences // batch)):
        at = n * batch * length
        if at + batch * length > len(ids):
            break
        x = ids[at:at + batch * length].view(batch, length).long().clone()
        x[:, 0] = 0
        pos = torch.randint(first, length, (batch, positions), generator=gen, device=ids.device)
        free = free_blocks(pos, length // 64)[:, None]

        def watch(i, h, q, k, b, sel):
            mass = block_mass(q, k, b, pos) * free
            aware, agnostic = two_picks(query_aware_scores(q, k, pos), sa.bias_scores(b), free)
            left = free & ~aware
            rest = torch.where(left, mass, 0.0)
            recent = torch.where(left, torch.arange(length // 64, device=pos.device).float(), -1.0).topk(7, -1)
            far = mass.sum(-1).clamp_min(1e-12)        # a head may look at nothing but sink and window
            shares = ((mass * aware).sum(-1), (mass * agnostic).sum(-1),
                      rest.sum(-1) * (7 / left.sum(-1)).clamp_max(1), rest.topk(7, -1).values.sum(-1),
                      (mass.gather(-1, recent.indices) * (recent.values >= 0)).sum(-1))
            total[i] += torch.stack([(s / far).mean() for s in shares] + [far.mean()]).cpu()
        model.sparse_forward(x, "nosa", watch=watch)
        rounds += 1
    total /= rounds
    return {"columns": FAR_COLUMNS, "layers": [[round(v, 4) for v in row] for row in total.tolist()],
            "mean": [round(v, 4) for v in total.mean(0).tolist()]}


def forecast_recall(model, batches, top_k=4):
    """Share of the true query-aware top-k blocks that the Forecast's top-k holds, per layer."""
    hits, counts = torch.zeros(8), torch.zeros(8)
    answer_hits, answer_counts = torch.zeros(8), torch.zeros(8)
    for ids, weight in batches:
        state = {}

        def watch(i, h, q, k, b, sel):
            f = model.forecast(0, h, "q_curr_proj") if i == 0 else state["f"]
            if i < 7:
                state["f"] = model.forecast(i, h, "q_future_proj")
            T = q.shape[2]
            pos = torch.arange(T, device=q.device)
            free = free_blocks(pos, T // 64)
            truth = torch.where(free, sa.block_scores(q, k), -1.0).topk(top_k, -1)
            kc = sa.window_means(k).to(q.dtype)
            s = (f @ kc.transpose(-1, -2)).float().masked_fill(~visible_windows(pos, kc.shape[2]), NEG)
            guess = torch.where(free, shifted(pool(s), free), -1.0).topk(top_k, -1).indices
            hit = (truth.indices[..., :, None] == guess[..., None, :]).any(-1).float().mean(-1)   # [B, G, T]
            hit = hit[..., 2048:]
            hits[i] += hit.sum().item()
            counts[i] += hit.numel()
            asked = (weight[:, 2048:] == 8.0)[:, None].expand_as(hit)
            answer_hits[i] += hit[asked].sum().item()
            answer_counts[i] += asked.sum().item()
        model.sparse_forward(ids, "nosa", watch=watch)
    return {"all": [round(v, 4) for v in (hits / counts).tolist()],
            "answers": [round(v, 4) for v in (answer_hits / answer_counts.clamp_min(1)).tolist()]}


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True, help="folder of heldout.npy, tokens.npy and tokenizer.json")
    ap.add_argument("--out", required=True, help="results, JSON, rewritten after every number")
    ap.add_argument("--scale", type=float, default=1.0, help="share of the prompts and sequences to use (default 1)")
    ap.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default cuda)")
    ap.add_argument("models", nargs="+", metavar="NAME=FILE",
                    help="nosa, infllmv2 or dma, and its weights; a hyphen and more tell two of a kind apart")
    args = ap.parse_args()
    torch.set_grad_enabled(False)
    tok = Tokenizer.from_file(os.path.join(args.data, "tokenizer.json"))
    encode = lambda t: tok.encode(t, add_special_tokens=False).ids
    natural = np.load(os.path.join(args.data, "heldout.npy"))
    held, short = (torch.from_numpy(x.astype(np.int16)).to(args.device) for x in (natural, short_documents(natural)))
    count = lambda n: max(4, int(n * args.scale) // 4 * 4)
    result = {}

    def note(*keys_and_value):
        *keys, value = keys_and_value
        node = result
        for key in keys[:-1]:
            node = node.setdefault(key, {})
        node[keys[-1]] = value
        json.dump(result, open(args.out, "w"), indent=1)

    for item in args.models:
        name, path = item.split("=")
        kind = name.split("-")[0]
        weights = load_safetensors(path)
        for i in range(8):
            weights.setdefault(f"model.layers.{i}.self_attn.A", torch.zeros(2))
            weights.setdefault(f"model.layers.{i}.self_attn.delta.weight", torch.zeros(2, 128))
        model = Model(weights, base_config(THETA_LONG), args.device, compile=False)
        has_forecast = "model.layers.0.self_attn.q_curr_proj.weight" in weights
        has_bias = any(weights[f"model.layers.{i}.self_attn.A"].abs().sum() > 0 for i in range(8))
        methods = ["full", "nosa", "dma", "infllmv2", "quest"] if kind == "nosa" else \
            (["full", kind] if kind in ("infllmv2", "dma") else ["full"])
        if has_forecast:
            methods.insert(3, "forecast")
        for length in PERPLEXITY_LENGTHS:
            for method in ("full", kind):
                note(name, "perplexity of short documents", str(length), method,
                     round(perplexity(model, short, length, method, has_bias, len(short) // length), 3))
        print(name, "short documents:", len(short), "tokens", result[name]["perplexity of short documents"], flush=True)
        for length in PERPLEXITY_LENGTHS:
            for method in methods:
                note(name, "perplexity", str(length), method,
                     round(perplexity(model, held, length, method, has_bias, count(128 if length == SHORT else 32)), 3))
            if has_bias:
                note(name, "perplexity", str(length), "full without bias",
                     round(perplexity(model, held, length, "full", False, count(128 if length == SHORT else 32)), 3))
            print(name, length, result[name]["perplexity"][str(length)], flush=True)
        if has_bias and kind == "nosa":
            for length in FAR_LENGTHS:
                note(name, "far_mass", str(length), far_mass(model, held, length, count(16)))
                print(name, "far mass", length, result[name]["far_mass"][str(length)]["mean"], flush=True)
        for method in ("nosa", "infllmv2", "dma", "forecast"):
            if method in methods:
                note(name, "locality", method, locality(model, held[:LONG].long(), method, has_bias))
                print(name, "locality", method, result[name]["locality"][method], flush=True)
        if has_forecast:
            gen = iter(Synthetic(args.data, LONG, 2, 8.0, 77))
            batches = []
            for _ in range(max(1, int(4 * args.scale))):
                ids, weight = next(gen)
                batches.append((ids[:, :-1].to(model.device).long(), weight[:, 1:].to(model.device)))
            note(name, "forecast_recall", forecast_recall(model, batches))
            print(name, "forecast recall", result[name]["forecast_recall"], flush=True)
        sets = {length: retrieval_prompts(natural, encode, length, count) for length in RETRIEVAL_LENGTHS}
        for method in methods:
            for length, full in itertools.product(sets, (True, False) if method != "full" else (False,)):
                label = method if method == "full" else method + (" F" if full else " S")
                for task, prompts in sets[length].items():
                    note(name, "retrieval", str(length), label, task, exact_match(model, prompts, method, has_bias, full))
                print(name, length, label, result[name]["retrieval"][str(length)][label], flush=True)


if __name__ == "__main__":
    main()
