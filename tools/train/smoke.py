#!/usr/bin/env python3
"""Check the trainer: kernels and selection, gradients of every loss, a few steps of each stage.

    smoke.py [--device cuda]

On a CPU (the default) everything runs in plain PyTorch on short sequences, in
about two minutes of processor time.  On a GPU the Triton kernels are checked against the same plain
PyTorch, and timed.  Exits with 1 at the first failure.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import losses
import sparse_attention as sa
from evaluate import far_mass
from model import BUDGETS, Model, base_config, eviction_scores, probe_eviction
from nosa_reference import Config, load_safetensors, select_blocks, window_means
from synthetic import TaskMaker
from train import LanguageModelStage

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZER = os.path.join(HERE, "..", "..", "resources", "models", "nosa-tiny", "tokenizer.json")


def require(truth, what):
    print(("ok      " if truth else "FAILED  ") + what, flush=True)
    if not truth:
        sys.exit(1)


def check_selection(device, T=2048, B=2):
    """Selections and attention against the reference model's selection and float32 attention."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(B, n, T, 64, device=device, dtype=dtype) for n in (6, 2, 2))
    bias = torch.randn(B, 2, T, device=device)
    cfg = Config(base_config())
    for method in ("nosa", "infllmv2", "dma"):
        aware, agnostic = BUDGETS[method]
        sel = sa.pick(sa.block_scores(q, k) if aware else None, sa.bias_scores(bias) if agnostic else None, 1, 4,
                      aware, agnostic)
        rows = wrong = 0
        for t in list(range(0, T, 97)) + [T - 1]:
            for g in range(2):
                kc, ec = (window_means(x[0, g, :t + 1].float().cpu(), 32, 16) for x in (k, bias))
                want = select_blocks(cfg, method, q[0, 3 * g:3 * g + 3, t].float().cpu(), t + 1, kc, ec, None, None, None)
                clear = min(want.qa_margin, want.ea_margin) > 1e-3        # else rounding may decide
                rows += clear
                wrong += clear and sel[0, g, :, t].nonzero().flatten().tolist() != want.blocks
        require(rows > 10 and wrong == 0, f"{method}: {rows} selections equal the reference's")
        exact = [x.detach().float().clone().requires_grad_(True) for x in (q, k, v, bias)]
        used = [x.detach().clone().requires_grad_(True) for x in (q, k, v, bias)]
        want, got = sa.naive_attention(*exact, sel), sa.sparse_attention(*used, sel)
        g = torch.randn_like(want)
        want.backward(g)
        got.backward(g.to(got.dtype))
        pairs = [(got, want)] + [(a.grad, b.grad) for a, b in zip(used, exact)]
        error = max(((a.float() - b).norm() / b.norm()).item() for a, b in pairs)
        require(error < 1e-2, f"{method}: attention and its four gradients, relative error {error:.1e}")


def check_eviction_losses(T=2048, P=32):
    """The losses move what they are meant to move, and nothing else."""
    gen = torch.Generator().manual_seed(3)
    q, k = torch.randn(1, 6, T, 64, generator=gen), torch.randn(1, 2, T, 64, generator=gen)
    b = (0.3 * torch.randn(1, 2, T, generator=gen)).requires_grad_(True)
    pos = torch.randint(1024, T, (1, P), generator=gen)
    sharpness = torch.full((2,), 4.0, requires_grad=True)
    mass = losses.block_mass(q, k, b, pos)
    require(torch.allclose(mass.sum(-1), torch.ones(1, 2, P), atol=1e-5), "block masses of a query add up to 1")
    free = losses.free_blocks(pos, T // 64)[:, None]
    aware, agnostic = losses.two_picks(losses.query_aware_scores(q, k, pos), sa.bias_scores(b), free)
    sel = sa.pick(sa.naive_block_scores(q, k), sa.bias_scores(b.detach()), 1, 4, 4, 7)
    want = sel.gather(3, pos[:, None, None].expand(1, 2, T // 64, P)).transpose(-1, -2).bool() & free
    require(bool((want == (aware | agnostic)).all()), "the losses see the blocks that the selection takes")
    everywhere = torch.ones_like(pos, dtype=torch.bool)
    probe = lambda b, gain, at=everywhere: losses.eviction_losses(q, k, b, b, gain, pos, at)
    first = probe(b, sharpness)
    require(abs(first[0].item() - losses.align_loss(q, k, b, pos).item()) < 1e-4, "align is the same in both functions")
    slope, grad = torch.autograd.grad(first[1], (sharpness, b), retain_graph=True)
    with torch.no_grad():
        step = 1e-2
        up, down = (probe(b, sharpness + d)[1] for d in (step, -step))
    measured = ((up - down) / (2 * step)).item()
    require(abs(slope.sum().item() - measured) < 1e-2 * abs(measured), f"rank's slope in its gain: {measured:.4f}")
    require(bool(grad.abs().sum() > 0), "rank reaches the eviction scores")
    grad, = torch.autograd.grad(first[2], b)
    with torch.no_grad():
        moved = probe(b - 0.05 * grad / grad.abs().max(), sharpness)
        halves = [probe(b, sharpness, at) for at in (torch.arange(P)[None] < P // 2, torch.arange(P)[None] >= P // 2)]
    require(moved[2] < first[2], f"concentrate falls along its gradient: {first[2]:.4f} -> {moved[2]:.4f}")
    require(abs((halves[0][2] + halves[1][2]).item() / 2 - first[2].item()) < 1e-4 and halves[0][2] != halves[1][2] and
            halves[0][1] == first[1], "concentrate looks at ordinary positions alone, rank at all")
    require(probe(b, sharpness, ~everywhere)[2].item() == 0, "concentrate without ordinary positions is 0")


def check_reach(T=2048, P=16):
    """Rank's way from the eviction head on to the values can be narrowed; its way into the head cannot."""
    gen = torch.Generator().manual_seed(4)
    rand = lambda *shape: torch.randn(*shape, generator=gen)
    q, k, v = rand(1, 6, T, 64), rand(1, 2, T, 64), rand(1, 2, T, 64).requires_grad_(True)
    delta, A = (rand(2, 128) * 128 ** -0.5).requires_grad_(True), torch.full((2,), 0.5, requires_grad=True)
    pos = torch.randint(1024, T, (1, P), generator=gen)
    grads = []
    for reach in (1.0, 0.25, 0.0):
        b = eviction_scores(v.transpose(1, 2).flatten(2), delta, A)
        rank = probe_eviction(q, k, v, b.detach(), delta, A, torch.full((2,), 4.0), pos, torch.ones_like(pos, dtype=torch.bool),
                              torch.tensor(reach))[1]
        grads.append(torch.autograd.grad(rank, (v, delta, A)))
    full, quarter, none = grads
    require(full[0].abs().sum() > 0 and torch.allclose(quarter[0], 0.25 * full[0], atol=1e-9) and not none[0].any(),
            "reach scales rank's gradient into the values")
    require(all(torch.equal(g[i], full[i]) and g[i].any() for g in grads for i in (1, 2)), "and none of the head's")
    hold = LanguageModelStage.hold
    require(hold(0) == 1 and hold(0.66) == 1 and abs(hold(5 / 6) - 0.5) < 1e-9 and hold(1) == 0, "both end with the stage")


def check_crowd():
    """A crowd: many keys told in one form, every question after the last of them, each answer that of its key."""
    tok = Tokenizer.from_file(TOKENIZER)
    maker = TaskMaker(np.zeros(40000, np.int64), lambda t: tok.encode(t, add_special_tokens=False).ids, 0, 8.0)
    rng, shapes = np.random.default_rng(5), set()
    for _ in range(20):
        needles, questions = maker.crowd(rng, set(), 2)
        texts = ["".join(t for t, _ in part) for part in needles]
        names = [re.search(r"(?:for |Key: )(\S+ \S+?)(?: is|\.)", t).group(1) for t in texts]
        shapes.add(len(texts))
        require_all = len(set(names)) == len(names) and len({t.split(n)[0] for t, n in zip(texts, names)}) == 1
        for ask in questions:
            name, = [n for n in names if f" {n}" in ask[0][0]]
            require_all &= ask[1][1] == 2 and ask[1][0] in texts[names.index(name)]
        if not require_all or len(questions) != 6:
            require(False, f"a crowd tells its keys alike and asks for some: {texts} {questions}")
    require(min(shapes) >= 8 and max(shapes) <= 20 and len(shapes) > 4, f"crowds of {min(shapes)} to {max(shapes)} keys")
    ids, weights = maker.build(rng, 2049)
    require(len(ids) == len(weights) == 2049 and ids[0] == 0, "a sequence has the length asked for")


def check_training(device):
    """A few steps of stage1, nosa and forecast on random text; the files and logs they leave."""
    with tempfile.TemporaryDirectory() as work:
        data, out = os.path.join(work, "data"), os.path.join(work, "out")
        os.makedirs(data)
        rng = np.random.default_rng(1)
        np.save(os.path.join(data, "tokens.npy"), rng.zipf(1.3, 60000).clip(2, 4095).astype(np.uint16))
        np.save(os.path.join(data, "heldout.npy"), rng.zipf(1.3, 30000).clip(2, 4095).astype(np.uint16))
        with open(TOKENIZER, "rb") as source, open(os.path.join(data, "tokenizer.json"), "wb") as copy:
            copy.write(source.read())
        run = [sys.executable, os.path.join(HERE, "train.py"), "--data", data, "--device", device, "--no-compile",
               "--workers", "0", "--log-every", "1", "--length", "1280", "--batch", "1+1", "--held-batches", "1"]
        subprocess.run(run + ["--out", out, "--stages", "stage1:1,nosa:2,forecast:1"], check=True,
                       stdout=subprocess.DEVNULL)
        rows = [json.loads(line) for line in open(os.path.join(out, "nosa.jsonl"))]
        require(rows and all(np.isfinite(r["natural"]) and r["rank"] > 0 for r in rows), f"nosa: {len(rows)} steps, finite")
        weights = load_safetensors(os.path.join(out, "nosa-forecast.safetensors"))
        shipped = load_safetensors(os.path.join(os.path.dirname(TOKENIZER), "model.safetensors"))
        require({k: v.shape for k, v in weights.items()} == {k: v.shape for k, v in shipped.items()},
                "the weights have the names and shapes of the shipped ones")
        again = os.path.join(work, "again")
        subprocess.run(run + ["--out", again, "--stages", "nosa:1,forecast:1", "--start",
                              os.path.join(out, "nosa-forecast.safetensors")], check=True, stdout=subprocess.DEVNULL)
        require(os.path.exists(os.path.join(again, "nosa-forecast.safetensors")), "a second stage 2 from finished weights")
        with torch.no_grad():
            model = Model(weights, base_config(500000.0), device, compile=False)
            held = torch.from_numpy(np.load(os.path.join(data, "heldout.npy")).astype(np.int16)).to(device)
            aware, agnostic, chance, best, recent, far = far_mass(model, held, 2048, 2, 64, batch=2)["mean"]
        require(0 < agnostic <= best and chance < best and aware + best <= 1 and 0 < far < 1,
                f"far attention held: {aware:.3f} + {agnostic:.3f} (random {chance:.3f}, best {best:.3f})")


def time_kernels(T=16384, B=8):
    """Milliseconds of each kernel at the size of the long stages."""
    def clock(f, n=5):
        f()
        torch.cuda.synchronize()
        t = time.time()
        for _ in range(n):
            f()
        torch.cuda.synchronize()
        return (time.time() - t) / n * 1e3

    make = lambda h: torch.randn(B, h, T, 64, device="cuda", dtype=torch.bfloat16)
    # correlated queries, as in a model: neighbours choose alike
    q, k, v = make(6) * 0.3 + make(6)[:, :, ::64].repeat_interleave(64, 2), make(2), make(2)
    bias = torch.randn(B, 2, T, device="cuda")
    pick = torch.compile(sa.pick, dynamic=False)
    s, e = sa.block_scores(q, k), sa.bias_scores(bias)
    sel = pick(s, e, 1, 4, 4, 7)
    print(f"block scores {clock(lambda: sa.block_scores(q, k)):.2f} ms, pick {clock(lambda: pick(s, e, 1, 4, 4, 7)):.2f} ms, "
          f"lists {clock(lambda: sa.block_lists(sel)):.2f} ms")
    for x in (q, k, v, bias):
        x.requires_grad_(True)
    out = sa.sparse_attention(q, k, v, bias, sel)
    g = torch.randn_like(out)
    print(f"forward {clock(lambda: sa.sparse_attention(q, k, v, bias, sel)):.2f} ms, "
          f"backward {clock(lambda: out.backward(g, retain_graph=True)):.2f} ms", flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = ap.parse_args()
    began = time.time()
    check_selection(args.device)
    check_eviction_losses()
    check_reach()
    check_crowd()
    check_training(args.device)
    if args.device == "cuda":
        print(torch.__version__, torch.cuda.get_device_name())
        time_kernels()
    print(f"{time.time() - began:.0f} s")


if __name__ == "__main__":
    main()
