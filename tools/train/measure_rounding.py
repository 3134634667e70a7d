#!/usr/bin/env python3
"""What bf16 does to the golden logits.

    measure_rounding.py MODEL_DIR GOLDEN_DIR

The float32 reference once more, but queries, keys, values and what enters a
projection are rounded to bf16, as on a GPU: sums, softmax and the residual
stream stay float32. It is fed the fixtures' tokens and attends to the
fixtures' blocks, so what differs is rounding alone. Writes
GOLDEN_DIR/rounding.json: the largest difference of any logit, after the
prompt ("prefill") and at each step of each method.
"""
import argparse
import json
import os

import torch
import torch.nn.functional as F

from make_golden import METHODS, STEPS
from nosa_reference import Config, Reference, load_safetensors, rms_norm


def rounded(x):
    return x.to(torch.bfloat16).float()


class RoundedReference(Reference):
    def project(self, i, h, position):
        q, k, v, b = super().project(i, rounded(h), position)
        return rounded(q), rounded(k), rounded(v), b

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
    for name in ("short", "mid", "long"):
        fixture = load_safetensors(os.path.join(args.golden, f"golden_{name}.safetensors"))
        differences = lambda logits, wanted: round(float((logits - wanted.float()).abs().max()), 4)
        logits = model.prefill(fixture["prompt_ids"].tolist())
        report[name] = {"prefill": differences(logits, fixture["prefill.logits"])}
        saved = model.clone_cache()
        for method in METHODS:
            model.restore_cache(saved)
            report[name][method] = []
            for step in range(STEPS):
                given = None
                if method != "full":
                    given = [[[j for j in head if j >= 0] for head in layer]
                             for layer in fixture[method + ".blocks"][step].tolist()]
                row, _ = model.decode(int(fixture[method + ".generated_ids"][step]), method, given)
                report[name][method].append(differences(row, fixture[method + ".logits"][step]))
        print(name, json.dumps(report[name]), flush=True)
    with open(os.path.join(args.golden, "rounding.json"), "w") as fh:
        json.dump(report, fh, indent=1)
        fh.write("\n")


if __name__ == "__main__":
    main()
