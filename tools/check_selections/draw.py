"""Trials at random: small shapes of all kinds, prompts at the edges of blocks and budgets, settings of one method."""

from dataclasses import dataclass

from method import ceil_div
from model import Shape


@dataclass
class Trial:
    method: str
    settings: dict
    shape: Shape
    prompts: list  # of ids
    steps: int
    options: list  # of kvscope-cli run

    def describe(self):
        s = self.shape
        return (f"{s.family} {s.layers} layers {s.query_heads}/{s.kv_heads} heads of {s.dim} prompts "
                f"{','.join(str(len(p)) for p in self.prompts)} {' '.join(self.options)}").strip()


def draw(random, methods):
    method = pick(random, methods)
    settings = SETTINGS[method](random)
    if random.random() < 0.5:
        settings |= {"bias": pick(random, ["ed-dma", "dma", "s-dma", "none"]),
                     "bias_scale": pick(random, ["trained", "nosi"])}
    shape = draw_shape(random, eviction_head=method in ("dma", "nosa", "dma-token")
                       or settings.get("backbone") == "nosa" or random.random() < 0.5)
    if method == "quest" and settings["group"] == "per_query_head":  # a union must fit the settings' range
        settings["total_blocks"] = min(settings["total_blocks"], 65536 // shape.group)
    for dense in ("skip_layers", "dense_layers"):  # most often some layers choose
        if dense in settings and random.random() < 0.9:
            settings[dense] = min(settings[dense], max(shape.layers - 1, 1 if dense == "dense_layers" else 0))
    if method == "infinigen":
        settings["partial_dims"] = min(settings["partial_dims"], shape.dim)
    if method == "shadowkv":
        settings["rank"] = min(settings["rank"], shape.dim * shape.kv_heads)
    lengths = [draw_length(random, settings, least(method, settings, shape)) for _ in range(pick(random, [1, 1, 2, 3]))]
    prompts = [random.integers(2, shape.vocab, n).tolist() for n in lengths]
    steps = int(random.integers(5, 2 * settings.get("block_size", 64) + 8))
    # Where all layers are dense, nothing is cached.
    dense = max(settings.get("skip_layers", 0), settings.get("dense_layers", 0)) >= shape.layers
    return Trial(method, settings, shape, prompts, min(steps, 150),
                 [] if dense or method in OWN_TIER else draw_options(random, method, settings))


def pick(random, items):
    return items[int(random.integers(len(items)))]


def draw_shape(random, eviction_head):
    kv_heads, group, dim = pick(random, [1, 1, 2, 2, 3, 4]), pick(random, [1, 1, 2, 3, 4, 7, 8, 16, 32]), \
        pick(random, [16, 32, 64, 64, 80, 96, 128, 256])
    while kv_heads * group > 32 or kv_heads * group * dim > 2048:
        group = max(1, group // 2)
        if group == 1:
            break
    return Shape(layers=pick(random, [1, 2, 2, 3, 3, 4]), query_heads=kv_heads * group, kv_heads=kv_heads, dim=dim,
                 hidden=pick(random, [32, 64, 96]), ffn=48, vocab=pick(random, [64, 300]),
                 theta=pick(random, [100.0, 10000.0, 1e6]), eviction_head=eviction_head,
                 calibrated=bool(random.random() < 0.5), family=pick(random, ["llama", "llama", "qwen2", "qwen3"]),
                 bf16=bool(random.random() < 0.5))


def draw_length(random, settings, shortest):
    """A prompt length, often at the edge of something the method counts."""
    size = settings.get("block_size", 64)
    edges = [1, 2, size, size, 2 * size, 3 * size, settings.get("kernel_size", 32), settings.get("dense_len", 0)]
    blocks = settings.get("sink_blocks", 0) + settings.get("window_blocks", 0)
    edges += [blocks * size, (blocks + 1) * size]
    edges += [settings[name] * size for name in ("total_blocks", "k_b", "page_budget") if name in settings]
    edges += [settings[name] for name in ("budget_tokens", "heavy_tokens", "capacity_tokens", "window_tokens",
                                          "local_tokens", "prefill_chunk", "exc_block") if name in settings]
    if random.random() < 0.4:
        return int(random.integers(shortest, 700))
    return max(shortest, min(900, pick(random, edges) + pick(random, [-1, 0, 0, 1])))


def least(method, settings, shape):
    """Directions come from a prompt's queries: with fewer than a head has channels, some are arbitrary."""
    return 2 * shape.dim if method.startswith("infinigen") else 1


def draw_options(random, method, settings):
    if random.random() < 0.5:
        return []
    policy = pick(random, ["keep-selected", "lru"] + (["lru-s"] if method == "infllm" else []))
    return ["--cache-policy", policy] if random.random() < 0.5 else \
        ["--cache-policy", policy, "--device-kv", str(attended(method, settings) + int(random.integers(0, 8)))]


OWN_TIER = {"full", "double-sparsity", "h2o", "snapkv", "shadowkv", "dma-token", "locret", "infinigen-token"}


def attended(method, p):
    """An upper bound of the blocks that the device must hold for a step."""
    dense = ceil_div(p.get("dense_len", 0), p["block_size"])
    if method == "arkvale":
        return p["page_budget"]
    if method == "asynctls":
        return p["k_b"] + 2
    if method == "infllm":
        return (ceil_div(p["init_tokens"], p["block_size"]) + ceil_div(p["local_tokens"], p["block_size"]) + 1
                + p["topk_blocks"])
    if method == "streaming":
        return p["sink_blocks"] + p["window_blocks"] + 1
    return max(dense, p["total_blocks"] * (32 if p.get("group") == "per_query_head" else 1))


# ---- settings
def forced(random, sizes=(16, 16, 32, 48, 64, 80, 128)):
    adds = bool(random.random() < 0.5)
    return {"block_size": pick(random, list(sizes)), "sink_blocks": int(random.integers(0, 3)),
            "window_blocks": int(random.integers(0 if adds else 1, 4)), "window_adds_current": adds}


def budgeted(random, aware=None):
    """With a total; aware: the least of the query-aware share, where it is a setting."""
    p = forced(random)
    taken = p["sink_blocks"] + p["window_blocks"] + (1 if p["window_adds_current"] else 0)
    if aware is not None:
        p["select_blocks"] = int(random.integers(aware, 5))
        taken += max(0, p["select_blocks"] - (1 if p["window_adds_current"] else 0))
    return p | {"total_blocks": max(1, taken + int(random.integers(0, 6)))}


def pooled(random, p):
    stride = pick(random, [s for s in (1, 2, 4, 8, 16, 32) if p["block_size"] % s == 0])
    p |= {"kernel_stride": stride, "kernel_size": stride * pick(random, [1, 2, 2, 3, 4])}
    if random.random() < 0.25:
        p["dense_len"] = int(random.integers(1, 400))
    return p | {"prefill": "sparse" if random.random() < 0.3 else "full"}


def streaming(random):
    return forced(random) | {"prefill": "sparse" if random.random() < 0.3 else "full"}


def infllmv2(random):
    return pooled(random, budgeted(random)) | {"lse": pick(random, ["exact", "compressed"])}


def nosa(random):
    return pooled(random, budgeted(random, aware=0))


def quest(random):
    p = budgeted(random) | {"skip_layers": int(random.integers(0, 3)),
                            "group": pick(random, ["sum", "max", "per_query_head"]),
                            "bound": pick(random, ["max", "product", "cuboid-mean"])}
    if p["bound"] == "max" and p["group"] != "per_query_head" and random.random() < 0.4:
        p["prefill"] = "sparse"
    return p


def sparda(random):
    backbone = pick(random, ["nosa", "infllmv2"])
    p = budgeted(random, aware=0 if backbone == "nosa" else None)
    return pooled(random, p) | {"backbone": backbone, "offload_layer0": bool(random.random() < 0.5)}


def infinigen(random):
    p = budgeted(random) | {"partial_dims": int(random.integers(1, 64)), "warmup_tokens": 2048,
                            "dense_layers": int(random.integers(1, 3))}
    return p | ({"dense_len": int(random.integers(1, 400))} if random.random() < 0.25 else {})


def infinigen_token(random):
    return {"partial_ratio": pick(random, [0.1, 0.2, 0.5, 1]), "alpha": pick(random, [0, 1, 4, 5]),
            "max_num_kv": pick(random, [1, 20, 400]), "warmup_tokens": 2048,
            "dense_layers": int(random.integers(1, 3)), "block_size": pick(random, [16, 64])}


def dma_token(random):
    return {"budget_tokens": int(random.integers(1, 300)), "block_size": pick(random, [16, 64])}


def double_sparsity(random):
    return {"heavy_tokens": int(random.integers(1, 300)), "group_factor": pick(random, [1, 2, 4, 8, 1000]),
            "label_bits": pick(random, [4, 16]), "block_size": pick(random, [16, 64])}


def asynctls(random):
    p = {"block_size": pick(random, [16, 32, 48, 64]), "k_b": int(random.integers(1, 8)),
         "k_t": int(random.integers(1, 200)), "d_c": pick(random, [1, 4, 16, 1000]), "label_bits": pick(random, [4, 16]),
         "lag": pick(random, [0, 1])}
    p["sink_blocks"] = int(random.integers(0, min(2, p["k_b"]) + 1))
    return p | {"window_blocks": int(random.integers(0, min(2, p["k_b"] - p["sink_blocks"]) + 1))}


def h2o(random):
    return {"heavy_ratio": pick(random, [0, 0.1, 0.5, 1]), "recent_ratio": pick(random, [0, 0.1, 0.5, 1]),
            "heavy_tokens": pick(random, [0, 0, 1, 40]), "recent_tokens": pick(random, [0, 0, 1, 25]),
            "block_size": pick(random, [16, 64])}


def snapkv(random):
    window = int(random.integers(1, 80))
    return {"window_tokens": window, "capacity_tokens": window + int(random.integers(1, 200)),
            "pooling_kernel": pick(random, [1, 3, 5, 7, 31]), "pooling": pick(random, ["max", "avg"]),
            "block_size": pick(random, [16, 64])}


def arkvale(random):
    sink, window, dynamic = int(random.integers(0, 3)), int(random.integers(1, 4)), int(random.integers(1, 5))
    return {"block_size": pick(random, [16, 32, 48]),
            "page_budget": sink + window + dynamic + int(random.integers(0, 4)),
            "page_topks": sink + window - 1 + dynamic, "sink_blocks": sink, "window_blocks": window,
            "groups": pick(random, ["layer", "head"]), "digest": pick(random, ["cuboid-mean", "bounds"]),
            "skip_layers": int(random.integers(0, 3)), "prefetch_layers": int(random.integers(0, 2))}


def infllm(random):
    return {"block_size": pick(random, [16, 32, 48]), "init_tokens": pick(random, [0, 1, 16, 50]),
            "local_tokens": int(random.integers(1, 200)), "topk_blocks": int(random.integers(0, 5)),
            "cached_blocks": int(random.integers(0, 8)), "repr_topk": pick(random, [1, 2, 4, 100]),
            "groups": pick(random, ["layer", "head"]), "prefill": pick(random, ["full", "sparse"]),
            "exc_block": pick(random, [1, 7, 64, 100, 512]), "score_decay": pick(random, [0.1, 0.5, 0.9])}


def shadowkv(random):
    chunk = pick(random, [2, 8, 8, 16, 64])  # of one token the mean is the key: which are outliers is rounding
    return {"block_size": 64, "chunk_tokens": chunk, "rank": int(random.integers(1, 200)),
            "budget_tokens": int(random.integers(1, 200)), "outlier_tokens": pick(random, [0, 10, 64, 130]),
            "local_chunks": int(random.integers(0, 5))}


def locret(random):
    budget = int(random.integers(2, 250))
    return {"budget_tokens": budget, "prefill_chunk": int(random.integers(1, 300)),
            "stabilizers": int(random.integers(0, budget)), "local_len": int(random.integers(1, budget + 1)),
            "block_size": pick(random, [16, 64])}


SETTINGS = {"full": lambda random: {}, "streaming": streaming, "infllmv2": infllmv2, "nosa": nosa,
            "dma": lambda random: pooled(random, budgeted(random)), "quest": quest, "sparda": sparda,
            "infinigen": infinigen, "infinigen-token": infinigen_token, "dma-token": dma_token,
            "double-sparsity": double_sparsity, "asynctls": asynctls, "h2o": h2o, "snapkv": snapkv, "arkvale": arkvale,
            "infllm": infllm, "shadowkv": shadowkv, "locret": locret}
