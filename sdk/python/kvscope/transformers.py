"""Records the native sparse-attention models of transformers: what each indexer selected, in every decode step.

A model of these families has, in each layer that selects, a module whose class is called *Indexer and whose output is the
selection. A hook on it sees the choice that the model itself makes; nothing is computed anew and nothing is replaced, so
that generated tokens stay the same bit for bit. Selections are copied to the host when the next step begins, when they
have been computed anyway. Dense models, beside which a method is evaluated, are in kvscope.shadow.
"""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ._arrays import numbers

if TYPE_CHECKING:
    from .writing import Recorder, Run, Step

log = logging.getLogger("kvscope")

# What a trace calls the method of a model_type; another one is called after its indexer's class.
_METHODS = {
    "deepseek_v32": "dsa", "glm_moe_dsa": "dsa", "hy_v4": "dsa", "axk2": "dsa", "glm5_next": "dsa-pool",
    "minimax_m3_vl": "msa", "deepseek_v4": "csa", "qwen4_exp": "qsa",
}  # fmt: skip
RECORDING = "recording (ns)"
"""Track of counters: time that hooks and writing took of the thread that decodes, one sample a step."""
_INDEXERS = ("Indexer", "AttnGate")
_TOKEN_BLOCK = 64  # tokens of a block of the trace, where a model selects single tokens and nobody asks for another size


class _Form(NamedTuple):
    """What an indexer's output means."""

    unit: str  # "token", "block", or "mask" over tokens
    heads: int
    block_size: int  # tokens of a unit; 1 for tokens and masks


def _indexers(model: Any) -> dict[str, Any]:
    """Modules that select, by name; not those inside another one."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if any(word in type(module).__name__ for word in _INDEXERS) and not any(name.startswith(outer + ".") for outer in found):
            found[name] = module
    return found


def _layer_of(model: Any, name: str, module: Any) -> int | None:
    """layer_idx of the module or of the nearest one around it; None: it is an argument of the call."""
    while True:
        layer = getattr(module, "layer_idx", None)
        if isinstance(layer, int):
            return layer
        if "." not in name:
            return None
        name = name.rpartition(".")[0]
        module = model.get_submodule(name)


def _form_of(module: Any, output: Any) -> _Form | None:
    """By type and shape alone, so that families of the same kind need no entry. None: neither ids nor a mask."""
    import torch

    if not isinstance(output, torch.Tensor):
        return None
    integers = not output.dtype.is_floating_point and output.dtype is not torch.bool
    rate = getattr(module, "compress_rate", None)
    if integers and output.dim() == 3:  # [B, S, k]
        return _Form("block", 1, int(rate)) if isinstance(rate, int) and rate > 1 else _Form("token", 1, 1)
    size = getattr(module, "block_size", None)
    if integers and output.dim() == 4 and isinstance(size, int):  # [B, H, S, k]
        return _Form("block", output.shape[1], size)
    if not integers and output.dim() == 4 and output.shape[1] == 1:  # [B, 1, S, T]
        return _Form("mask", 1, 1)
    return None


def _numbers_per_token(config: Any) -> int:
    """Numbers that the cache holds for a token and KV head: the latent of MLA, or keys and values."""
    latent = getattr(config, "kv_lora_rank", None)
    if latent:
        return latent + (getattr(config, "qk_rope_head_dim", 0) or 0)
    return 2 * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _filled(past: Any, mask: Any, length: int) -> int:
    """Columns of the cache before a forward pass of `length` tokens."""
    filled = int(past.get_seq_length()) if past is not None and hasattr(past, "get_seq_length") else 0
    if filled == 0 and past is not None and mask is not None and getattr(mask, "ndim", 0) == 2:
        return max(int(mask.shape[1]) - length, 0)  # a cache asks its first layer, which may be one of linear attention
    return filled


class _Generation:
    """One prompt and the steps that follow it: a run of the trace."""

    def __init__(self, input_ids: Any, attention_mask: Any, columns: int):
        import torch

        self.began_ns = time.perf_counter_ns()
        self.columns = columns  # of the cache, padding included
        self.prompt_columns = columns
        rows = input_ids.shape[0]
        self.positions: Any = None  # [rows, columns] of the prompt: position of a column, -1 for padding; None: all equal
        self.lengths = [columns] * rows  # tokens of each sequence, without padding
        if attention_mask is not None and attention_mask.dim() == 2 and not bool(attention_mask.all()):
            mask = attention_mask.bool().cpu()
            self.positions = torch.where(mask, mask.long().cumsum(-1) - 1, -1)
            self.lengths = mask.sum(-1).tolist()
        ids = input_ids.cpu()
        keep = self.positions >= 0 if self.positions is not None else torch.ones_like(ids, dtype=torch.bool)
        self.prompts = [ids[row][keep[row]].to(torch.int32) for row in range(rows)]
        self.finished = [False] * rows
        self.run: Run | None = None

    def padded(self, row: int) -> bool:
        return self.lengths[row] != self.prompt_columns


class _Pass:
    """One forward pass: its times, and what the indexers gave."""

    def __init__(self, phase: str, columns: int, start_ns: int):
        self.phase = phase
        self.columns = columns  # of the cache after it
        self.start_ns = start_ns
        self.end_ns = start_ns
        self.selected: list[Any] = []  # what the recording has seen of the layers: its own tuples


def _guarded(hook: Callable[..., Any]) -> Callable[..., None]:
    """A hook that fails turns the recording off; the model goes on."""

    @functools.wraps(hook)
    def guarded(self: Attached, *args: Any, **kwargs: Any) -> None:
        if self.off is not None:
            return
        began = time.perf_counter_ns()
        try:
            hook(self, *args, **kwargs)
        except Exception as error:  # whatever it is, it is not the model's trouble
            self._turn_off(f"recording stopped: {type(error).__name__}: {error}")
        self._spent_ns += time.perf_counter_ns() - began

    return guarded


class Attached:
    """A model that is being recorded. `off`: None, or the sentence that says why nothing is recorded any more.

    This class follows generations and their steps. What is seen of a step and written of it is the part of a subclass.
    """

    def __init__(self, recorder: Recorder, model: Any, *, name: str | None, tokens: bool, tokenizer: Any, meta: Mapping[str, str]):
        self.off: str | None = None
        self.notes: list[str] = []
        self._passes = 0  # forward passes that the hooks have seen
        self._recorder = recorder
        self._model = model
        self._name = name
        self._tokens = tokens
        self._tokenizer = tokenizer
        self._meta = dict(meta)
        self._config = model.config.get_text_config()
        self._generation: _Generation | None = None
        self._pass: _Pass | None = None
        self._spent_ns = 0  # in hooks, since the step before was written
        self._handles = self._watch()
        self._handles.append(model.register_forward_pre_hook(self._before, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._after, with_kwargs=True))
        self._generate = model.generate
        self._wrapped_before = model.__dict__.get("generate")  # another recording's
        model.generate = self._wrapped_generate

    # ---- What a subclass does ----

    def _watch(self) -> list[Any]:
        """Hooks into the layers; what it returns has remove()."""
        raise NotImplementedError

    def _missing(self) -> str | None:
        """After the prefill: None, or the sentence that says why there is nothing to record."""
        raise NotImplementedError

    def _run_fields(self) -> dict[str, Any]:
        """Of Recorder.run: method, params, block_size, kv_heads, head_dim, block_bytes, meta."""
        raise NotImplementedError

    def _write(self, step: Step, done: _Pass, position: list[int]) -> None:
        """Writes what the pass has seen of the layers. position: [rows] of the queries."""
        raise NotImplementedError

    # ---- What the model calls ----

    def _wrapped_generate(self, *args: Any, **kwargs: Any) -> Any:
        config = kwargs.get("generation_config") or (args[1] if len(args) > 1 else None) or self._model.generation_config
        cache = kwargs.get("cache_implementation", getattr(config, "cache_implementation", None))
        if isinstance(cache, str) and "static" in cache:
            raise ValueError(
                f"cache_implementation={cache!r} compiles the decode steps, which no hook sees; leave cache_implementation out "
                "while recording"
            )
        given = kwargs.get("past_key_values")
        if getattr(given, "is_compileable", False):
            raise ValueError(
                f"past_key_values is a {type(given).__name__}, with which decode steps are compiled, and no hook sees them; give a "
                "DynamicCache, or none, while recording"
            )
        if not kwargs.get("use_cache", True):
            raise ValueError("use_cache=False reads the whole text anew for every token; leave use_cache out while recording")
        if (kwargs.get("num_beams", getattr(config, "num_beams", 1)) or 1) > 1:
            raise ValueError("a beam search moves sequences between rows; record with num_beams=1")
        try:
            result = self._generate(*args, **kwargs)
        except BaseException as error:
            self._end("failed", f"{type(error).__name__}: {error}")
            raise
        self._generated(result)
        return result

    @_guarded
    def _generated(self, result: Any) -> None:
        sequences = getattr(result, "sequences", result)
        if self._pass is not None and self._generation is not None and sequences.shape[1] > self._pass.columns:
            self._finish_pass(sequences[:, self._pass.columns].tolist())
        self._end("finished", None)

    @_guarded
    def _before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        import torch

        if torch.compiler.is_compiling():
            return
        self._passes += 1
        input_ids = kwargs.get("input_ids", args[0] if args else None)
        if input_ids is None:
            self._note("a forward pass of inputs_embeds is not recorded; give input_ids")
            self._end("stopped", "a forward pass was not a decode step of this run")
            return
        length = int(input_ids.shape[1])
        filled = _filled(kwargs.get("past_key_values"), kwargs.get("attention_mask"), length)
        now = time.perf_counter_ns()
        if filled == 0:
            self._end("finished", None)
            self._generation = _Generation(input_ids, kwargs.get("attention_mask"), length)
            self._pass = _Pass("prefill", length, 0)
            self._generation.began_ns = time.perf_counter_ns()
            return
        generation, before = self._generation, self._pass
        if generation is None or before is None or filled != before.columns or length != 1:
            self._note(
                "forward passes of several tokens on a filled cache, or on one that another prompt filled, are not recorded: prompts in parts, "
                "assisted decoding, two prompts in turn"
            )
            self._end("stopped", "a forward pass was not a decode step of this run")
            return
        self._finish_pass(input_ids[:, -1].tolist())
        self._pass = _Pass("decode", filled + 1, now - generation.began_ns)

    @_guarded
    def _after(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._pass is not None and self._generation is not None:
            self._pass.end_ns = time.perf_counter_ns() - self._generation.began_ns

    # ---- What is written ----

    def _finish_pass(self, produced: list[int] | None) -> None:
        """Writes the pass before; produced: the token of each row that it led to."""
        done, generation = self._pass, self._generation
        self._pass = None
        if done is None or generation is None:
            return
        if generation.run is None:
            missing = self._missing()
            if missing is not None:
                self._note(missing)
                return
            generation.run = self._begin_run(generation)
        prefill = done.phase == "prefill"
        rows = len(generation.lengths)
        step = generation.run.step(done.phase, sum(generation.lengths) if prefill else rows, done.start_ns)
        try:
            position = [length - 1 + done.columns - generation.prompt_columns for length in generation.lengths]
            self._write(step, done, position)
            for row in range(rows):
                if produced is None or not self._tokens or generation.finished[row]:
                    continue
                step.tokens(row, position[row] + 1, numbers([produced[row]], "int32"), self._texts([produced[row]]))
        except BaseException:
            step.discard()
            raise
        step.commit(done.end_ns)
        if done.end_ns > done.start_ns:
            generation.run.counter(RECORDING, done.start_ns, done.end_ns - done.start_ns, self._spent_ns)
        self._spent_ns = 0
        if produced is not None:
            ends = self._end_tokens()
            generation.finished = [was or token in ends for was, token in zip(generation.finished, produced)]

    def _begin_run(self, generation: _Generation) -> Run:
        import torch
        import transformers

        config, device = self._config, self._model.device
        fields = self._run_fields()
        meta = {"engine": "transformers", "engine_version": transformers.__version__, **fields.pop("meta"), **self._meta}
        return self._recorder.run(
            model=self._model.config.name_or_path or type(self._model).__name__,
            name=self._name,
            backend="cuda" if device.type == "cuda" else "cpu",
            device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            layers=config.num_hidden_layers,
            query_heads=config.num_attention_heads,
            sequences=len(generation.lengths),
            knows=("selections", "step_times"),
            prompts=generation.prompts if self._tokens else None,
            prompt_texts=[self._texts(ids.tolist()) or [""] * len(ids) for ids in generation.prompts] if self._tokenizer else None,
            meta=meta,
            **fields,
        )

    def _bytes_per_number(self) -> int:
        import torch

        return torch.empty(0, dtype=self._model.dtype).element_size()

    def _texts(self, ids: list[int]) -> list[str] | None:
        return [self._tokenizer.decode([token]) for token in ids] if self._tokenizer is not None else None

    def _end_tokens(self) -> set[int]:
        ends = self._model.generation_config.eos_token_id
        return set(ends) if isinstance(ends, (list, tuple)) else set() if ends is None else {ends}

    def _end(self, status: str, message: str | None) -> None:
        """Ends the run that is open, if one is."""
        self._finish_pass(None)
        generation, self._generation = self._generation, None
        if generation is not None and generation.run is not None:
            said = [message] if message else []
            generation.run.end(status, "; ".join(said + self.notes) or None)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)
            log.warning("%s", sentence)

    def _turn_off(self, sentence: str) -> None:
        self.off = sentence
        self._pass = None
        log.warning("%s", sentence)
        generation, self._generation = self._generation, None
        if generation is not None and generation.run is not None:
            try:
                generation.run.end("failed", sentence)
            except Exception:
                pass  # the file cannot be written: that is what the sentence says

    def fail(self, message: str) -> None:
        """The program that decodes failed: its run did, too."""
        if self.off is None:
            self._end("failed", message)

    def detach(self) -> None:
        """Ends the run, takes the hooks away and gives the model its generate back. A second call does nothing."""
        if not self._handles:
            return
        if self.off is None:
            try:
                self._end("finished", None)
            except Exception as error:
                self._turn_off(f"recording stopped: {type(error).__name__}: {error}")
        if self._passes == 0:
            log.warning("nothing is recorded: no forward pass of the model was seen; those that torch.compile has compiled are not")
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._model.__dict__.get("generate") == self._wrapped_generate:
            if self._wrapped_before is None:
                del self._model.generate
            else:
                self._model.generate = self._wrapped_before
        else:
            log.warning("generate of the model was wrapped by somebody else meanwhile; it is left as it is")


class IndexerRecording(Attached):
    """A model with indexers: what they give is what is written."""

    def __init__(self, recorder: Recorder, model: Any, *, block_size: int, method: str | None, **more: Any):
        self._found = _indexers(model)
        if not self._found:
            raise ValueError(
                f"{type(model).__name__} has no module that selects (a class called *Indexer); for a dense model name the method "
                'that is evaluated beside it, e.g. shadow="quest", and a loop of your own records with Recorder.run() and '
                "Step.select()"
            )
        self._block_size = block_size
        self._method = method
        self._forms: dict[Any, _Form | None] = {}  # by module; None: not understood
        super().__init__(recorder, model, **more)

    def _watch(self) -> list[Any]:
        return [
            module.register_forward_hook(functools.partial(self._selected, _layer_of(self._model, name, module)), with_kwargs=True)
            for name, module in self._found.items()
        ]

    @_guarded
    def _selected(self, layer: int | None, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self._pass is None:
            return
        if layer is None:
            layer = kwargs.get("layer_idx", args[-1] if args and isinstance(args[-1], int) else None)
        if layer is None:
            self._note(f"{type(module).__name__} does not say which layer it is in; it is not recorded")
            return
        if module not in self._forms:
            self._forms[module] = _form_of(module, output)
            if self._forms[module] is None:
                shape = tuple(output.shape) if hasattr(output, "shape") else type(output).__name__
                self._note(f"the output {shape} of {type(module).__name__} is neither ids nor a mask; it is not recorded")
        form = self._forms[module]
        if form is not None and self._pass.phase == "decode":
            last = output[:, :, -1] if output.dim() == 4 else output if output.shape[1] == 1 else output[:, -1:]
            self._pass.selected.append((layer, form, last.detach().clone() if last.requires_grad else last.clone()))  # [B, heads, k] or, of a mask, [B, 1, T]

    def _missing(self) -> str | None:
        return None if self._known_forms() else "no indexer was called; nothing is recorded"

    def _run_fields(self) -> dict[str, Any]:
        forms, config = self._known_forms(), self._config
        blocks = {form.block_size for form in forms if form.unit == "block"}
        if blocks and self._block_size and blocks != {self._block_size}:
            raise ValueError(f"block_size is {self._block_size}, but this model selects blocks of {sorted(blocks)} tokens; leave it out")
        self._run_block_size = next(iter(blocks)) if len(blocks) == 1 else self._block_size or _TOKEN_BLOCK
        meta = {"unit": forms[0].unit}
        kinds = getattr(config, "indexer_types", None)
        if kinds:
            leaders = [max((i for i in range(layer + 1) if kinds[i] == "full"), default=layer) for layer in range(len(kinds))]
            meta["index_leader"] = json.dumps(leaders)
        family = config.model_type.removesuffix("_text")
        return dict(
            method=self._method or _METHODS.get(family) or type(next(iter(self._found.values()))).__name__.lower(),
            params={name: value for name, value in vars(config).items() if name.startswith("index") and isinstance(value, (int, float))},
            block_size=self._run_block_size,
            kv_heads=max(form.heads for form in forms),
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            block_bytes=_numbers_per_token(config) * self._run_block_size * self._bytes_per_number(),
            meta=meta,
        )

    def _write(self, step: Step, done: _Pass, position: list[int]) -> None:
        rows = [row for row in range(len(position)) if not self._generation.finished[row]]  # type: ignore[union-attr]
        # Once for all layers, which have the same rows but where padding counts.
        at = numbers([position[row] for row in rows], "int64"), numbers(rows, "int32")
        for layer, form, output in done.selected:
            self._select(step, layer, form, output, position, rows, at)

    def _known_forms(self) -> list[_Form]:
        return [form for form in self._forms.values() if form is not None]

    def _select(self, step: Step, layer: int, form: _Form, output: Any, position: list[int], rows: list[int], at: tuple[Any, Any]) -> None:
        """One layer. rows: of the batch that go on; at: their positions and numbers as arrays."""
        import torch

        generation = self._generation
        assert generation is not None
        ids = output.cpu()
        if form.unit == "mask":
            chosen = ids if ids.dtype is torch.bool else ids == 0
            ids = torch.where(chosen, torch.arange(ids.shape[-1]), -1)
        if form.unit == "block":
            padded = [row for row in rows if generation.padded(row)]
            if padded:
                self._note("blocks of this model count from the first column, padding included; padded sequences are not recorded")
                rows = [row for row in rows if row not in padded]
                at = [position[row] for row in rows], rows
        elif generation.positions is not None:
            ids = self._positions_of(ids)
        if not rows:
            return
        if len(rows) != len(position):
            ids = ids[rows]
        unit = "block" if form.unit == "block" else "token"
        if form.unit == "block" and form.block_size != self._run_block_size:
            raise ValueError(f"layer {layer} selects blocks of {form.block_size} tokens, the run has {self._run_block_size}")
        step.select(layer, ids, position=at[0], seq=at[1], unit=unit)

    def _positions_of(self, ids: Any) -> Any:
        """Columns of the cache as positions in the sequence; -1 where a column is padding."""
        import torch

        generation = self._generation
        assert generation is not None
        ids = ids.long()
        new = torch.arange(max(int(ids.max()) + 1 - generation.prompt_columns, 0))
        table = torch.cat([generation.positions, torch.tensor(generation.lengths)[:, None] + new[None, :]], dim=1)
        places = table[:, None, :].expand(-1, ids.shape[1], -1).gather(-1, ids.clamp(min=0))
        return torch.where(ids < 0, -1, places)


def attach(recorder: Recorder, model: Any, *, shadow: str | None = None, name: str | None = None, tokens: bool = True,
           tokenizer: Any = None, meta: Mapping[str, str] | None = None, **options: Any) -> Attached:  # fmt: skip
    """Records `model` until the recorder closes: one run of the trace for each prompt (or batch of prompts).

    shadow: None for a model that selects by itself; or a method of kvscope.methods, whose choice is computed beside the
        attention of a dense model.
    name: of the runs. tokens: False leaves prompts and generated tokens out. tokenizer: for the texts of tokens. meta: more
        keys of run_meta.
    options without shadow: block_size, tokens of a block of the trace, where the model selects tokens (0: 64); method, name of
        the method.
    options with shadow: those of kvscope.shadow.ShadowRecording: params, budget, mass, every, eviction.
    Raises ValueError if no module of the model selects, and for models that are compiled or have an encoder; TypeError for an option that there is not.
    """
    kind: type[Attached] = IndexerRecording
    known: dict[str, Any] = {"block_size": 0, "method": None}
    if shadow is not None:
        from .shadow import OPTIONS, ShadowRecording

        kind, known = ShadowRecording, {"shadow": shadow, **OPTIONS}
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "the model is compiled (torch.compile), and no hook sees what it does; record, and generate with, the model that was compiled"
        )
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError(f"{type(model).__name__} has an encoder and a decoder; models that are a decoder alone are recorded")
    for option in options:
        if option not in known:
            raise TypeError(f"there is no option {option!r} {'with' if shadow else 'without'} shadow; there are {', '.join(known)}")
    return kind(recorder, model, name=name, tokens=tokens, tokenizer=tokenizer, meta=meta or {}, **{**known, **options})
