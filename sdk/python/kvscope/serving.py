"""Records what servers select while they serve: SGLang and vLLM with DeepSeek sparse attention.

An engine's indexer gives token positions. They are folded to blocks on the device, within the forward pass, so that CUDA graphs that are
replayed fold as well; after the pass the folded rows are copied to the host without waiting, and written in a later step. Recorded are
decode steps alone, of a few requests at a time; no token, text or name of a request is. SGLang needs SGLANG_DSA_FUSE_TOPK=0 for it.

Every seam is looked for by name and signature. One that is missing turns recording off with one sentence; an error while recording does
the same, and the engine goes on.

| variable | |
| --- | --- |
| KVSCOPE_TRACE | the file; %r is the rank, %p the process. Without either, rank 0 alone records. A trace that is there gets another run |
| KVSCOPE_BLOCK | tokens of a block (64) |
| KVSCOPE_SEQUENCES | requests that are recorded at a time (4) |
"""

from __future__ import annotations

import collections
import functools
import importlib
import inspect
import logging
import os
import re
import sys
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from ._library import Error
from .writing import Recorder, Run

log = logging.getLogger("kvscope")

_ROWS = 256  # requests of one run; the one after them begins another
_WAITING = 8  # copies that are under way at most
_UNSEEN = 64  # decode steps in which no indexer was seen: then it is said
_TOKEN_LEVEL = 4
_TOKEN_BYTES = 656  # of DeepSeek's latent cache in FP8: 512 numbers, 16 bytes of scales, 128 bytes rotated


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"{name} is {text!r}; give a number of at least 1")
    return int(text)


def _rank() -> int:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", "0"))


class Folded:
    """On the device, which blocks the tokens of a layer lie in: bool [layers, rows, blocks + 1]; the last column takes what is none."""

    def __init__(self, layers: int, rows: int, tokens: int, block_size: int, device: Any):
        import torch

        self.block_size = block_size
        self.blocks = (tokens + block_size - 1) // block_size
        self.buffer = torch.zeros((layers, rows, self.blocks + 1), dtype=torch.bool, device=device)
        self.seen: set[int] = set()

    def fold(self, layer: int, ids: Any) -> None:
        """ids: integers [rows, k], token positions, -1 for none. Shapes alone decide what runs, so that a CUDA graph captures it."""
        import torch

        rows = min(ids.shape[0], self.buffer.shape[1])
        if layer >= self.buffer.shape[0]:
            return
        self.seen.add(layer)
        ids = ids[:rows].long()
        place = torch.where(ids < 0, self.blocks, ids // self.block_size).clamp(max=self.blocks)
        mine = self.buffer[layer, :rows]
        mine.zero_()
        mine.scatter_(1, place, True)


class Served:
    """The trace of one process of a server, opened with its first step."""

    def __init__(self, engine: str, version: str, model: str, block_size: int, layers: int):
        self.off: str | None = None
        self.dropped = 0  # steps, because too many copies were under way
        self.left_out = 0  # rows of requests beyond KVSCOPE_SEQUENCES
        self._unseen = 0  # decode steps in which no indexer was seen
        self._engine, self._version, self._model = engine, version, model
        self._block_size, self._layers = block_size, layers
        self._limit = _setting("KVSCOPE_SEQUENCES", 4)
        self._recorder: Recorder | None = None
        self._run: Run | None = None
        self._rows: dict[Hashable, tuple[int, int]] = {}  # request -> row of the run, position of its last step
        self._used = 0
        self._waiting: collections.deque[tuple[Any, Any, list[int], list[tuple[int, int, int]]]] = collections.deque()

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs what records; an error turns recording off and is said once."""
        if self.off is not None:
            return
        try:
            work()
        except Exception as error:  # whatever it is, it is not the engine's trouble
            self.turn_off(f"recording stopped: {type(error).__name__}: {error}")

    def turn_off(self, sentence: str) -> None:
        self.off = sentence
        log.warning("kvscope: %s", sentence)
        if self._run is not None:
            try:
                self._run.end("failed", sentence)
            except Error:
                pass  # the file cannot be written: that is what the sentence says

    def step(self, folded: Folded, rows: Sequence[tuple[int, Hashable, int]]) -> None:
        """A decode step has been issued. rows: (row of the buffer, request, position of its query)."""
        import torch

        self._write_ready(wait=False)
        if not rows:  # such as a forward pass of nothing, which keeps data-parallel ranks in step
            return
        if not folded.seen:
            self.unseen()
        chosen = self._places([row for row in rows if row[0] < folded.buffer.shape[1]])
        if not chosen or not folded.seen:
            return
        if len(self._waiting) >= _WAITING:
            self.dropped += 1
            return
        layers = sorted(folded.seen)
        # Slices alone: an index list would be copied to the device, and the host would wait for that.
        source = folded.buffer[: layers[-1] + 1, : max(at for at, _, _ in chosen) + 1, : folded.blocks]
        event = None
        if source.device.type == "cuda":
            target = torch.empty(source.shape, dtype=torch.bool, pin_memory=True)
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
            source = target
        self._waiting.append((event, source, layers, chosen))
        if event is None:
            self._write_ready(wait=False)

    def unseen(self) -> None:
        """A decode step in which no indexer was seen."""
        self._unseen += 1
        if self._unseen == _UNSEEN:
            self.turn_off(f"not recording: no indexer was seen in {_UNSEEN} decode steps; those of this model go another way")

    def _places(self, rows: Sequence[tuple[int, Hashable, int]]) -> list[tuple[int, int, int]]:
        """(row of the buffer, row of the run, position) of the requests that are recorded."""
        self._rows = {request: self._rows[request] for _, request, position in rows
                      if request in self._rows and position == self._rows[request][1] + 1}  # fmt: skip
        new = [request for _, request, _ in rows if request not in self._rows][: max(self._limit - len(self._rows), 0)]
        if self._used + len(new) > _ROWS and self._run is not None:
            self._write_ready(wait=True)
            self._run.end("finished", self._said())
            self._run, self._used = None, 0
            new = list(self._rows) + new
        for request in new:
            self._rows[request] = self._used, 0
            self._used += 1
        chosen = []
        for at, request, position in rows:
            if request in self._rows:
                self._rows[request] = self._rows[request][0], position
                chosen.append((at, self._rows[request][0], position))
            else:
                self.left_out += 1
        return chosen

    def _write_ready(self, wait: bool) -> None:
        import torch

        while self._waiting and (wait or self._waiting[0][0] is None or self._waiting[0][0].query()):
            event, chosen, layers, rows = self._waiting.popleft()
            if event is not None and wait:
                event.synchronize()
            if self._run is None:
                self._run = self._begin()
            at, seq, position = (list(column) for column in zip(*rows))
            behind = torch.arange(chosen.shape[-1]) > torch.tensor(position)[:, None] // self._block_size
            with self._run.step(tokens=len(rows)) as step:
                for layer in layers:
                    mine = chosen[layer][at]
                    if bool((mine & behind).any()):
                        raise ValueError(f"layer {layer} gives tokens behind its query's: other numbers than positions")
                    most = int(mine.sum(-1).max())
                    order = mine.to(torch.uint8).sort(dim=-1, descending=True, stable=True)
                    ids = torch.where(order.values[:, :most].bool(), order.indices[:, :most], -1)
                    step.select(layer, ids[:, None].contiguous(), position=position, seq=seq,
                                origin=torch.full((len(rows), 1, most), _TOKEN_LEVEL, dtype=torch.uint8))  # fmt: skip

    def _begin(self) -> Run:
        if self._recorder is None:
            self._recorder = Recorder(os.environ["KVSCOPE_TRACE"], overwrite=False, rank=_rank())
        return self._recorder.run(
            method="dsa", model=self._model, block_size=self._block_size, layers=self._layers, sequences=_ROWS, knows=("selections",),
            block_bytes=_TOKEN_BYTES * self._block_size, backend="cuda",
            meta={"engine": self._engine, "engine_version": self._version, "unit": "token", "rank": str(_rank())},
        )  # fmt: skip

    def _said(self) -> str | None:
        said = []
        if self.dropped:
            said.append(f"{self.dropped} steps were dropped, because copies to the host were behind")
        if self.left_out:
            said.append(f"{self.left_out} rows of requests beyond the first {self._limit} at a time were left out (KVSCOPE_SEQUENCES)")
        return "; ".join(said) or None

    def close(self) -> None:
        """Writes what is under way and finishes the file; engines that end by a signal lose the last second at most."""
        if self._recorder is None and not self._waiting:
            return
        if self.off is None:
            self._write_ready(wait=True)
            if self._run is not None:
                self._run.end("finished", self._said())
        if self._recorder is not None:
            self._recorder.close()


def _records_here() -> bool:
    """Whether this process records: where the path names neither rank nor process, rank 0 alone."""
    path = os.environ["KVSCOPE_TRACE"]
    return "%r" in path or "%p" in path or _rank() == 0


def _say(engine: str, version: str, missing: str | None) -> None:
    if missing is None:
        log.warning("kvscope: recording selections of %s %s; hits, transfers and times are not known", engine, version)
    else:
        log.warning("kvscope: not recording: %s %s %s", engine, version, missing)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except Exception:  # a part of an engine that cannot be imported here is one that is not there
        return None


def _compresses(config: Any) -> bool:
    """Whether indexers select entries that stand for several tokens, as those of DeepSeek-V4 do."""
    return any(getattr(config, name, None) for name in ("compress_ratios", "compress_rates"))


def _takes(function: Any, *names: str) -> bool:
    """Whether a function has these parameters."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False
    return all(name in parameters for name in names)


# ---- SGLang ----

_CAPTURER = "sglang.srt.state_capturer.indexer_topk"


class Capturer:
    """A capturer of SGLang (state_capturer/indexer_topk.py) that records, beside the engine's own one if there is one."""

    def __init__(self, inner: Any, served: Served, folded: Folded):
        self._inner, self._served, self._folded = inner, served, folded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def get_topk(self, *args: Any, **kwargs: Any) -> Any:
        """What a request that ended gets back; the scheduler asks for it with every capturer. None: the engine's own flag is off."""
        return self._inner.get_topk(*args, **kwargs) if self._inner is not None else None

    def capture(self, layer_id: int, topk_indices: Any, **more: Any) -> None:
        """Called by every layer, within the captured part of a CUDA graph. topk_indices: int32 [rows, topk]."""
        if self._inner is not None:
            self._inner.capture(layer_id=layer_id, topk_indices=topk_indices, **more)
        self._served.guarded(lambda: self._folded.fold(layer_id, topk_indices))

    def on_forward_end(self, forward_batch: Any, *args: Any, **kwargs: Any) -> Any:
        """Called after each forward pass; what the engine's own capturer gives is passed on."""
        self._served.guarded(lambda: self._step(forward_batch))
        return self._inner.on_forward_end(forward_batch, *args, **kwargs) if self._inner is not None else None

    def _step(self, batch: Any) -> None:
        # A draft model decodes, too, after the model that it drafts for.
        if not batch.forward_mode.is_decode() or getattr(batch, "spec_info", None) is not None or not _records_here():
            return
        lengths, requests = getattr(batch, "seq_lens_cpu", None), getattr(batch, "rids", None)
        if lengths is None:  # on the device: the host waits for it
            lengths = batch.seq_lens
        if requests is None:
            requests = batch.req_pool_indices.tolist()
        self._served.step(self._folded, [(row, one, length - 1) for row, (one, length) in enumerate(zip(requests, lengths.tolist()))])

    def destroy(self) -> None:
        if self._inner is not None:
            self._inner.destroy()
        self._served.guarded(self._served.close)


def record_sglang() -> str | None:
    """Hooks the factory of SGLang's capturer. The result is None, or the sentence that says which seam is missing."""
    version = str(getattr(_module("sglang"), "__version__", ""))
    missing = _hook_sglang(version)
    _say("sglang", version, missing)
    return missing


def _hook_sglang(version: str) -> str | None:
    registry, module = _module("sglang.srt.plugins.hook_registry"), _module(_CAPTURER)
    if registry is None or not hasattr(registry, "HookRegistry") or not hasattr(registry, "HookType"):
        return "has no sglang.srt.plugins.hook_registry"
    factory = getattr(module, "create_indexer_capturer", None)
    if not callable(factory) or not _takes(factory, "num_tokens", "max_running_requests", "device"):
        return f"has no {_CAPTURER}.create_indexer_capturer(num_tokens, max_running_requests, device)"
    base = getattr(_module("sglang.srt.state_capturer.base"), "BaseTopkCapturer", None)
    capture, ends = getattr(base, "capture", None), getattr(base, "on_forward_end", None)
    if not _takes(capture, "layer_id", "topk_indices") or not _takes(ends, "forward_batch"):
        return "has no BaseTopkCapturer.capture(layer_id, topk_indices) and on_forward_end(forward_batch)"

    def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inner = original(*args, **kwargs)
        try:
            return _sglang_capturer(inner, version, kwargs) or inner
        except Exception as error:  # whatever it is, it is not the engine's trouble
            log.warning("kvscope: not recording: %s: %s", type(error).__name__, error)
            return inner

    registry.HookRegistry.register(f"{_CAPTURER}.create_indexer_capturer", around, registry.HookType.AROUND)
    return None


def _fused_topk() -> str | None:
    """The variable by which top-k kernels give places in the KV pool instead of positions; None if they give positions."""
    known = getattr(_module("sglang.srt.environ"), "envs", None)
    for name in ("SGLANG_DSA_FUSE_TOPK", "SGLANG_NSA_FUSE_TOPK"):
        field = getattr(known, name, None)
        if field is not None and bool(field.get()):
            return name
    return None


def _sglang_capturer(inner: Any, version: str, given: dict[str, Any]) -> Capturer | None:
    config = given.get("model_config")
    text = getattr(config, "hf_text_config", None)
    layers = getattr(text, "num_hidden_layers", None) or given.get("num_indexer_layers")
    topk = getattr(text, "index_topk", None) or given.get("index_topk")
    tokens = getattr(config, "context_len", None) or getattr(text, "max_position_embeddings", None) or given["num_tokens"]
    if not layers or not topk:
        log.warning("kvscope: not recording: the model has no indexer (index_topk)")
        return None
    if _compresses(text):
        log.warning("kvscope: not recording: indexers of this model select compressed entries, not tokens")
        return None
    if (fused := _fused_topk()) is not None:
        log.warning("kvscope: not recording: fused top-k kernels give places in the KV pool, not positions; start the server with %s=0", fused)
        return None
    size = _setting("KVSCOPE_BLOCK", 64)
    served = Served("sglang", version, str(getattr(config, "model_path", "")), size, int(layers))
    folded = Folded(int(layers), int(given["max_running_requests"]), int(tokens), size, given["device"])
    return Capturer(inner, served, folded)


# ---- vLLM ----

_OP = "sparse_attn_indexer"
_RUNNER = "vllm.v1.worker.gpu_model_runner"
_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"


class VllmRecording:
    """Sees the indexer, which writes one buffer for all layers, and the model runner, which knows the requests of its rows.

    A model calls the indexer as an op or as the function that was registered; of the two runners the configuration chooses one.
    """

    def __init__(self, version: str) -> None:
        self._version = version
        self._served: Served | None = None
        self._folded: Folded | None = None
        self._limits: tuple[int, int, int, str] | None = None  # layers, rows, tokens, model
        self._unseen = 0  # decode steps before the first call of an indexer
        self.off: str | None = None

    def wrap_op(self, op: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(op).parameters)
        places = [(name, names.index(name)) for name in ("k_cache_prefix", "hidden_states", "topk_indices_buffer")]

        @functools.wraps(op)
        def indexer(*args: Any, **kwargs: Any) -> Any:
            result = op(*args, **kwargs)
            self._guarded(lambda: self._fold(*(args[at] if at < len(args) else kwargs[name] for name, at in places)))
            return result

        return indexer

    def wrap_execute(self, execute: Callable[..., Any], rows_of: Callable[[Any, Any], list[tuple[int, Hashable, int]]]) -> Callable[..., Any]:
        """rows_of: of a runner and what was scheduled, the decode steps of one token as (row, request, position)."""
        names = list(inspect.signature(execute).parameters)
        dummy = names.index("dummy_run") - 2 if "dummy_run" in names else None  # in args, behind runner and scheduler_output

        @functools.wraps(execute)
        def execute_model(runner: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
            self._guarded(lambda: self._learn(runner))
            result = execute(runner, scheduler_output, *args, **kwargs)
            trial = kwargs.get("dummy_run") or (dummy is not None and len(args) > dummy and args[dummy])
            if not trial:
                self._guarded(lambda: self._step(rows_of(runner, scheduler_output)))
            return result

        return execute_model

    def _guarded(self, work: Callable[[], None]) -> None:
        if self.off is not None:
            return
        try:
            work()
        except Exception as error:  # whatever it is, it is not the engine's trouble
            self.off = f"recording stopped: {type(error).__name__}: {error}"
            if self._served is not None:
                self._served.turn_off(self.off)
            else:
                log.warning("kvscope: %s", self.off)

    def _turn_off(self, sentence: str) -> None:
        self.off = sentence
        log.warning("kvscope: %s", sentence)

    def _learn(self, runner: Any) -> None:
        if self._limits is None:
            config = runner.model_config
            if _compresses(config.hf_text_config):
                self._turn_off("not recording: indexers of this model select compressed entries, not tokens")
                return
            if getattr(runner, "speculative_config", None) is not None:
                self._turn_off("not recording: with speculative decoding, positions of rows are known only behind the step")
                return
            layers = int(config.hf_text_config.num_hidden_layers)
            self._limits = layers, int(runner.max_num_reqs), int(config.max_model_len), str(config.model)

    def _fold(self, prefix: Any, hidden: Any, buffer: Any) -> None:
        prefix = getattr(prefix, "value", prefix)  # some versions wrap names for torch.compile
        layer = re.search(r"layers\.(\d+)\.", str(prefix))
        if layer is None:
            raise ValueError(f"the layer of {prefix!r} is not known")
        if self._folded is None:
            if self._limits is None or not _records_here():
                return  # a profile run, before the first step
            layers, rows, tokens, model = self._limits
            size = _setting("KVSCOPE_BLOCK", 64)
            self._folded = Folded(layers, rows, tokens, size, buffer.device)
            self._served = Served("vllm", self._version, model, size, layers)
        self._folded.fold(int(layer.group(1)), buffer[: hidden.shape[0]])

    def _step(self, rows: list[tuple[int, Hashable, int]]) -> None:
        if self._folded is not None and self._served is not None:
            self._served.step(self._folded, rows)
        elif rows and _records_here():
            self._unseen += 1
            if self._unseen == _UNSEEN:
                self._turn_off(f"not recording: no indexer was seen in {_UNSEEN} decode steps; those of this model go another way")

    def close(self) -> None:
        if self._served is not None:
            self._served.guarded(self._served.close)


def _rows_of_runner(runner: Any, scheduled: Any) -> list[tuple[int, Hashable, int]]:
    batch, rows, at = runner.input_batch, [], 0
    for i, request in enumerate(batch.req_ids):
        tokens = int(scheduled.num_scheduled_tokens.get(request, 0))
        position = int(batch.num_computed_tokens_cpu[i])
        if tokens == 1 and position >= int(batch.num_prompt_tokens[i]):
            rows.append((at, request, position))
        at += tokens
    return rows


def _rows_of_runner_v2(runner: Any, scheduled: Any) -> list[tuple[int, Hashable, int]]:
    state = runner.execute_model_state
    if state is None:  # nothing was scheduled
        return []
    batch, rows = state.input_batch, []
    for i, request in enumerate(batch.req_ids):
        if int(batch.num_scheduled_tokens[i]) == 1 and not batch.is_prefilling_np[i]:
            rows.append((int(batch.query_start_loc_np[i]), request, int(batch.num_computed_tokens_np[i])))
    return rows


def record_vllm() -> str | None:
    """Wraps vLLM's indexer before it is registered and imported, and its model runners. The result is None, or what is missing in a sentence."""
    import atexit

    version = str(getattr(_module("vllm"), "__version__", ""))
    recording = VllmRecording(version)
    missing = _hook_vllm(recording)
    if missing is None:
        atexit.register(recording.close)
    _say("vllm", version, missing)
    return missing


def _hook_vllm(recording: VllmRecording) -> str | None:
    name = "vllm.model_executor.layers.sparse_attn_indexer"
    if name in sys.modules:
        return f"has imported {name} already, before plugins were loaded"
    utilities = _module("vllm.utils.torch_utils")
    register = getattr(utilities, "direct_register_custom_op", None)
    if not _takes(register, "op_name", "op_func"):
        return "has no vllm.utils.torch_utils.direct_register_custom_op(op_name, op_func)"
    assert register is not None
    found: list[str] = []

    @functools.wraps(register)
    def registering(*args: Any, **kwargs: Any) -> Any:
        op_name = kwargs.get("op_name", args[0] if args else None)
        if op_name == _OP:
            op = kwargs.get("op_func", args[1] if len(args) > 1 else None)
            if _takes(op, "k_cache_prefix", "hidden_states", "topk_indices_buffer"):
                found.append(_OP)
                if "op_func" in kwargs:
                    kwargs["op_func"] = recording.wrap_op(kwargs["op_func"])
                else:
                    args = (args[0], recording.wrap_op(args[1]), *args[2:])
        return register(*args, **kwargs)

    utilities.direct_register_custom_op = registering
    try:
        module = _module(name)
    finally:
        utilities.direct_register_custom_op = register
    function = getattr(module, _OP, None)  # models that call it as a function import it from here
    if found and _takes(function, "k_cache_prefix", "hidden_states", "topk_indices_buffer"):
        setattr(module, _OP, recording.wrap_op(function))
    if module is None or not found:
        return f"has no op {_OP} with k_cache_prefix, hidden_states and topk_indices_buffer"
    missing = True
    for place, rows_of in ((_RUNNER, _rows_of_runner), (_RUNNER_V2, _rows_of_runner_v2)):
        runner = getattr(_module(place), "GPUModelRunner", None)
        if runner is not None and _takes(getattr(runner, "execute_model", None), "scheduler_output"):
            runner.execute_model = recording.wrap_execute(runner.execute_model, rows_of)
            missing = False
    if missing:
        recording.off = "there is no model runner to ask for requests"
        return f"has no {_RUNNER}.GPUModelRunner.execute_model(scheduler_output), nor one in {_RUNNER_V2}"
    return None
