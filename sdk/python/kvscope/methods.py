"""Which blocks a method selects: Quest, InfLLM-V2, NOSA and MSA over the queries and keys of a model, in torch.

These are the choices of KVScope's engine under the same parameters and defaults (`kvscope-cli methods`): forced blocks first,
then the best by score; of equal scores the lower block wins. They are used beside a dense model (kvscope.shadow), and may be
used within an attention function of one's own:

    quest = kvscope.methods.Method("quest", {"total_blocks": 32})
    memory = kvscope.methods.Memory()                  # one for each layer and sequence
    choice = quest.choose(layer, memory, query, key, scale=0.125)

MSA (MiniMax-M3) has trained projections of its own, which another model lacks: here the model's own keys stand in, and the mean
of the queries of a KV head's group.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

SINK, WINDOW, QUERY_AWARE, QUERY_AGNOSTIC = range(4)

_POOLED = {"block_size": 64, "sink_blocks": 1, "window_blocks": 16, "window_adds_current": True, "total_blocks": 64,
           "kernel_size": 32, "kernel_stride": 16, "dense_len": 0}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "quest": {"block_size": 16, "sink_blocks": 0, "window_blocks": 0, "window_adds_current": True, "total_blocks": 64,
              "skip_layers": 2},
    "infllmv2": dict(_POOLED),
    "nosa": {**_POOLED, "select_blocks": 16},
    "msa": {"block_size": 128, "sink_blocks": 0, "window_blocks": 0, "window_adds_current": True, "total_blocks": 16},
}  # fmt: skip
"""Parameters of each method with their defaults. block_size, kernel_size, kernel_stride, dense_len: tokens; the rest: blocks, and
skip_layers: layers."""


class Choice(NamedTuple):
    """What one query selected. Every KV head has as many blocks."""

    ids: Any  # int64 [KV heads, blocks], ascending
    origins: Any  # uint8 [KV heads, blocks]: SINK, WINDOW, QUERY_AWARE or QUERY_AGNOSTIC


class Memory:
    """What a method keeps of the keys of one layer of one sequence, so that a step reads only the newest ones."""

    def __init__(self) -> None:
        self.tokens = 0
        self.parts: dict[str, Any] = {}  # name -> [KV heads, complete blocks or windows, ...]

    def grow(self, name: str, count: int, make: Any) -> Any:
        """The part `name` with `count` entries: make(first, count) gives the ones that are missing."""
        import torch

        have = self.parts.get(name)
        first = 0 if have is None else have.shape[1]
        if have is None or first > count:
            self.parts[name] = make(0, count)
        elif first < count:
            self.parts[name] = torch.cat([have, make(first, count)], dim=1)
        return self.parts[name]


class EvictionHeads(NamedTuple):
    """NOSA's eviction heads of a checkpoint, float32."""

    gain: Any  # [layers, KV heads]
    weight: Any  # [layers, KV heads, KV heads * head_dim]

    def scores(self, layer: int, value: Any) -> Any:
        """Importance of tokens: value [KV heads, tokens, head_dim] -> [KV heads, tokens]."""
        import torch

        flat = value.transpose(0, 1).flatten(1).float()
        weight, gain = self.weight[layer].to(flat.device), self.gain[layer].to(flat.device)
        return (torch.nn.functional.softplus(flat @ weight.T) * gain).T


def eviction_heads(folder: str | Path) -> EvictionHeads | None:
    """Reads the eviction heads (self_attn.A, self_attn.delta.weight) of a checkpoint's safetensors files; None: it has none."""
    import torch
    from safetensors import safe_open

    found: dict[str, Any] = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():
                if name.endswith((".self_attn.A", ".self_attn.delta.weight")):
                    found[name.split("layers.")[-1]] = tensors.get_tensor(name).float()
    layers = sum(name.endswith(".A") for name in found)
    if layers == 0 or len(found) != 2 * layers:
        return None
    return EvictionHeads(
        torch.stack([found[f"{layer}.self_attn.A"].flatten() for layer in range(layers)]),
        torch.stack([found[f"{layer}.self_attn.delta.weight"] for layer in range(layers)]),
    )


class Method:
    """A method with its parameters (`values`, all of them). Raises ValueError for names and budgets that there are not."""

    def __init__(self, name: str, params: Mapping[str, Any] | None = None, eviction: EvictionHeads | None = None):
        if name not in DEFAULTS:
            raise ValueError(f"there is no method {name!r} to evaluate; there are {', '.join(DEFAULTS)}")
        for key in params or {}:
            if key not in DEFAULTS[name]:
                raise ValueError(f"{name} has no parameter {key!r}; there are {', '.join(DEFAULTS[name])}")
        if name == "nosa" and eviction is None:
            raise ValueError("nosa needs the eviction heads of a checkpoint: eviction=kvscope.methods.eviction_heads(folder)")
        self.name = name
        self.values: dict[str, Any] = {**DEFAULTS[name], **(params or {})}
        self._eviction = eviction
        self.block_size: int = self.values["block_size"]
        adds = self.values["window_adds_current"]
        self._window = self.values["window_blocks"] + (1 if adds else 0)  # the current block included
        forced = self.values["sink_blocks"] + self._window
        aware = max(0, self.values["select_blocks"] - (1 if adds else 0)) if name == "nosa" else 0
        rest = self.values["total_blocks"] - forced - aware
        if self._window < 1 or rest < 0:
            raise ValueError(
                f"total_blocks {self.values['total_blocks']} of {name} must hold the {forced + aware} blocks that sink, window and "
                "query-aware share take, the current block among them"
            )
        self._aware: int = aware if name == "nosa" else rest
        self._agnostic: int = rest if name == "nosa" else 0

    def selects(self, layer: int, tokens: int) -> bool:
        """Whether a layer selects when `tokens` are in its cache; otherwise it attends to all of them."""
        return bool(layer >= self.values.get("skip_layers", 0) and tokens >= self.values.get("dense_len", 0))

    def choose(self, layer: int, memory: Memory, query: Any, key: Any, value: Any = None, *, scale: float) -> Choice | None:
        """What the newest token selects.

        query: [KV heads, query heads of each, head_dim], rotated. key: [KV heads, tokens, head_dim], rotated, the newest token's
        included. value: as key; of NOSA alone. scale: of query . key in the model's attention. memory: of this layer and
        sequence, with the tokens before. None: the layer attends to everything.

        >>> import torch
        >>> method = Method("msa", {"block_size": 4, "total_blocks": 2})
        >>> key = torch.zeros(1, 12, 2)
        >>> key[0, 5] = 1  # in block 1; the newest block, 2, is always taken
        >>> method.choose(0, Memory(), torch.ones(1, 1, 2), key, scale=1.0).ids
        tensor([[1, 2]])
        """
        tokens = key.shape[1]
        if tokens < memory.tokens:
            memory.parts.clear()
        memory.tokens = tokens
        score = self._scores(memory, query.float(), key, scale) if self._aware > 0 else None
        worth = self._worth(layer, memory, value, tokens) if self._agnostic > 0 else None
        return self._best(score, worth, tokens, key) if self.selects(layer, tokens) else None

    def _scores(self, memory: Memory, query: Any, key: Any, scale: float) -> Any:
        """[KV heads, blocks]"""
        import torch

        if self.name == "quest":
            return self._bounds(memory, query, key)
        if self.name == "msa":
            products = (key.float() @ query.mean(1)[:, :, None])[:, :, 0]
            return _by_block(products, self.block_size, -torch.inf).amax(-1)
        kernel, stride, tokens = self.values["kernel_size"], self.values["kernel_stride"], key.shape[1]
        windows = _windows(tokens, kernel, stride)
        if windows == 0:
            return query.new_full((key.shape[0], _blocks(tokens, self.block_size)), -torch.inf)
        pooled = memory.grow("pooled", windows, lambda first, end: _pool(key, first, end, kernel, stride))
        shares = torch.softmax(query @ pooled.transpose(1, 2) * scale, dim=-1).sum(1)
        return self._to_blocks(shares, tokens)

    def _bounds(self, memory: Memory, query: Any, key: Any) -> Any:
        """Quest: the most that query . key can be in a block, by the range of each channel; summed over a KV head's queries."""
        import torch

        size, tokens = self.block_size, key.shape[1]
        full = tokens // size

        def ranges(first: int, end: int) -> Any:
            blocks = key[:, first * size : end * size].float().unflatten(1, (end - first, size))
            return torch.stack([blocks.amin(2), blocks.amax(2)], dim=2)  # [KV heads, blocks, 2, head_dim]

        known: Any = memory.grow("ranges", full, ranges) if full else None
        if tokens % size:
            last = key[:, full * size :].float()
            newest = torch.stack([last.amin(1), last.amax(1)], dim=1)[:, None]
            known = newest if known is None else torch.cat([known, newest], dim=1)
        low, high = query.clamp(max=0).sum(1), query.clamp(min=0).sum(1)
        return (known[:, :, 0] @ low[:, :, None] + known[:, :, 1] @ high[:, :, None])[:, :, 0]

    def _worth(self, layer: int, memory: Memory, value: Any, tokens: int) -> Any:
        """NOSA: [KV heads, blocks] by the eviction head, whatever the query."""
        import torch

        assert self._eviction is not None
        heads = self._eviction
        kernel, stride = self.values["kernel_size"], self.values["kernel_stride"]
        windows = _windows(tokens, kernel, stride)
        if windows == 0:
            return torch.full((value.shape[0], _blocks(tokens, self.block_size)), -torch.inf, device=value.device)

        def pool(first: int, end: int) -> Any:
            scores = heads.scores(layer, value[:, first * stride : (end - 1) * stride + kernel])
            return _pool(scores[:, :, None], 0, end - first, kernel, stride)

        return self._to_blocks(memory.grow("worth", windows, pool)[:, :, 0], tokens)

    def _to_blocks(self, scores: Any, tokens: int) -> Any:
        """The best window that overlaps each block: [KV heads, windows] -> [KV heads, blocks]; -inf where there is none."""
        import torch

        kernel, stride, size = self.values["kernel_size"], self.values["kernel_stride"], self.block_size
        block = torch.arange(_blocks(tokens, size), device=scores.device)
        first = torch.where(block * size < kernel, 0, (block * size - kernel) // stride + 1)
        end = ((block + 1) * size + stride - 1) // stride
        at = first[:, None] + torch.arange((size + kernel) // stride + 1, device=scores.device)
        inside = (at < end[:, None]) & (at < scores.shape[1])
        return scores[:, at.clamp(max=scores.shape[1] - 1)].masked_fill(~inside, -torch.inf).amax(-1)

    def _best(self, score: Any, worth: Any, tokens: int, key: Any) -> Choice:
        import torch

        blocks = _blocks(tokens, self.block_size)
        sink = min(self.values["sink_blocks"], blocks)
        window = max(sink, blocks - self._window)
        heads, device = key.shape[0], key.device
        forced = torch.cat([torch.arange(sink, device=device), torch.arange(window, blocks, device=device)])
        ids = [forced.expand(heads, -1)]
        origins = [torch.where(forced < sink, SINK, WINDOW).expand(heads, -1)]
        left = torch.arange(sink, window, device=device).expand(heads, -1)  # ascending: of equal scores the lower block comes first
        for scores, budget, origin in ((score, self._aware, QUERY_AWARE), (worth, self._agnostic, QUERY_AGNOSTIC)):
            take = min(budget, left.shape[1])
            if take == 0:
                continue
            order = torch.sort(scores.gather(1, left), dim=1, descending=True, stable=True).indices
            ids.append(left.gather(1, order[:, :take]))
            origins.append(torch.full_like(ids[-1], origin))
            left = left.gather(1, order[:, take:].sort(dim=1).values)
        together, place = torch.cat(ids, dim=1).sort(dim=1)
        return Choice(together, torch.cat(origins, dim=1).gather(1, place).to(torch.uint8))


def captured_mass(query: Any, key: Any, ids: Any, block_size: int, *, scale: float, softcap: float | None = None) -> Any:
    """Share of the full softmax that falls on the selected blocks, mean over a KV head's queries: [KV heads], 0 to 1.

    query: [KV heads, query heads of each, head_dim]; key: [KV heads, tokens, head_dim]; ids: [KV heads, blocks]. softcap: bound of
    the logits, where the model has one. Attention sinks of a model take no share here.

    >>> import torch
    >>> query, key = torch.zeros(1, 1, 2), torch.zeros(1, 8, 2)  # every token has the same share
    >>> captured_mass(query, key, torch.tensor([[1]]), 4, scale=1.0)
    tensor([0.5000])
    """
    import torch

    logits = query.float() @ key.float().transpose(1, 2) * scale
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    mass = _by_block(torch.softmax(logits, dim=-1).mean(1), block_size, 0.0).sum(-1)
    return mass.gather(1, ids).sum(1).clamp(max=1.0)


def _blocks(tokens: int, size: int) -> int:
    return (tokens + size - 1) // size


def _windows(tokens: int, kernel: int, stride: int) -> int:
    """Complete windows among the tokens."""
    return 0 if tokens < kernel else (tokens - kernel) // stride + 1


def _pool(key: Any, first: int, end: int, kernel: int, stride: int) -> Any:
    """Means of windows `first` to `end`: [KV heads, tokens, channels] -> [KV heads, windows, channels], float32."""
    return key[:, first * stride : (end - 1) * stride + kernel].float().unfold(1, kernel, stride).mean(-1)


def _by_block(values: Any, size: int, fill: float) -> Any:
    """[KV heads, tokens] -> [KV heads, blocks, size]; what the last block lacks is `fill`."""
    import torch

    short = -values.shape[1] % size
    return torch.nn.functional.pad(values, (0, short), value=fill).unflatten(1, (-1, size))
