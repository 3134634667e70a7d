"""The training-side model: a Llama with an eviction head and Forecast heads.

Weights are float32 masters cast to bf16 in use; parameter names are those of
the Hugging Face Llama checkpoints plus
    model.layers.N.self_attn.delta.weight          [kv_heads, kv_heads*head_dim]  eviction head W1
    model.layers.N.self_attn.A                     [kv_heads]                     eviction head W2
    model.layers.N.self_attn.q_future_proj.weight  [kv_heads*head_dim, hidden]    Forecast for layer N+1
    model.layers.0.self_attn.q_curr_proj.weight    [kv_heads*head_dim, hidden]    Forecast for layer 0
"""
import torch
import torch.nn.functional as F

import losses
import sparse_attention as sa
from losses import NEG, SINK, WINDOW, free_blocks, pool, visible_windows

# blocks of a budget of 16 beside sink and window: (query-aware, query-agnostic)
BUDGETS = {"nosa": (4, 7), "forecast": (4, 7), "infllmv2": (11, 0), "quest": (11, 0), "dma": (0, 11)}


def base_config(theta=10000.0, max_len=16384):
    """The content of config.json; the key names of `sparse_config` are those of the MiniCPM4 / NOSA checkpoints."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 4096, "hidden_size": 384,
        "intermediate_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 2,
        "head_dim": 64, "hidden_act": "silu", "max_position_embeddings": max_len, "initializer_range": 0.02,
        "rms_norm_eps": 1e-5, "rope_theta": theta, "rope_scaling": None, "attention_bias": False,
        "attention_dropout": 0.0, "mlp_bias": False, "pretraining_tp": 1, "tie_word_embeddings": True,
        "use_cache": True, "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
        "sparse_config": {
            "kernel_size": 32, "kernel_stride": 16, "block_size": 64, "init_blocks": 1, "window_size": 256,
            "select_blocks": 4, "topk": 12, "dense_len": 0, "use_nope": False, "create_indexer": True,
            "use_q_future_for_topk": False, "training_kernel_size": 2, "training_kernel_stride": 1,
            "kl_target_align_pooling": "max"}}


def init_eviction_head(w, cfg, gain, generator):
    """A fresh eviction head.  `gain` is where A starts: at 0 the head gets no gradient until A has left it."""
    kv = cfg["num_key_value_heads"] * cfg["head_dim"]
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}.self_attn."
        w[p + "delta.weight"] = torch.randn(cfg["num_key_value_heads"], kv, generator=generator) * kv ** -0.5
        w[p + "A"] = torch.full((cfg["num_key_value_heads"],), float(gain))


def init_weights(cfg, seed=1, gain=0.5):
    """Fresh weights, name -> float32 tensor."""
    g = torch.Generator().manual_seed(seed)
    d, f, kv = cfg["hidden_size"], cfg["intermediate_size"], cfg["num_key_value_heads"] * cfg["head_dim"]

    def normal(rows, cols, std):
        return torch.randn(rows, cols, generator=g) * std

    w = {"model.embed_tokens.weight": normal(cfg["vocab_size"], d, 0.02), "model.norm.weight": torch.ones(d)}
    for i in range(cfg["num_hidden_layers"]):
        p = f"model.layers.{i}."
        w[p + "input_layernorm.weight"] = torch.ones(d)
        w[p + "post_attention_layernorm.weight"] = torch.ones(d)
        w[p + "self_attn.q_proj.weight"] = normal(d, d, d ** -0.5)
        w[p + "self_attn.k_proj.weight"] = normal(kv, d, d ** -0.5)
        w[p + "self_attn.v_proj.weight"] = normal(kv, d, d ** -0.5)
        w[p + "self_attn.o_proj.weight"] = torch.zeros(d, d)
        w[p + "mlp.gate_proj.weight"] = normal(f, d, d ** -0.5)
        w[p + "mlp.up_proj.weight"] = normal(f, d, d ** -0.5)
        w[p + "mlp.down_proj.weight"] = torch.zeros(d, f)
    init_eviction_head(w, cfg, gain, g)
    return w


# ---------------------------------------------------------- compiled pieces
def norm(x, w):
    xf = x.float()
    return (xf * torch.rsqrt(xf.pow(2).mean(-1, keepdim=True) + 1e-5) * w).to(x.dtype)


def lin(x, w):
    return F.linear(x, w.to(x.dtype))


def rotate(x, cos, sin):
    xf = x.float()
    half = x.shape[-1] // 2
    return (xf * cos + torch.cat((-xf[..., half:], xf[..., :half]), -1) * sin).to(x.dtype)


def heads(x, n):
    B, T, _ = x.shape
    return x.view(B, T, n, 64).transpose(1, 2)


def eviction_scores(v, wd, a):
    """[B, T, kv_heads*head_dim] values -> [B, kv_heads, T] scores, in float32: neighbours differ by little."""
    return (a * F.softplus(F.linear(v.float(), wd))).transpose(1, 2).contiguous()


def pre(x, ln, wq, wk, wv, wd, a, cos, sin):
    h = norm(x, ln)
    q = rotate(heads(lin(h, wq), 6), cos, sin).contiguous()
    k = rotate(heads(lin(h, wk), 2), cos, sin).contiguous()
    v = lin(h, wv)
    return h, q, k, heads(v, 2).contiguous(), eviction_scores(v, wd, a)


def probe_eviction(q, k, v, b, wd, a, sharpness, pos, ordinary, reach):
    """losses.eviction_losses of a layer; `reach` of rank's gradient passes through the head to the values."""
    fixed = v.detach()
    ranked = eviction_scores((fixed + reach * (v - fixed)).transpose(1, 2).flatten(2), wd, a)
    return losses.eviction_losses(q, k, b, ranked, sharpness, pos, ordinary)


def post(x, o, wo, ln, wg, wu, wd):
    B, H, T, D = o.shape
    x = x + lin(o.transpose(1, 2).reshape(B, T, H * D), wo)
    h = norm(x, ln)
    return x + lin(F.silu(lin(h, wg)) * lin(h, wu), wd)


def dense_block(x, ln, wq, wk, wv, wo, ln2, wg, wu, wd, cos, sin):
    h = norm(x, ln)
    q = rotate(heads(lin(h, wq), 6), cos, sin)
    k = rotate(heads(lin(h, wk), 2), cos, sin)
    v = heads(lin(h, wv), 2)
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return post(x, o, wo, ln2, wg, wu, wd)


def head_loss(x, ln, emb, target, weight):
    logits = lin(norm(x, ln), emb).float()
    loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
    w = weight.flatten()
    return (loss * w).sum() / w.sum(), loss


def shifted(scores, allowed):
    """Make scores that can be negative usable by pick(): >= 1 where allowed, order kept."""
    low = torch.where(allowed, scores, 3e38).amin(-1, keepdim=True)
    return torch.where(allowed, scores - low + 1.0, -1.0)


class Model:
    """weights: name -> tensor (copied to float32 masters).  compile: fuse the pieces with torch.compile."""

    def __init__(self, weights, cfg, device="cuda", compile=True):
        self.cfg, self.device = cfg, torch.device(device)
        self.w = {k: v.detach().to(device).float() for k, v in weights.items()}
        self.layers = cfg["num_hidden_layers"]
        wrap = (lambda f: torch.compile(f, dynamic=False)) if compile else (lambda f: f)
        self.pre, self.post, self.dense = wrap(pre), wrap(post), wrap(dense_block)
        self.head, self.pick = wrap(head_loss), wrap(sa.pick)
        self.align, self.eviction = wrap(losses.align_loss), wrap(probe_eviction)
        self.forecast_loss = wrap(losses.forecast_loss)
        self.rope = {}

    def tables(self, T):
        if T not in self.rope:
            inv = self.cfg["rope_theta"] ** (-torch.arange(0, 64, 2, dtype=torch.float64) / 64)
            angle = torch.arange(T, dtype=torch.float64)[:, None] * inv
            angle = torch.cat((angle, angle), -1)
            self.rope[T] = (angle.cos().float().to(self.device), angle.sin().float().to(self.device))
        return self.rope[T]

    def get(self, i, *names):
        return [self.w[f"model.layers.{i}.{n}"] for n in names]

    def embed(self, ids):
        return F.embedding(ids, self.w["model.embed_tokens.weight"]).to(torch.bfloat16)

    def dense_forward(self, ids):
        x = self.embed(ids)
        cos, sin = self.tables(ids.shape[1])
        for i in range(self.layers):
            x = self.dense(x, *self.get(
                i, "input_layernorm.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight",
                "self_attn.v_proj.weight", "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"), cos, sin)
        return x

    def project(self, i, x, bias):
        cos, sin = self.tables(x.shape[1])
        out = self.pre(x, *self.get(i, "input_layernorm.weight", "self_attn.q_proj.weight",
                                    "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
                       *self.get(i, "self_attn.delta.weight", "self_attn.A"), cos, sin)
        return out if bias else out[:4] + (torch.zeros_like(out[4]),)

    def finish(self, i, x, o):
        return self.post(x, o, *self.get(i, "self_attn.o_proj.weight", "post_attention_layernorm.weight",
                                         "mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"))

    def forecast(self, i, h, name):
        cos, sin = self.tables(h.shape[1])
        return rotate(heads(lin(h, self.w[f"model.layers.{i}.self_attn.{name}.weight"]), 2), cos, sin)

    @torch.no_grad()
    def select(self, method, q, k, b, f=None, extra=0):
        """Selection bitmap [B, G, NB, T] of one layer."""
        B, G, T = b.shape
        NB = T // 64
        if method == "full":
            j = torch.arange(NB, device=q.device)[:, None]
            return (j <= torch.arange(T, device=q.device)[None] // 64).to(torch.uint8).expand(B, G, NB, T).contiguous()
        take_qa, take_ea = BUDGETS[method]
        scores = None
        if method in ("nosa", "infllmv2"):
            scores = sa.block_scores(q, k)
        elif method == "quest":
            pages = k.float().unflatten(2, (NB, 64))
            qg = q.float().unflatten(1, (G, -1))
            scores = qg.clamp_min(0).sum(2) @ pages.amax(3).transpose(-1, -2) + \
                qg.clamp_max(0).sum(2) @ pages.amin(3).transpose(-1, -2)
            scores = shifted(scores, free_blocks(torch.arange(T, device=q.device), NB))
        elif method == "forecast":
            kc = sa.window_means(k).to(q.dtype)
            s = (f @ kc.transpose(-1, -2)).float()
            pos = torch.arange(T, device=q.device)
            s = s.masked_fill(~visible_windows(pos, kc.shape[2]), NEG)
            scores = shifted(pool(s), free_blocks(pos, NB))
        sel = self.pick(scores, sa.bias_scores(b) if take_ea else None, SINK, WINDOW, take_qa, take_ea)
        if extra and scores is not None:        # a wider query-aware budget, early in training only
            more = scores.topk(extra + take_qa, -1).indices.transpose(-1, -2)
            sel.scatter_(2, more, 1)
        return sel

    def sparse_forward(self, ids, method, bias=True, extra=0, probe=None, sharpness=None, dense_rows=None, watch=None):
        """Hidden states and the auxiliary losses summed over the layers: [align, rank, concentrate].

        probe              losses.Probe: where the auxiliary losses look (None: all three are 0)
        sharpness [L, G]   gain of the rank loss; without it (or without a bias) only align is computed
        extra              query-aware blocks added to the budget (early in training)
        dense_rows [B]     positions before it attend to everything
        watch              called with (layer, h, q, k, b, selection) of every layer
        """
        x, aux, ahead = self.embed(ids), torch.zeros(3, device=ids.device), None
        T = ids.shape[1]
        for i in range(self.layers):
            h, q, k, v, b = self.project(i, x, bias)
            guess = ahead
            if method == "forecast":
                guess = self.forecast(0, h, "q_curr_proj") if i == 0 else guess
                ahead = self.forecast(i, h, "q_future_proj")
            sel = self.select(method, q, k, b, guess, extra)
            if dense_rows is not None and method != "full":
                early = torch.arange(T, device=ids.device)[None] < dense_rows[:, None]            # [B, T]
                j = torch.arange(T // 64, device=ids.device)[:, None]
                causal = (j <= torch.arange(T, device=ids.device)[None] // 64)
                sel = torch.where(early[:, None, None], causal.to(torch.uint8), sel)
            if watch is not None:
                watch(i, h, q, k, b, sel)
            if probe is not None and sharpness is not None and bias:
                head = self.get(i, "self_attn.delta.weight", "self_attn.A")
                aux = aux + torch.stack(self.eviction(q, k, v, b, *head, sharpness[i], *probe))
            elif probe is not None and BUDGETS[method][0]:
                aux = aux + F.pad(self.align(q, k, b.detach(), probe.pos)[None], (0, 2))
            x = self.finish(i, x, sa.sparse_attention(q, k, v, b, sel))
        return x, aux

    def loss(self, x, target, weight):
        return self.head(x, self.w["model.norm.weight"], self.w["model.embed_tokens.weight"], target, weight)

    def logits(self, x):
        return lin(norm(x, self.w["model.norm.weight"]), self.w["model.embed_tokens.weight"]).float()
