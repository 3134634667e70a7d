#!/usr/bin/env python3
"""What bf16 does to the golden logits.

    measure_rounding.py MODEL_DIR GOLDEN_DIR

The float32 reference once more, but queries, keys, values, their shares of
the attention and what enters a projection are rounded to bf16, as what a
GPU's tensor cores multiply: sums and the residual stream stay float32. It is
fed the fixtures' tokens and attends to the fixtures' blocks, so what differs
is rounding alone. Which way a number is rounded depends on digits that no two
programs share, so it is done DRAWS times: to nearest, then up or down at
random. Writes GOLDEN_DIR/rounding.json: the largest difference of any logit
in any draw, after the prompt ("prefill") and at each step of each method.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F

from make_golden import METHODS, STEPS
from nosa_reference import Config, Reference, load_safetensors, rms_norm


DRAWS, SEED = 6, 2026
rounded = None


def to_nearest(x):
    return x.to(torch.bfloat16).float()


def up_or_down(x):
    """To one of the two neighbours, the nearer one more often, so that the mean is x."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)) & ~0xFFFF).view(torch.float32)


class RoundedReference(Reference):
    def project(self, i, h, position):
        q, k, v, b = super().project(i, rounded(h), position)
        return rounded(q), rounded(k), rounded(v), b

    def shares(self, scores):
        return rounded(super().shares(scores))

    def output(self, i, x):
        return super().output(i, rounded(x))

    def mlp(self, i, x):
        p = f"model.layers.{i}."
        h = rounded(rms_norm(x, self.w[p + "post_attention_layernorm.weight"], self.cfg.eps))
        gate = F.silu(h @ self.w[p + "mlp.gate_proj.weight"].T) * (h @ self.w[p + "mlp.up_proj.weight"].T)
        return x + rounded(gate) @ self.w[p + "mlp.down_proj.weight"].T

    def logits(self, x):
        return rounded(rms_norm(x, self.w["model.norm.weight"], self.cfg.eps)) @ self.w["model.embed_tokens.weight"].T


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model", help="folder of nosa-tiny")
    ap.add_argument("golden", help="folder of the fixtures")
    args = ap.parse_args()
    torch.set_grad_enabled(False)
    weights = load_safetensors(os.path.join(args.model, "model.safetensors"))
    model = RoundedReference(Config(os.path.join(args.model, "config.json")), weights)
    report = {}
    global rounded
    for name in ("short", "mid", "long"):
        fixture = load_safetensors(os.path.join(args.golden, f"golden_{name}.safetensors"))
        difference = lambda logits, wanted: float((logits - wanted.float()).abs().max())
        worst = {"prefill": 0.0, **{method: [0.0] * STEPS for method in METHODS}}
        torch.manual_seed(SEED)
        for draw in range(DRAWS):
            rounded = to_nearest if draw == 0 else up_or_down
            logits = model.prefill(fixture["prompt_ids"].tolist())
            worst["prefill"] = max(worst["prefill"], difference(logits, fixture["prefill.logits"]))
            saved = model.clone_cache()
            for method in METHODS:
                model.restore_cache(saved)
                for step in range(STEPS):
                    given = None
                    if method != "full":
                        given = [[[j for j in head if j >= 0] for head in layer]
                                 for layer in fixture[method + ".blocks"][step].tolist()]
                    row, _ = model.decode(int(fixture[method + ".generated_ids"][step]), method, given)
                    worst[method][step] = max(worst[method][step],
                                              difference(row, fixture[method + ".logits"][step]))
        report[name] = {key: round(v, 4) if key == "prefill" else [round(x, 4) for x in v] for key, v in worst.items()}
        print(name, json.dumps(report[name]), flush=True)
    with open(os.path.join(args.golden, "rounding.json"), "w") as fh:
        json.dump(report, fh, indent=1)
        fh.write("\n")


if __name__ == "__main__":
    main()
