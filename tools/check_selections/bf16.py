"""The same model as the CUDA backend rounds it: bf16 wherever that stores a value or multiplies on tensor cores."""

import numpy as np

from model import Model, softmax

PROMPT_KEYS = 64  # keys that the prompt's attention takes at once


def to_bf16(x):
    """The nearest bfloat16, an even one of two as near."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & np.uint32(0xffff0000)
    return bits.view(np.float32).astype(np.float64)


class Bf16Model(Model):
    """Sums stay in float64, and so does the residual stream: the GPU keeps them in float32. What is left between this
    and the GPU is float32's rounding, and the bits of bf16 that it turns."""

    def __init__(self, shape, weights, bias, rows):
        """rows: sequences that are decoded together."""
        super().__init__(shape, weights, bias)
        self.rows = rows
        self.w = {name: to_bf16(value) if value.ndim == 2 and "delta" not in name else value
                  for name, value in self.w.items()}

    def normed(self, x, weight):
        """A product's input. Of a few rows, the norm's scale multiplies the result; a single row stays float32."""
        inverse = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + self.shape.eps)
        if len(x) > 1:
            return to_bf16(x * weight * inverse)
        return (to_bf16(x * weight) if self.rows > 1 else x * weight) * inverse

    def project(self, layer, hidden, positions):
        rows = super().project(layer, hidden, positions)
        return rows | {name: to_bf16(rows[name]) for name in ("q", "k", "v")}

    def gated(self, gate, up):
        if len(gate) > 1:
            gate, up = to_bf16(gate), to_bf16(up)
        return to_bf16(super().gated(gate, up))

    def finish(self, layer, hidden, attended):
        return super().finish(layer, hidden, to_bf16(attended))

    def shares(self, logits):
        """The exponentials are rounded, their sum is not."""
        e = np.exp(logits - logits.max(-1, keepdims=True))
        return to_bf16(e) / e.sum(-1, keepdims=True)

    def prompt_shares(self, logits):
        """As above, but against the largest logit of the keys so far."""
        at = np.arange(0, logits.shape[-1], PROMPT_KEYS)
        sofar = np.maximum.accumulate(np.maximum.reduceat(logits, at, -1), -1)
        sofar = np.repeat(sofar, PROMPT_KEYS, -1)[..., :logits.shape[-1]]
        e = np.exp(logits - sofar)
        later = np.exp(sofar - sofar[..., -1:])
        return to_bf16(e) * later / (e * later).sum(-1, keepdims=True)
