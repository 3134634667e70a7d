"""Records a dense model of transformers with a method evaluated in shadow: which blocks it would choose, and their attention mass.

The attention function that the model uses is wrapped under its own key (a new key would change masks), and in each decode step
the method chooses from the queries and keys that the function was given. The model's own attention is computed as before, over
everything: generated tokens stay the same bit for bit.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .methods import EvictionHeads, Memory, Method, captured_mass, eviction_heads
from .transformers import Attached, _guarded, _indexers, _Pass, log

if TYPE_CHECKING:
    from .writing import Recorder, Step

OPTIONS: dict[str, Any] = {"params": None, "budget": None, "mass": True, "every": 1, "eviction": None}
_TABLE, _EAGER = "ALL_ATTENTION_FUNCTIONS", "eager_attention_forward"


def _attention_modules(model: Any) -> list[Any]:
    return [
        module
        for module in model.modules()
        if "Attention" in type(module).__name__ and isinstance(getattr(module, "layer_idx", None), int) and hasattr(module, "config")
    ]


def _takes_sdpa(model: Any) -> bool:
    return bool(getattr(model, "_supports_sdpa", False))


class _Wrapped:
    """An attention function that is replaced by a wrapper until remove()."""

    def __init__(self, place: Any, key: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]):
        self._place, self._key = place, key  # a table of functions, or the namespace of a model's file
        self._original = place[key]
        self._wrapper = wrap(self._original)
        place[key] = self._wrapper

    def remove(self) -> None:
        if self._place[self._key] is not self._wrapper:
            log.warning("the attention function %r was wrapped by somebody else meanwhile; it is left as it is", self._key)
        elif getattr(type(self._place), "_global_mapping", {}).get(self._key) is self._original:
            del self._place[self._key]  # what shows again is the entry that all models share
        else:
            self._place[self._key] = self._original


class ShadowRecording(Attached):
    """A dense model, and the method that is evaluated beside it.

    shadow: name of a method of kvscope.methods. params: its parameters, those of `kvscope-cli methods`.
    budget: tokens that each KV head attends at most, a multiple of the block size, in place of total_blocks.
    mass: False leaves out the attention mass, which costs one more product of the query with all keys.
    every: of N steps two that follow each other are evaluated, so that what was kept is known in the second one; 1: all.
    eviction: NOSA's eviction heads, or a folder that has them; None: the folder the model was loaded from.
    """

    def __init__(self, recorder: Recorder, model: Any, *, shadow: str, params: Mapping[str, Any] | None, budget: int | None, mass: bool,
                 every: int, eviction: EvictionHeads | str | Path | None, **more: Any):  # fmt: skip
        if _indexers(model):
            raise ValueError(f"{type(model).__name__} selects by itself; leave shadow out to record what it selects")
        self._modules = {id(module) for module in _attention_modules(model)}
        if not self._modules:
            raise ValueError(
                f"{type(model).__name__} has no attention module that says its layer (layer_idx); a loop of your own records with "
                "Recorder.run() and Step.select()"
            )
        if every != 1 and every < 3:
            raise ValueError(f"every is {every}; give 1 for every step, or 3 and more")
        if shadow == "nosa" and not isinstance(eviction, EvictionHeads):
            folder = Path(eviction or model.config.name_or_path)
            eviction = eviction_heads(folder) if folder.is_dir() else None
        params = dict(params or {})
        if budget is not None:
            size = params.get("block_size", Method(shadow, params, eviction).block_size)  # type: ignore[arg-type]
            if budget % size or "total_blocks" in params:
                raise ValueError(f"budget is {budget} tokens; give a multiple of the block size, {size}, and no total_blocks")
            params["total_blocks"] = budget // size
        self._shadow = Method(shadow, params, eviction)  # type: ignore[arg-type]
        self._with_mass = mass
        self._every = every
        self._shape: tuple[int, int] | None = None  # KV heads, numbers of a token in one of them (keys and values)
        self._head_dim = 0
        self._memories: dict[tuple[int, int], Memory] = {}  # by layer and row
        self._of_generation: Any = None
        super().__init__(recorder, model, **more)

    def _watch(self) -> list[Any]:
        places: list[tuple[Any, str]] = []
        for module in _attention_modules(self._model):
            names = vars(sys.modules[type(module).__module__])
            key = module.config._attn_implementation or "eager"
            place = (names, _EAGER) if key == "eager" else (names.get(_TABLE), key)
            if place[0] is None or place[1] not in place[0]:
                other = 'load the model with attn_implementation="sdpa"' if key != "sdpa" and _takes_sdpa(self._model) else "record another model"
                raise ValueError(
                    f"{type(module).__name__} does not take its attention function {key!r} from a table that a recorder can wrap; {other}"
                )
            if not any(place[0] is other and place[1] == name for other, name in places):
                places.append(place)
        return [_Wrapped(place, key, self._wrap) for place, key in places]

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def attention(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(module, query, key, value, *args, **kwargs)
            if self._handles and id(module) in self._modules:
                self._attended(module, query, key, value, kwargs)
            return result

        return attention

    @_guarded
    def _attended(self, module: Any, query: Any, key: Any, value: Any, more: Mapping[str, Any]) -> None:
        """One call of the attention function. query: [B, query heads, S, head_dim]; key, value: [B, KV heads, T, head_dim]."""
        import torch

        done, generation = self._pass, self._generation
        if done is None or generation is None or torch.compiler.is_compiling():
            return
        if self._shape is None:
            self._shape = key.shape[1], key.shape[-1] + value.shape[-1]
            self._head_dim = key.shape[-1]
        if done.phase != "decode":
            return
        if more.get("sliding_window") or key.shape[2] != done.columns or query.shape[2] != 1 or key.shape[1] != self._shape[0]:
            self._note(
                "layers that do not attend to the whole cache (sliding windows, cross attention), or have other KV heads than the first, "
                "are not evaluated"
            )
            return
        index = done.columns - generation.prompt_columns  # of the step
        if self._every > 1 and (index - 1) % self._every > 1:
            return
        if self._of_generation is not generation:
            self._of_generation, self._memories = generation, {}
        layer, groups = module.layer_idx, query.shape[1] // key.shape[1]
        scale = more.get("scaling") or query.shape[-1] ** -0.5
        with torch.no_grad():
            for row in range(query.shape[0]):
                first = generation.prompt_columns - generation.lengths[row]
                if generation.finished[row]:
                    continue
                if first and bool((generation.positions[row, first:] < 0).any()):
                    self._note("rows whose padding is not on the left are not evaluated")
                    continue
                q = query[row, :, 0].unflatten(0, (-1, groups))
                k, v = key[row, :, first:], value[row, :, first:]
                memory = self._memories.setdefault((layer, row), Memory())
                choice = self._shadow.choose(layer, memory, q, k, v, scale=scale)
                if choice is None:
                    continue
                mass = None
                if self._with_mass:
                    mass = captured_mass(q, k, choice.ids, self._shadow.block_size, scale=scale, softcap=more.get("softcap"))
                done.selected.append((layer, row, choice, mass))

    def _missing(self) -> str | None:
        return None if self._shape is not None else "no attention function was called; nothing is recorded"

    def _run_fields(self) -> dict[str, Any]:
        assert self._shape is not None
        values, (heads, numbers) = self._shadow.values, self._shape
        return dict(
            method=self._shadow.name,
            params=values,
            block_size=self._shadow.block_size,
            kv_heads=heads,
            head_dim=self._head_dim,
            block_bytes=numbers * self._shadow.block_size * self._bytes_per_number(),
            budget_blocks=values["total_blocks"],
            sink_blocks=values["sink_blocks"],
            window_blocks=values["window_blocks"] + int(values["window_adds_current"]),
            meta={"unit": "block", "shadow": "the model attended to everything"},
        )

    def _write(self, step: Step, done: _Pass, position: list[int]) -> None:
        for layer, row, choice, mass in done.selected:
            step.select(
                layer, choice.ids.cpu()[None], position=[position[row]], seq=[row], origin=choice.origins.cpu()[None],
                mass=None if mass is None else mass.cpu().flatten(),
            )  # fmt: skip
