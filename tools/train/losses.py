"""The auxiliary losses: what the language-model loss cannot teach because a selection has no gradient.

All of them look at sampled query positions `pos` [B, P] only.  Shapes as in
sparse_attention.py: q [B, H, T, D]; k [B, G, T, D]; b [B, G, T].

`far` is everything that is neither sink nor window: the blocks a selection
chooses among (`free_blocks`).
"""
import typing

import torch
import torch.nn.functional as F

import sparse_attention as sa

SINK, WINDOW = 1, 4
QUERY_AWARE, QUERY_AGNOSTIC = 4, 7
NEG = -1e30


def visible_windows(pos, windows):
    """Which pooling windows (32 tokens, stride 16) are complete at each position: [..., windows]."""
    return 16 * torch.arange(windows, device=pos.device) + 32 <= pos[..., None] + 1


def free_blocks(pos, blocks):
    """Which blocks are neither sink nor window at each position: [..., blocks]."""
    j = torch.arange(blocks, device=pos.device)
    return (j >= SINK) & (j <= pos[..., None] // 64 - WINDOW)


def pool(p):
    """[..., M] window scores -> [..., NB] block scores, kernel 5, stride 4, padding 1."""
    p = F.pad(p, (1, 1 + (-(p.shape[-1] + 1)) % 4), value=NEG)
    return p.unfold(-1, 5, 4).amax(-1)


def take(x, pos):
    """Rows `pos` [B, P] of x [B, N, T, D]."""
    return x.gather(2, pos[:, None, :, None].expand(x.shape[0], x.shape[1], pos.shape[1], x.shape[3]))


def block_mass(q, k, b, pos):
    """Attention mass that full attention puts on every block, mean over the heads of a group: [B, G, P, NB]."""
    B, H, T, D = q.shape
    G, P = k.shape[1], pos.shape[1]
    s = (take(q, pos).view(B, G, H // G * P, D) @ k.transpose(-1, -2)).view(B, G, H // G, P, T).float() * D ** -0.5
    s = s + b[:, :, None, None]
    s = s.masked_fill((torch.arange(T, device=q.device) > pos[..., None])[:, None, None], NEG)
    return s.softmax(-1).mean(2).view(B, G, P, T // 64, 64).sum(-1)


def query_aware_scores(q, k, pos):
    """Selection scores of the query-aware choice: [B, G, P, NB], 0 where a block has none."""
    B, H, T, D = q.shape
    G, P = k.shape[1], pos.shape[1]
    kc = sa.window_means(k).to(q.dtype)
    s = (take(q, pos).view(B, G, H // G * P, D) @ kc.transpose(-1, -2)).view(B, G, H // G, P, -1).float() * D ** -0.5
    s = s.masked_fill(~visible_windows(pos, kc.shape[2])[:, None, None], NEG)
    return pool(s.softmax(-1).sum(2)).clamp_min(0)


def best(scores, allowed, count):
    """Mask of the `count` best allowed blocks; of equal scores the lower block, as the selection has it."""
    scores = torch.where(allowed, scores, NEG)
    index = scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
    return torch.zeros_like(scores).scatter_(-1, index, 1.0).bool() & allowed


def two_picks(aware, agnostic, free):
    """The two choices of NOSA as masks [B, G, P, NB]: the query-aware one, then the query-agnostic one of what is left."""
    first = best(aware, free, QUERY_AWARE)
    return first, best(agnostic[:, :, None].expand_as(aware), free & ~first, QUERY_AGNOSTIC)


def align_loss(q, k, b, pos):
    """Cross-entropy from where full attention looks to where the pooled keys point.

    The target is the far mass of every block (no gradient), the prediction its
    query-aware score, normalized over the free blocks.
    """
    free = free_blocks(pos, q.shape[2] // 64)[:, None]
    with torch.no_grad():
        target = block_mass(q, k, b, pos) * free
    blk = query_aware_scores(q, k, pos) * free + 1e-9
    heads_of_a_group = q.shape[1] // k.shape[1]
    return -heads_of_a_group * (target * (blk / blk.sum(-1, keepdim=True)).log()).sum(-1).mean()


class Probe(typing.NamedTuple):
    """Where the auxiliary losses look, and how far they reach."""
    pos: torch.Tensor          # query positions [B, P]
    ordinary: torch.Tensor     # which of them are no answers [B, P]
    reach: torch.Tensor        # scalar: share of rank's gradient that goes on from the eviction head to the values


def eviction_losses(q, k, b, ranked, sharpness, pos, ordinary):
    """What makes the eviction head earn its place: (align, rank, concentrate).

    `ranked` is b once more, for rank alone: its gradient may reach less far.

    align        align_loss, the target shared with the others.
    rank         listwise cross-entropy from the far mass that the query-aware choice leaves over to a softmax of
                 the pooled eviction scores.  The score that minimizes it is the log of the mass a block will
                 receive.  Gradient into the scores, so into A, delta and the values.  `sharpness` [G] is a
                 learned gain: it lets A stay small where a large bias would hurt the model.
    concentrate  -log of the share of that left-over mass which the query-agnostic choice holds, with the gradient
                 into the attention: where the choice is as good as another, look at blocks that stay resident.
                 At `ordinary` positions only: where an answer must be found, a block the query-aware choice missed
                 may be the very one, and attention must not be drawn from it.
    """
    free = free_blocks(pos, q.shape[2] // 64)[:, None]
    mass = block_mass(q, k, b, pos) * free
    aware = query_aware_scores(q, k, pos)
    blk = aware * free + 1e-9
    with torch.no_grad():
        agnostic = sa.bias_scores(b)
        target = mass.detach()
        aware_pick, agnostic_pick = two_picks(aware, agnostic, free)
        left = free & ~aware_pick
        far = target.sum(-1, keepdim=True) + 1e-6
        want = target * left / far
    align = -(q.shape[1] // k.shape[1]) * (target * (blk / blk.sum(-1, keepdim=True)).log()).sum(-1).mean()
    logits = torch.where(left, (sa.bias_scores(ranked) * sharpness[:, None])[:, :, None], NEG)
    rank = -(want * torch.where(left, logits.log_softmax(-1), 0.0)).sum(-1).mean()
    held = (mass * agnostic_pick).sum(-1)
    rest = (mass * (left & ~agnostic_pick)).sum(-1)
    share = (held + 1e-6) / (held + rest + 2e-6)
    at = ordinary[:, None].expand_as(share).float()
    concentrate = -(want.sum(-1) * share.log() * at).sum() / at.sum().clamp_min(1)
    return align, rank, concentrate


def forecast_loss(q, k, f, pos):
    """SparDA's objective: KL from the query's fine-grained distribution to the Forecast's coarse one.

    Target: softmax over key means of kernel 2 / stride 1, summed over the group,
    max-pooled to the 32/16 grid.  Both are restricted to the windows of the
    top query-aware blocks plus one bucket for the rest.
    """
    B, H, T, D = q.shape
    G, P, NB = k.shape[1], pos.shape[1], T // 64
    M = T // 16 - 1
    vis = visible_windows(pos, M)[:, None]
    with torch.no_grad():
        fine = (0.5 * (k[:, :, :-1].float() + k[:, :, 1:].float())).to(q.dtype)
        s = (take(q, pos).view(B, G, H // G * P, D) @ fine.transpose(-1, -2)).view(B, G, H // G, P, T - 1).float()
        s = (s * D ** -0.5).masked_fill(
            (torch.arange(T - 1, device=q.device) + 1 > pos[..., None])[:, None, None], NEG)
        t = F.max_pool1d(s.softmax(-1).sum(2).flatten(0, 2)[:, None], 17, 16, 1)[:, 0, :M].view(B, G, P, M) * vis
        t = t / (t.sum(-1, keepdim=True) + 1e-8)
        free = free_blocks(pos, NB)[:, None]
        top = torch.where(free, pool(t), -1.0).topk(QUERY_AWARE, -1)
        at = (top.indices[..., None] * 4 + torch.arange(4, device=q.device)).flatten(-2).clamp_max(M - 1)
        ok = (top.values >= 0).repeat_interleave(4, -1)
        target = t.gather(-1, at) * ok
        target = torch.cat((target, (1 - target.sum(-1, keepdim=True)).clamp_min(0)), -1).clamp_min(1e-8)
        target = target / target.sum(-1, keepdim=True)
    kc = sa.window_means(k).to(q.dtype)
    s = (take(f, pos) @ kc.transpose(-1, -2)).float() * D ** -0.5
    p = s.masked_fill(~vis, NEG).softmax(-1)
    guess = p.gather(-1, at) * ok
    guess = torch.cat((guess, (1 - guess.sum(-1, keepdim=True)).clamp_min(0)), -1).clamp_min(1e-8)
    guess = guess / guess.sum(-1, keepdim=True)
    return (target * (target.log() - guess.log())).sum(-1).mean()
