"""Trials at random: small shapes of the three families, prompts at the edges of blocks, settings of one method."""

from dataclasses import dataclass, field

from model import Shape

METHODS = {"sdar": ["full", "quest", "losa", "sparsed"], "llada": ["full", "sparsed", "sparse-dllm"],
           "dream": ["full", "sparsed", "sparse-dllm"]}
END = 1  # id of the end of text


@dataclass
class Trial:
    method: str
    settings: dict
    shape: Shape
    prompts: list  # of ids
    new: int
    sampling: dict = field(default_factory=dict)
    options: list = field(default_factory=list)  # of kvscope-cli run
    ends: bool = True  # whether the end of text ends a sequence
    likely_end: bool = False  # whether its row of the head is larger than others

    def describe(self):
        s = self.shape
        return (f"{s.family} {self.method} {s.layers} layers {s.query_heads}/{s.kv_heads} heads of {s.dim} "
                f"vocab {s.vocab} mask {s.mask} prompts {','.join(str(len(p)) for p in self.prompts)} new {self.new} "
                f"{' '.join(f'{k}={v}' for k, v in self.settings.items())} {' '.join(map(str, self.options))}").strip()


def pick(random, items):
    return items[int(random.integers(len(items)))]


def chance(random, share):
    return bool(random.random() < share)


def draw(random, families, methods):
    pairs = [(f, m) for f in families for m in METHODS[f] if m in methods]
    family, method = pick(random, pairs)
    trial = draw_blocks(random, method) if family == "sdar" else draw_canvas(random, family, method)
    if chance(random, 0.25):
        trial.sampling["temperature"] = pick(random, [0.3, 0.7, 1.0, 1.5])
        if chance(random, 0.4):
            trial.sampling["top_k"] = pick(random, [1, 3, 10, 1000])
        if chance(random, 0.4):
            trial.sampling["top_p"] = pick(random, [0.1, 0.5, 0.9])
        trial.options += ["--seed", int(random.integers(1000))]
        for key, value in trial.sampling.items():
            trial.options += ["--" + key.replace("_", "-"), value]
    trial.ends, trial.likely_end = chance(random, 0.6), chance(random, 0.5)
    if not trial.ends:
        trial.options.append("--ignore-eos")
    return trial


def draw_shape(random, family, block, most):
    kv_heads, group, dim = pick(random, [1, 1, 2, 2, 3]), pick(random, [1, 2, 3, 8]), pick(random, [32, 64, 96, 128])
    while kv_heads * group * dim > most:
        kv_heads, group, dim = (kv_heads, group // 2, dim) if group > 1 else (1, 1, max(32, dim // 2))
    vocab = pick(random, [40, 64, 131, 300])
    padding = int(random.integers(0, 4)) if chance(random, 0.5) else 0
    return Shape(family, layers=pick(random, [1, 2, 2, 3]), query_heads=kv_heads * group, kv_heads=kv_heads, dim=dim,
                 hidden=pick(random, [32, 64, 96]) if family == "sdar" else kv_heads * group * dim, ffn=48,
                 vocab=vocab, mask=vocab - 1 - padding, eos=END, block=block, tied=chance(random, 0.5),
                 bf16=chance(random, 0.5), theta=pick(random, [100.0, 10000.0, 1e6]))


def draw_prompts(random, shape, lengths):
    """Rows of different length; in some a mask id or an end of text."""
    prompts = []
    for _ in range(pick(random, [1, 1, 2, 3, 5])):
        ids = random.integers(2, shape.mask, max(1, lengths())).tolist()
        if chance(random, 0.4):
            ids = [shape.mask if chance(random, 0.2) else i for i in ids]
        if chance(random, 0.3):
            ids[int(random.integers(len(ids)))] = END
        prompts.append(ids)
    return prompts


def draw_blocks(random, method):
    block = pick(random, [1, 2, 3, 4, 5, 7, 8, 16, 16, 16, 24, 32, 33, 48, 64])
    shape = draw_shape(random, "sdar", block if chance(random, 0.7) else 4, 1536)
    settings = {"block": block, "strategy": pick(random, ["sequential", "low_confidence_static",
                                                          "low_confidence_dynamic", "entropy_bounded"])}
    if chance(random, 0.6):
        settings["steps"] = int(random.integers(1, block + 1)) if chance(random, 0.9) else 64
    if chance(random, 0.5):
        settings["threshold"] = pick(random, [0.0, 0.3, 0.5, 0.7, 1.0])
    if chance(random, 0.5):
        settings["entropy_bound"] = pick(random, [0.0, 0.35, 2.0, 100])
    for key, value in (("prompt_mask", "denoise"), ("trim_end", "no")):
        if chance(random, 0.25):
            settings[key] = value
    options = []
    if method in ("quest", "losa"):
        settings |= {"page": pick(random, [16, 16, 32, 48]), "budget": pick(random, [1, 16, 32, 64, 100, 128, 500])}
        for key, value in (("first", "sparse"), ("final", "reuse")):
            if chance(random, 0.3):
                settings[key] = value
        if chance(random, 0.4):
            options = ["--device-kv", pick(random, [1, 1, 2, 5]),
                       "--cache-policy", pick(random, ["lru", "keep-selected"])]
    if method == "losa":
        if chance(random, 0.6):
            settings |= pick(random, [{"active": pick(random, [0, 1, 2, 3, 8, 64])},
                                      {"active_threshold": pick(random, [0, 0.01, 0.1, 1])}])
        if chance(random, 0.4):
            settings["active_set"] = "kv_head"
        if chance(random, 0.3) and "first" not in settings:
            settings["agnostic_share"] = pick(random, [0.25, 0.5, 1.0])
        if options and chance(random, 0.5):
            settings["fetch"] = "ahead"
    if method == "sparsed":
        settings |= {"tile": pick(random, [16, 16, 32]), "budget": pick(random, [1, 16, 32, 64, 128, 500])}
        for key, values in (("skip", [0, 0.1, 0.25, 0.5, 1]), ("final", ["reuse"]), ("scale", ["reference"])):
            if chance(random, 0.4):
                settings[key] = pick(random, values)
    prompts = draw_prompts(random, shape, lambda: min(330, pick(random, [
        1, block - 1, block, block + 1, 3 * block + 2, int(random.integers(1, 300)), int(random.integers(60, 200))])))
    new = min(80, pick(random, [1, 1, 2, block, block + 1, 2 * block - 1, int(random.integers(1, 60))]))
    if chance(random, 0.3):  # the context ends with the longest sequence, inside a block
        shape = Shape(**{**shape.__dict__, "context": max(len(p) for p in prompts) + new})
    return Trial(method, settings, shape, prompts, new, options=options)


def draw_canvas(random, family, method):
    shape = draw_shape(random, family, 4, 768)
    settings = {"cache": pick(random, ["none", "prefix", "dual", "dllm", "dllm"])} if method == "full" else {}
    in_blocks = family == "llada" or settings.get("cache") in ("prefix", "dual") or method == "sparse-dllm"
    length, blocks = pick(random, [1, 2, 3, 4, 7, 8, 16, 32]), pick(random, [1, 1, 2, 3]) if in_blocks else 1
    if length * blocks > 64:
        blocks = 1
    if in_blocks:
        settings["block_length"] = length
    if chance(random, 0.7):
        settings["steps"] = blocks * int(random.integers(1, length + (1 if chance(random, 0.85) else 6)))
    if family == "dream":
        settings["alg"] = pick(random, ["maskgit_plus", "topk_margin", "entropy"]
                               + (["origin"] if method != "sparse-dllm" else []))
        if chance(random, 0.2):
            settings["alg_temp"] = 0.5
        if chance(random, 0.3) and method != "sparse-dllm":
            settings["eps"] = pick(random, [0, 0.1, 0.5, 1])
    elif chance(random, 0.2):
        settings["remasking"] = "random"
    if method == "full" and chance(random, 0.4):
        for key in ("remasking", "alg_temp"):
            settings.pop(key, None)
        settings |= {"alg": "maskgit_plus"} if family == "dream" else {}
        settings |= pick(random, [{"parallel": "threshold", "threshold": pick(random, [0, 0.3, 0.6, 1.1])},
                                  {"parallel": "factor", "factor": pick(random, [0, 0.5, 1, 2, 5])}])
    if settings.get("cache") == "dllm":
        for key, values in (("prompt_interval_steps", range(1, 9)), ("gen_interval_steps", range(1, 9)),
                            ("transfer_ratio", [0, 0.1, 0.25, 0.5, 1])):
            if chance(random, 0.8):
                settings[key] = pick(random, values)
        if chance(random, 0.5):
            settings["reference"] = "last_recomputed"
    if method == "sparsed":
        settings |= {"tile": pick(random, [16, 16, 32, 48]), "select": pick(random, [0, 0.1, 0.3, 0.5, 1]),
                     "skip": pick(random, [0, 0.1, 0.2, 0.3, 0.9])}
        if chance(random, 0.4):
            settings["scale"] = "reference"
    if method == "sparse-dllm":
        settings |= {"ratio": pick(random, [0, 0.1, 0.5, 0.7, 1]), "kernel": pick(random, [1, 3, 5, 9])}
    prompts = draw_prompts(random, shape, lambda: pick(random, [1, 2, 16, 17, int(random.integers(1, 60)),
                                                                int(random.integers(1, 150))]))
    if chance(random, 0.3):
        settings["trim_end"] = "no"
    return Trial(method, settings, shape, prompts, length * blocks)
