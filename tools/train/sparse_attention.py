"""Block-sparse attention for training: every query has its own set of 64-token blocks.

On a GPU, Triton kernels (bf16 in, float32 accumulation) for
  * block scores: softmax of the queries over mean-pooled keys, summed over the
    query heads of a group, max-pooled to blocks;
  * attention over the chosen blocks with an additive per-key bias, forward and
    backward (the bias gets a gradient: that is how the eviction head learns).

Shapes: q [B, H, T, D]; k, v [B, G, T, D]; bias [B, G, T]; one selection for
each KV head: sel [B, G, NB, T], uint8, block index first.

Tensors on a CPU take the plain PyTorch paths below each kernel, which are also
what smoke.py checks the kernels against.  T is a multiple of 64.
"""
import types

import torch

try:
    import triton
    import triton.language as tl
except ImportError:                                   # a CPU build of PyTorch: the kernels are never launched
    triton = types.SimpleNamespace(jit=lambda f: f)
    tl = types.SimpleNamespace(constexpr=None)

BLOCK = 64
KERNEL, STRIDE = 32, 16


# ------------------------------------------------------------- block scores
@triton.jit
def _pooled_lse(Q, KC, LSE, scale, T, M, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr):
    i, bh = tl.program_id(0), tl.program_id(1)
    b, g = bh // H, (bh % H) // (H // G)
    rm, rd = i * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + (bh * T + rm)[:, None] * D + rd[None, :])
    visible = (rm + 1) // 16 - 1
    last = (i * BM + BM) // 16 - 1
    m = tl.full([BM], -1e30, tl.float32)
    s_sum = tl.zeros([BM], tl.float32)
    base = (b * G + g) * M
    for start in range(0, last, BN):
        rn = start + tl.arange(0, BN)
        kc = tl.load(KC + (base + rn)[:, None] * D + rd[None, :], mask=(rn < M)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(kc)) * scale
        s = tl.where(rn[None, :] < visible[:, None], s, -1e30)
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.where(rn[None, :] < visible[:, None], tl.exp(s - new[:, None]), 0.0)
        s_sum = s_sum * tl.exp(m - new) + tl.sum(p, 1)
        m = new
    lse = tl.where(s_sum > 0, m + tl.log(s_sum), 0.0)
    tl.store(LSE + bh * T + rm, lse)


@triton.jit
def _block_score(Q, KC, LSE, OUT, scale, T, M, NB, H: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
                 BM: tl.constexpr):
    i, bg = tl.program_id(0), tl.program_id(1)
    b, g = bg // G, bg % G
    rm, rd = i * BM + tl.arange(0, BM), tl.arange(0, D)
    visible = (rm + 1) // 16 - 1
    last = (i * BM + BM) // 16 - 1
    base = bg * M
    for start in range(0, last, 64):                      # 64 windows = 16 blocks
        rn = start + tl.arange(0, 64)
        rp = start + tl.arange(0, 16) * 4 - 1             # the window straddling a block's left edge
        kc = tl.load(KC + (base + rn)[:, None] * D + rd[None, :], mask=(rn < M)[:, None], other=0.0)
        kp = tl.load(KC + (base + rp)[:, None] * D + rd[None, :], mask=((rp >= 0) & (rp < M))[:, None], other=0.0)
        own = tl.zeros([BM, 64], tl.float32)
        edge = tl.zeros([BM, 16], tl.float32)
        for hh in tl.static_range(H // G):
            bh = b * H + g * (H // G) + hh
            q = tl.load(Q + (bh * T + rm)[:, None] * D + rd[None, :])
            lse = tl.load(LSE + bh * T + rm)
            own += tl.exp(tl.minimum(tl.dot(q, tl.trans(kc)) * scale - lse[:, None], 0.0))
            edge += tl.exp(tl.minimum(tl.dot(q, tl.trans(kp)) * scale - lse[:, None], 0.0))
        own = tl.where(rn[None, :] < visible[:, None], own, -1.0)
        edge = tl.where((rp[None, :] >= 0) & (rp[None, :] < visible[:, None]), edge, -1.0)
        best = tl.maximum(tl.max(tl.reshape(own, (BM, 16, 4)), 2), edge)
        rb = start // 4 + tl.arange(0, 16)
        tl.store(OUT + (bg * T + rm)[:, None] * NB + rb[None, :], best, mask=(rb < NB)[None, :])


def window_means(x):
    """[..., T, D] -> [..., T/16 - 1, D]: means of 32 tokens, stride 16."""
    s = x.unflatten(-2, (-1, STRIDE)).float().mean(-2)
    return 0.5 * (s[..., :-1, :] + s[..., 1:, :])


def block_scores(q, k):
    """Query-aware score of every block for every query: [B, G, T, NB]; -1 where there is none."""
    if not q.is_cuda:
        return naive_block_scores(q, k)
    B, H, T, D = q.shape
    G = k.shape[1]
    kc = window_means(k).to(q.dtype).contiguous()
    M, NB = kc.shape[2], T // BLOCK
    lse = torch.empty(B, H, T, device=q.device, dtype=torch.float32)
    out = torch.full((B, G, T, NB), -1.0, device=q.device, dtype=torch.float32)
    scale = D ** -0.5
    _pooled_lse[(T // 64, B * H)](q, kc, lse, scale, T, M, H, G, D, 64, 64, num_warps=4)
    _block_score[(T // 64, B * G)](q, kc, lse, out, scale, T, M, NB, H, G, D, 64, num_warps=4)
    return out


def naive_block_scores(q, k):
    """block_scores in plain PyTorch."""
    B, H, T, D = q.shape
    G = k.shape[1]
    kc = window_means(k)
    s = q.float().view(B, G, H // G, T, D) @ kc[:, :, None].transpose(-1, -2) * D ** -0.5
    visible = STRIDE * torch.arange(kc.shape[2], device=q.device) + KERNEL <= torch.arange(T, device=q.device)[:, None] + 1
    p = s.masked_fill(~visible, -1e30).softmax(-1).sum(2).masked_fill(~visible, -1.0)
    p = torch.nn.functional.pad(p, (1, T // BLOCK * 4 - p.shape[-1]), value=-1.0)
    return p.unfold(-1, 5, 4).amax(-1)


def bias_scores(bias):
    """Query-agnostic score of every block: [B, G, NB]."""
    e = window_means(bias.float().unsqueeze(-1)).squeeze(-1)           # [B, G, M]
    NB = bias.shape[-1] // BLOCK
    e = torch.nn.functional.pad(e, (1, NB * 4 - e.shape[-1]), value=float("-inf"))
    return e.unfold(-1, 5, 4).amax(-1)


def pick(scores, agnostic, sink, window, take_qa, take_ea):
    """Selection bitmap [B, G, NB, T] from the block scores (either may be None)."""
    ref = scores if scores is not None else agnostic
    B, G = ref.shape[:2]
    NB = ref.shape[-1]
    T, device = NB * BLOCK, ref.device
    j = torch.arange(NB, device=device)
    current = torch.arange(T, device=device) // BLOCK
    picks = []
    if take_qa:
        free = (j[None, :] >= sink) & (j[None, :] <= current[:, None] - window)
        s = torch.where(free, scores, -1.0)
        for _ in range(take_qa):
            value, index = s.max(-1)
            picks.append(torch.where(value >= 0, index, -1).int())
            s = torch.where(j == index[..., None], -1.0, s)
    if take_ea:
        depth = min(take_ea + take_qa, NB)
        rows = torch.arange(NB, device=device)
        free = (j[None, :] >= sink) & (j[None, :] <= rows[:, None] - window)
        table = torch.where(free, agnostic[:, :, None, :], float("-inf"))          # [B, G, NB, NB]
        value, index = table.sort(dim=-1, descending=True, stable=True)            # ties: the lower block first
        value, index = value[..., :depth], index[..., :depth]
        index = torch.where(value > float("-inf"), index, -1).int()                # [B, G, NB, depth]
        index = index.repeat_interleave(BLOCK, dim=2)                              # [B, G, T, depth]
        used = torch.zeros(B, G, T, device=device, dtype=torch.int32)
        extra = []
        for n in range(depth):
            candidate = index[..., n]
            ok = candidate >= 0
            for q in picks:
                ok &= candidate != q
            ok &= used < take_ea
            extra.append(torch.where(ok, candidate, -1))
            used = used + ok.int()
        picks = picks + extra
    jt = j[:, None]
    forced = (jt < sink) | (jt > current[None, :] - window)
    sel = forced.expand(B, G, NB, T)
    for q in picks:
        sel = sel | (jt == q[:, :, None, :])
    return (sel & (jt <= current[None, :])).to(torch.uint8)


# ---------------------------------------------------------------- attention
@triton.jit
def _forward(Q, K, V, BIAS, SEL, KVI, KVN, O, LSE, scale, T, NB, NQ, H: tl.constexpr, G: tl.constexpr,
             D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    i, bh = tl.program_id(0), tl.program_id(1)
    b, g = bh // H, (bh % H) // (H // G)
    bg = b * G + g
    rm, rd = i * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + (bh * T + rm)[:, None] * D + rd[None, :])
    count = tl.load(KVN + bg * NQ + i)
    m = tl.full([BM], -1e30, tl.float32)
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for x in range(0, count):
        j = tl.load(KVI + (bg * NQ + i) * NB + x)
        rn = j * BN + tl.arange(0, BN)
        k = tl.load(K + (bg * T + rn)[:, None] * D + rd[None, :])
        v = tl.load(V + (bg * T + rn)[:, None] * D + rd[None, :])
        bias = tl.load(BIAS + bg * T + rn)
        rows = tl.load(SEL + (bg * NB + j) * T + rm)
        s = tl.dot(q, tl.trans(k)) * scale + bias[None, :]
        s = tl.where((rows[:, None] != 0) & (rm[:, None] >= rn[None, :]), s, -1e30)
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        keep = tl.exp(m - new)
        total = total * keep + tl.sum(p, 1)
        acc = acc * keep[:, None] + tl.dot(p.to(v.dtype), v)
        m = new
    tl.store(O + (bh * T + rm)[:, None] * D + rd[None, :], (acc / total[:, None]).to(O.dtype.element_ty))
    tl.store(LSE + bh * T + rm, m + tl.log(total))


@triton.jit
def _backward_q(Q, K, V, BIAS, SEL, KVI, KVN, DO, LSE, DELTA, DQ, scale, T, NB, NQ, H: tl.constexpr,
                G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    i, bh = tl.program_id(0), tl.program_id(1)
    b, g = bh // H, (bh % H) // (H // G)
    bg = b * G + g
    rm, rd = i * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + (bh * T + rm)[:, None] * D + rd[None, :])
    do = tl.load(DO + (bh * T + rm)[:, None] * D + rd[None, :])
    lse = tl.load(LSE + bh * T + rm)
    delta = tl.load(DELTA + bh * T + rm)
    count = tl.load(KVN + bg * NQ + i)
    acc = tl.zeros([BM, D], tl.float32)
    for x in range(0, count):
        j = tl.load(KVI + (bg * NQ + i) * NB + x)
        rn = j * BN + tl.arange(0, BN)
        k = tl.load(K + (bg * T + rn)[:, None] * D + rd[None, :])
        v = tl.load(V + (bg * T + rn)[:, None] * D + rd[None, :])
        bias = tl.load(BIAS + bg * T + rn)
        rows = tl.load(SEL + (bg * NB + j) * T + rm)
        s = tl.dot(q, tl.trans(k)) * scale + bias[None, :]
        seen = (rows[:, None] != 0) & (rm[:, None] >= rn[None, :])
        p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None])
        acc += tl.dot(ds.to(k.dtype), k)
    tl.store(DQ + (bh * T + rm)[:, None] * D + rd[None, :], (acc * scale).to(DQ.dtype.element_ty))


@triton.jit
def _backward_kv(Q, K, V, BIAS, SEL, QI, QN, DO, LSE, DELTA, DK, DV, DB, scale, T, NB, NQ, H: tl.constexpr,
                 G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    j, bg = tl.program_id(0), tl.program_id(1)
    b, g = bg // G, bg % G
    rn, rd = j * BN + tl.arange(0, BN), tl.arange(0, D)
    k = tl.load(K + (bg * T + rn)[:, None] * D + rd[None, :])
    v = tl.load(V + (bg * T + rn)[:, None] * D + rd[None, :])
    bias = tl.load(BIAS + bg * T + rn)
    count = tl.load(QN + bg * NB + j)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    db = tl.zeros([BN], tl.float32)
    for x in range(0, count):
        i = tl.load(QI + (bg * NB + j) * NQ + x)
        rm = i * BM + tl.arange(0, BM)
        rows = tl.load(SEL + (bg * NB + j) * T + rm)
        seen = (rows[None, :] != 0) & (rm[None, :] >= rn[:, None])
        for hh in tl.static_range(H // G):
            bh = b * H + g * (H // G) + hh
            q = tl.load(Q + (bh * T + rm)[:, None] * D + rd[None, :])
            do = tl.load(DO + (bh * T + rm)[:, None] * D + rd[None, :])
            lse = tl.load(LSE + bh * T + rm)
            delta = tl.load(DELTA + bh * T + rm)
            s = tl.dot(k, tl.trans(q)) * scale + bias[:, None]
            p = tl.where(seen, tl.exp(s - lse[None, :]), 0.0)
            dv += tl.dot(p.to(do.dtype), do)
            dp = tl.dot(v, tl.trans(do))
            ds = p * (dp - delta[None, :])
            db += tl.sum(ds, 1)
            dk += tl.dot(ds.to(q.dtype), q)
    at = (bg * T + rn)[:, None] * D + rd[None, :]
    tl.store(DK + at, (dk * scale).to(DK.dtype.element_ty))
    tl.store(DV + at, dv.to(DV.dtype.element_ty))
    tl.store(DB + bg * T + rn, db)


def block_lists(sel):
    """For each tile of 64 queries the blocks any of them selects, and the transposed lists."""
    B, G, NB, T = sel.shape
    any_ = sel.view(B, G, NB, T // 64, 64).amax(-1)                                # [B, G, NB, NQ]
    def ordered(x):
        return x.sort(dim=-1, descending=True, stable=True).indices.int().contiguous(), \
            x.sum(-1, dtype=torch.int32).contiguous()
    kv_idx, kv_num = ordered(any_.transpose(-1, -2).contiguous())
    q_idx, q_num = ordered(any_.contiguous())
    return kv_idx, kv_num, q_idx, q_num


class SparseAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, bias, sel):
        q, k, v, bias = q.contiguous(), k.contiguous(), v.contiguous(), bias.contiguous()
        B, H, T, D = q.shape
        G, NB, NQ = k.shape[1], T // BLOCK, T // 64
        lists = block_lists(sel)
        o = torch.empty_like(q)
        lse = torch.empty(B, H, T, device=q.device, dtype=torch.float32)
        _forward[(NQ, B * H)](q, k, v, bias, sel, lists[0], lists[1], o, lse, D ** -0.5, T, NB, NQ,
                              H, G, D, 64, BLOCK, num_warps=4)
        ctx.save_for_backward(q, k, v, bias, sel, o, lse, *lists)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, bias, sel, o, lse, kv_idx, kv_num, q_idx, q_num = ctx.saved_tensors
        do = do.contiguous()
        B, H, T, D = q.shape
        G, NB, NQ = k.shape[1], T // BLOCK, T // 64
        delta = (o.float() * do.float()).sum(-1)
        dq, dk, dv, db = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v), torch.empty_like(bias)
        _backward_q[(NQ, B * H)](q, k, v, bias, sel, kv_idx, kv_num, do, lse, delta, dq, D ** -0.5, T, NB, NQ,
                                 H, G, D, 64, BLOCK, num_warps=4)
        _backward_kv[(NB, B * G)](q, k, v, bias, sel, q_idx, q_num, do, lse, delta, dk, dv, db, D ** -0.5,
                                  T, NB, NQ, H, G, D, 64, BLOCK, num_warps=4)
        return dq, dk, dv, db, None


def sparse_attention(q, k, v, bias, sel):
    """Attention of every query over its own blocks; gradients for q, k, v and bias."""
    if not q.is_cuda:
        return naive_attention(q, k, v, bias, sel)
    return SparseAttention.apply(q, k, v, bias, sel)


def naive_attention(q, k, v, bias, sel):
    """sparse_attention in plain PyTorch (small T: it makes the whole T x T matrix)."""
    B, H, T, D = q.shape
    G = k.shape[1]
    k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    s = q @ k.transpose(-1, -2) * D ** -0.5 + bias.repeat_interleave(H // G, 1)[:, :, None]
    seen = sel.transpose(-1, -2).repeat_interleave(BLOCK, -1).repeat_interleave(H // G, 1).bool()
    seen = seen & torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    return s.masked_fill(~seen, float("-inf")).softmax(-1).to(v.dtype) @ v
