"""Muon for the matrices of the body, AdamW for everything else."""
import torch


def orthogonalize(g):
    """Newton-Schulz iteration towards the nearest orthogonal matrix, batched [N, rows, cols]."""
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return (x.transpose(-1, -2) if tall else x).float()


class Muon:
    """Momentum whose update is orthogonalized; matrices of one shape go together."""

    def __init__(self, params, lr, momentum=0.95, decay=0.05, compile=True):
        self.groups, self.lr, self.momentum, self.decay = {}, lr, momentum, decay
        for p in params:
            self.groups.setdefault(tuple(p.shape), []).append(p)
        self.buffers = {s: torch.zeros(len(g), *s, device=g[0].device) for s, g in self.groups.items()}
        self.orthogonalize = torch.compile(orthogonalize, dynamic=False) if compile else orthogonalize

    @torch.no_grad()
    def step(self, scale):
        for shape, params in self.groups.items():
            grad, buf = torch.stack([p.grad for p in params]), self.buffers[shape]
            buf.lerp_(grad, 1 - self.momentum)
            update = self.orthogonalize(grad.lerp(buf, self.momentum))
            lr = self.lr * scale
            torch._foreach_mul_(params, 1 - lr * self.decay)
            torch._foreach_add_(params, list(update), alpha=-lr * max(1, shape[0] / shape[1]) ** 0.5)
