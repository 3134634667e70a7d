#!/usr/bin/env python3
"""Train nosa-tiny and its siblings on one GPU.

    train.py --data DATA --out OUT --stages stage1:330,nosa:510,forecast:70
    train.py --data DATA --out OUT --stages nosa:330,forecast:60 --start model.safetensors

A stage runs for the given number of seconds (its compilation not counted) and
saves its float32 weights as NAME.pt and its bf16 weights as NAME.safetensors:

    stage1     dense pre-training, 2048 tokens, RoPE theta 10000
    nosa       continual training at 16384 tokens, NOSA attention, theta 500000
    infllmv2   the same from stage1, query-aware selection only, no bias
    dma        the same from stage1, query-agnostic selection only
    forecast   Forecast heads on the frozen nosa weights (saved as nosa-forecast)

DATA holds tokens.npy, heldout.npy and tokenizer.json (tokenize_corpus.py).
With --start the long stages begin at finished weights instead of stage1's, with
a smaller learning rate and a fresh eviction head, and the Forecast heads of that
file are refined instead of begun.
"""
import argparse
import json
import math
import os
import time

import numpy as np
import torch

from batches import Batches, sample_positions
from losses import Probe
from model import Model, base_config, init_eviction_head, init_weights
from nosa_reference import load_safetensors, save_safetensors
from optimizers import Muon

SHORT, LONG = 2048, 16384
THETA_SHORT, THETA_LONG = 10000.0, 500000.0
SEEDS = {"stage1": 1, "nosa": 2, "infllmv2": 3, "dma": 4, "forecast": 5}
HIDDEN_2D = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
FORECAST = ("q_future_proj", "q_curr_proj")
AUX_POSITIONS = 128


def is_eviction(key):
    return key.endswith(".A") or ".delta." in key


def save(model, out, name, cfg, extra=None):
    """NAME.pt (float32), NAME.safetensors (bf16, `extra` tensors too) and NAME.config.json."""
    torch.save({k: v.detach() for k, v in model.w.items()}, os.path.join(out, name + ".pt"))
    tensors = {}
    for key, value in {**model.w, **(extra or {})}.items():
        if not (name.startswith("infllmv2") and is_eviction(key)):
            tensors[key] = ("BF16", value.detach().bfloat16().cpu().contiguous().view(torch.int16).numpy().view(np.uint16))
    save_safetensors(os.path.join(out, name + ".safetensors"), tensors, {"format": "pt"})
    with open(os.path.join(out, name + ".config.json"), "w") as fh:
        json.dump(cfg, fh, indent=2)


def start_weights(args, name, cfg):
    """Where a language-model stage begins."""
    if name == "stage1":
        return init_weights(cfg, seed=SEEDS[name], gain=args.gain)
    if args.start:
        weights = {k: v for k, v in load_safetensors(args.start).items() if not any(f in k for f in FORECAST)}
    else:
        weights = torch.load(os.path.join(args.out, "stage1.pt"))
    if args.start or name != "infllmv2":
        init_eviction_head(weights, cfg, args.gain, torch.Generator().manual_seed(SEEDS[name]))
    return weights


def held_loss(model, ids, method, length, batch, count):
    """Mean cross-entropy on the first count * batch * length held-out tokens."""
    total = 0.0
    with torch.no_grad():
        for n in range(count):
            at = n * batch * length
            x = ids[at:at + batch * length].view(batch, length).long().clone()
            y = torch.cat((x[:, 1:], x[:, :1]), 1).contiguous()
            x[:, 0] = 0
            w = torch.ones_like(y, dtype=torch.float32)
            w[:, -1] = 0
            h = model.dense_forward(x) if method == "dense" else model.sparse_forward(
                x, method, bias=method in ("nosa", "dma"))[0]
            total += model.loss(h, y, w)[0].item()
    return total / count


class LanguageModelStage:
    """One of stage1, nosa, infllmv2, dma: model, optimizers, batches and the loss of a step."""

    def __init__(self, args, name, tokens):
        self.args, self.name, self.short = args, name, name == "stage1"
        self.length = args.length or (SHORT if self.short else LONG)
        self.natural, self.synthetic = args.batch or ((96, 32) if self.short else (5, 3))
        self.answer_weight = 4.0 if self.short else 8.0
        self.cfg = base_config(THETA_SHORT if self.short else THETA_LONG)
        device = tokens.device
        self.model = Model(start_weights(args, name, self.cfg), self.cfg, device, args.compile)
        self.bias = name in ("nosa", "dma")
        self.sharpness = torch.full((self.cfg["num_hidden_layers"], self.cfg["num_key_value_heads"]), 4.0, device=device)
        w = self.model.w
        self.keys = [k for k in w if self.bias or not is_eviction(k)]
        self.params = [w[k] for k in self.keys] + [self.sharpness]
        for p in self.params:
            p.requires_grad_(True)
        self.muon = Muon([w[k] for k in self.keys if any(h in k for h in HIDDEN_2D)], 0.02, decay=args.decay,
                         compile=args.compile)

        def group(params, lr):
            return {"params": params, "lr": lr, "base": lr}
        self.adam = torch.optim.AdamW([
            group([w["model.embed_tokens.weight"]], 3e-3), group([w[k] for k in self.keys if "norm" in k], 2e-3),
            group([w[k] for k in self.keys if is_eviction(k)], args.head_rate), group([self.sharpness], 2e-2),
        ], betas=(0.9, 0.95), weight_decay=0.0, fused=device.type == "cuda")
        self.batches = Batches(args.data, tokens, self.length, self.natural, self.synthetic, self.answer_weight,
                               SEEDS[name], args.workers)
        self.gen = torch.Generator(device=device).manual_seed(7)

    def tokens_of_a_step(self):
        return (self.natural + self.synthetic) * self.length

    @staticmethod
    def hold(done):
        """How much of the auxiliary losses still moves the attention: all of it, then less, over the last third."""
        return min(1.0, 3 * (1 - done))

    def backward(self, done):
        """One batch after a `done` share of the time.

        Returns (weights, loss of every token, auxiliary losses [align, rank, concentrate]).
        """
        args, hold = self.args, self.hold(done)
        ids, target, weight = self.batches.next()
        aux = torch.zeros(3, device=ids.device)
        if self.short:
            x = self.model.dense_forward(ids)
        else:
            pos = sample_positions(weight, self.answer_weight, AUX_POSITIONS, self.gen)
            probe = Probe(pos, weight.gather(1, pos) != self.answer_weight, torch.full((), hold, device=ids.device))
            x, aux = self.model.sparse_forward(ids, self.name, self.bias, self.extra(done),
                                               probe if self.name != "dma" else None, self.sharpness)
        loss, each = self.model.loss(x, target, weight)
        (loss + args.align * aux[0] + args.rank * aux[1] + hold * args.concentrate * aux[2]).backward()
        return weight, each.detach(), aux.detach()

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def update(self, scale):
        self.muon.step(scale)
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        self.zero_grad()

    def scale(self, step, done):
        """Learning-rate factor after `step` steps and a `done` share of the time."""
        if self.short:
            return min(1.0, (step + 1) / 100) * (1.0 if done < 0.6 else 1 - 0.75 * (done - 0.6) / 0.4)
        peak = 0.35 if self.args.start else 0.5
        return min(1.0, (step + 1) / 20) * (peak * (1 - done) + (0.002 if self.args.start else 0.01))

    def extra(self, done):
        """A wider query-aware budget while the selection is still blind."""
        return 12 if done < 0.15 and not self.args.start else 0

    def row(self, step, start, weight, each, aux, scale):
        w, n = weight.flatten(), self.natural * self.length
        out = {"step": step, "seconds": round(time.time() - start, 1), "tokens": step * self.tokens_of_a_step(),
               "natural": each[:n].mean().item(), "answer": each[w == self.answer_weight].mean().item(),
               "align": aux[0].item(), "rank": aux[1].item(), "concentrate": aux[2].item(), "scale": round(scale, 4)}
        if self.bias:
            out["A"] = [[round(v, 3) for v in self.model.w[f"model.layers.{i}.self_attn.A"].tolist()]
                        for i in range(self.cfg["num_hidden_layers"])]
        return out


def train_lm(args, name, seconds, tokens, held):
    stage = LanguageModelStage(args, name, tokens)
    method = "dense" if stage.short else name
    test = lambda count: held_loss(stage.model, held, method, stage.length, stage.natural + stage.synthetic, count)
    test(1)                                       # compile everything before the clock starts
    for done in (0.0, 1.0):
        stage.backward(done)
    stage.muon.step(0.0)
    stage.zero_grad()
    if tokens.is_cuda:
        torch.cuda.synchronize()
    start, step = time.time(), 0
    if args.end_by:
        seconds = min(seconds, args.end_by - start)
    print(f"{name} ready for {seconds:.0f} s", flush=True)
    with open(os.path.join(args.out, name + ".jsonl"), "w") as log:
        while (done := (time.time() - start) / seconds) < 1:
            scale = stage.scale(step, done)
            weight, each, aux = stage.backward(done)
            stage.update(scale)
            step += 1
            if step % args.log_every == 0:
                row = stage.row(step, start, weight, each, aux, scale)
                if step % (8 * args.log_every) == 0:
                    row["heldout"] = test(1)
                log.write(json.dumps(row) + "\n")
                log.flush()
                if step % (4 * args.log_every) == 0:
                    print(name, {k: (round(v, 4) if isinstance(v, float) else v) for k, v in row.items()}, flush=True)
                if not math.isfinite(row["natural"]):
                    raise RuntimeError(f"{name}: the loss is not finite at step {step}; lower the learning rate")
    save(stage.model, args.out, name, stage.cfg)
    print(name, "steps", step, "tokens", step * stage.tokens_of_a_step(), "held-out loss",
          test(2 if stage.short else args.held_batches), flush=True)


def start_forecast(args, model):
    """Forecast heads to train: those of --start, else the mean of the next layer's query heads of the group."""
    cfg, done = model.cfg, load_safetensors(args.start) if args.start else {}
    last, out = cfg["num_hidden_layers"] - 1, {}
    for i in range(last + 1):
        for name, layer in (("q_future_proj", i + 1), ("q_curr_proj", 0)):
            if (name == "q_curr_proj" and i) or layer > last:
                continue
            key = f"model.layers.{i}.self_attn.{name}.weight"
            q = model.w[f"model.layers.{layer}.self_attn.q_proj.weight"].detach().view(2, 3, 64, 384)
            out[key] = done.get(key, q.mean(1).reshape(128, 384)).to(model.device).clone().requires_grad_(True)
    return out


def train_forecast(args, seconds, tokens):
    cfg = base_config(THETA_LONG)
    model = Model(torch.load(os.path.join(args.out, "nosa.pt")), cfg, tokens.device, args.compile)
    length, last = args.length or LONG, cfg["num_hidden_layers"] - 1
    heads = start_forecast(args, model)
    adam = torch.optim.AdamW(list(heads.values()), lr=args.forecast_rate, betas=(0.9, 0.95), weight_decay=0.0)
    batches = Batches(args.data, tokens, length, *((1, 1) if args.batch else (2, 2)), 8.0, SEEDS["forecast"],
                      min(6, args.workers))
    gen = torch.Generator(device=tokens.device).manual_seed(9)
    model.w.update(heads)

    def run():
        """One batch: gradients of the heads; returns the loss of every layer."""
        ids, _, weight = batches.next()
        pos = sample_positions(weight, 8.0, 2 * AUX_POSITIONS, gen)
        found, state = [], {}

        def watch(i, h, q, k, b, sel):
            with torch.enable_grad():
                f = model.forecast(0, h, "q_curr_proj") if i == 0 else state["f"]
                found.append(model.forecast_loss(q, k, f, pos))
                if i < last:
                    state["f"] = model.forecast(i, h, "q_future_proj")
        with torch.no_grad():
            model.sparse_forward(ids, "nosa", watch=watch)
        torch.stack(found).sum().backward()
        return torch.stack(found).detach()

    run()
    adam.zero_grad()
    step, start = 0, time.time()
    with open(os.path.join(args.out, "forecast.jsonl"), "w") as log:
        while (done := (time.time() - start) / seconds) < 1:
            for group in adam.param_groups:
                group["lr"] = args.forecast_rate * min(1, (step + 1) / 30) * (0.5 + 0.5 * math.cos(math.pi * done)) + 1e-6
            kl = run()
            adam.step()
            adam.zero_grad()
            step += 1
            if step % args.log_every == 0:
                log.write(json.dumps({"step": step, "seconds": round(time.time() - start, 1), "kl": kl.tolist()}) + "\n")
                if step % (8 * args.log_every) == 0:
                    print("forecast", step, [round(v, 3) for v in kl.tolist()], flush=True)
    heads[f"model.layers.{last}.self_attn.q_future_proj.weight"] = torch.zeros(128, 384)
    for key in heads:
        model.w.pop(key, None)
    save(model, args.out, "nosa-forecast", cfg, heads)
    print("forecast steps", step, flush=True)


def parser():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True, help="folder of tokens.npy, heldout.npy, tokenizer.json")
    ap.add_argument("--out", required=True, help="folder for weights and logs")
    ap.add_argument("--stages", required=True, help="NAME:SECONDS,... in the order to run")
    ap.add_argument("--start", help="finished weights to continue from (safetensors)")
    ap.add_argument("--gain", type=float, default=0.5, help="where A of a fresh eviction head starts (default 0.5)")
    ap.add_argument("--head-rate", type=float, default=2e-2, help="learning rate of A and delta (default 0.02)")
    ap.add_argument("--forecast-rate", type=float, default=2e-3, help="learning rate of the Forecast heads (default 0.002)")
    ap.add_argument("--decay", type=float, default=0.1, help="weight decay of the matrices (default 0.1)")
    ap.add_argument("--align", type=float, default=0.02, help="weight of the alignment loss (default 0.02)")
    ap.add_argument("--rank", type=float, default=0.05, help="weight of the eviction head's ranking loss (default 0.05)")
    ap.add_argument("--concentrate", type=float, default=0.003,
                    help="weight of the loss that concentrates left-over attention (default 0.003; it falls to 0 over "
                    "the last third of the stage)")
    ap.add_argument("--end-by", type=float, help="shorten a language-model stage to end at this time (seconds since 1970)")
    ap.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu (default cuda)")
    ap.add_argument("--workers", type=int, default=10, help="processes that write synthetic tasks (default 10)")
    ap.add_argument("--log-every", type=int, default=25, help="steps between two rows of the log (default 25)")
    ap.add_argument("--no-compile", dest="compile", action="store_false", help="do not use torch.compile")
    ap.add_argument("--length", type=int, help="tokens of a sequence, for trials (default 2048, then 16384)")
    ap.add_argument("--batch", type=lambda s: tuple(map(int, s.split("+"))),
                    help="NATURAL+SYNTHETIC sequences of a step, for trials (default 96+32, then 5+3)")
    ap.add_argument("--held-batches", type=int, default=4, help="batches of the last held-out loss (default 4)")
    return ap


def main():
    args = parser().parse_args()
    os.makedirs(args.out, exist_ok=True)
    torch.set_float32_matmul_precision("high")

    def tokens(name):
        return torch.from_numpy(np.load(os.path.join(args.data, name)).astype(np.int16)).to(args.device)
    train, held = tokens("tokens.npy"), tokens("heldout.npy")
    for item in args.stages.split(","):
        name, seconds = item.split(":")
        if name not in SEEDS:
            raise SystemExit(f"train.py: there is no stage '{name}'; stages are {', '.join(SEEDS)}")
        print(f"=== {name}: {seconds} s", flush=True)
        began = time.time()
        if name == "forecast":
            train_forecast(args, float(seconds), train)
        else:
            train_lm(args, name, float(seconds), train, held)
        print(f"=== {name} took {time.time() - began:.1f} s", flush=True)
        if train.is_cuda:
            print(f"    {torch.cuda.max_memory_allocated() / 2 ** 30:.1f} GiB of GPU memory", flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
