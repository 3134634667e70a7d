"""Recording: a file, its runs, their steps."""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

from . import _library as lib
from ._arrays import as_array, contiguous, dense, whole
from ._library import call

KNOWN = ("selections", "hits", "bytes", "transfer_times", "exposed_times", "step_times", "stage_times")
"""What a recording may know; what it does not is shown as "not known"."""

STAGES = ("qkv_linear", "rope", "compression", "stage1", "pooling", "offloading", "stage2", "attention", "o_linear", "ffn")
_LEVELS = {"counters": 0, "selections": 1, "full": 2}
_STATUS = {"finished": 1, "stopped": 2, "failed": 3}
_PHASES = {"prefill": 0, "decode": 1, "prompt": 2, "mixed": 3}
_UNITS = {"block": 0, "token": 1}


def _choice(table: Mapping[str, int], value: str, what: str) -> int:
    if value not in table:
        raise ValueError(f"{what} is {value!r}; give one of {', '.join(table)}")
    return table[value]


def _path(path: str | bytes | os.PathLike[str]) -> bytes:
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"the path {path!r} has a zero byte, which no file name has")
    return name


def _text(value: str | None) -> bytes | None:
    return None if value is None else value.encode("utf-8", errors="replace").replace(b"\0", b"")


def _json(params: Mapping[str, Any] | None) -> str:
    try:
        return json.dumps(dict(params or {}), allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise type(error)(f"params cannot be written as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """The value, with numbers of numpy and torch as Python's own."""
    if hasattr(value, "item") and getattr(value, "shape", None) == ():
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a type of JSON; give numbers, texts, lists or None")


def _pieces(texts: Sequence[str | bytes] | None, count: int, of: str) -> tuple[bytes | None, Any]:
    """Texts of `count` tokens end to end, and their offsets."""
    if texts is None:
        return None, None
    if isinstance(texts, (str, bytes)) or len(texts) != count:
        given = "one text" if isinstance(texts, (str, bytes)) else f"{len(texts)} texts"
        raise ValueError(f"{of}: {given} for {count} tokens; give a list with a text for each")
    parts = [text if isinstance(text, bytes) else text.encode("utf-8", errors="replace") for text in texts]
    offsets = (ctypes.c_int64 * (len(parts) + 1))()
    for i, part in enumerate(parts):
        offsets[i + 1] = offsets[i] + len(part)
    return b"".join(parts), offsets


def _ranked(path: str | bytes, rank: int) -> dict[str, str]:
    """Keys of run_meta for a file that is one of several: its rank, and the name that the files of all ranks share."""
    name = os.path.basename(os.fsdecode(path))
    if "%r" not in name:
        return {}
    group = name.removesuffix(".kvtrace").replace("%r", "").replace("%p", "").strip("-_. ")
    return {"rank": str(rank), "group": group or "run"}


class _Block:
    """What a `with` block ends. An exception that leaves the block stays the one that is seen, whatever the library then says."""

    def _leave(self, failed: bool, end: Callable[[], None]) -> None:
        try:
            end()
        except lib.Error:
            if not failed:
                raise


class Step(_Block):
    """One forward pass of the whole batch. A context manager: it is committed at the end, or discarded by an exception."""

    def __init__(self, run: Run, phase: str, tokens: int, start_ns: int | None):
        self._handle = ctypes.c_uint64()
        self._run = run
        self._done = False
        begin = lib.NOW if start_ns is None else whole(start_ns, "start_ns", 64)
        call("step_begin", run._handle, _choice(_PHASES, phase, "phase"), whole(tokens, "tokens"), begin, ctypes.byref(self._handle))

    def select(
        self,
        layer: int,
        ids: Any,
        *,
        position: Any,
        seq: Any = None,
        unit: str = "block",
        hit: Any = None,
        score: Any = None,
        origin: Any = None,
        mass: Any = None,
        count: Any = None,
        head0: int = 0,
    ) -> None:
        """What one layer selected, for the whole batch.

        ids: integers [rows, heads, k], or [rows, k] where one list serves all heads, or [k] of one row; -1 is passed
            over. numpy arrays and torch tensors on the CPU are read where they lie, with their strides.
        position: [rows] of the query's token, prompt included.
        seq: [rows] number of the sequence; row i is sequence i without it.
        unit: "block" (of the run's block_size tokens) or "token" (positions, which are folded to blocks).
        hit: as ids, true where the block was resident; given exactly where the run knows hits.
        score: as ids, float32. origin: as ids, codes of the format (0 sink, 1 window, 2 query-aware, ...).
        mass: [rows, heads] share of attention captured, 0..1. count: [rows, heads] valid ids.
        head0: KV head of head 0, where heads are sharded.
        """
        array = as_array(ids, ("int32", "int64"), "ids")
        if not 1 <= len(array.shape) <= 3:
            raise ValueError(f"ids has {len(array.shape)} axes; give [rows, heads, k], [rows, k] or [k]")
        besides = []
        for field, value, dtype in (("hit", hit, "uint8"), ("score", score, "float32"), ("origin", origin, "uint8")):
            if value is None:
                continue
            beside = as_array(value, (dtype,), field)
            if beside.shape != array.shape:
                raise ValueError(f"{field} has shape {beside.shape}, ids has {array.shape}; they must be equal")
            besides.append((field, beside))
        if any(beside.strides != array.strides for _, beside in besides):  # the library has one set of strides for all of them
            array = dense(array, "ids")
            besides = [(field, dense(beside, field)) for field, beside in besides]
        shape, strides = _three(array.shape, array.strides)
        rows, heads, k = shape
        record = lib.Selection(
            layer=whole(layer, "layer"), unit=_choice(_UNITS, unit, "unit"), id_type=int(array.dtype == "int64"), ids=array.address or None,
            rows=rows, heads=heads, k=k, row_stride=strides[0], head_stride=strides[1], id_stride=strides[2], head0=whole(head0, "head0"),
        )  # fmt: skip
        keep = [array]
        for field, beside in besides:
            keep.append(beside)
            setattr(record, field, beside.address or None)
        for field, value, dtype, size in (
            ("position", position, "int64", rows),
            ("sequence", seq, "int32", rows),
            ("count", count, "int32", rows * heads),
            ("mass", mass, "float32", rows * heads),
        ):
            if value is None:
                continue
            beside = contiguous([value] if isinstance(value, (int, float)) else value, dtype, size, field)
            keep.append(beside)
            setattr(record, field, beside.address or None)
        call("step_select", self._handle, ctypes.byref(record))
        del keep

    def layer(
        self,
        layer: int,
        *,
        start_ns: int = 0,
        stages_ns: Mapping[str, int] | None = None,
        h2d_blocks: int = 0,
        d2h_blocks: int = 0,
        h2d_bytes: int = 0,
        d2h_bytes: int = 0,
        transfer_ns: int = 0,
        exposed_ns: int = 0,
        hits: int = 0,
        misses: int = 0,
    ) -> None:
        """Times (ns, wall) and transfers (blocks, bytes, ns of the link) of one layer.

        stages_ns: names of STAGES. hits and misses: counts alone, of a layer without select.
        """
        wide = dict(start_ns=start_ns, h2d_bytes=h2d_bytes, d2h_bytes=d2h_bytes, transfer_ns=transfer_ns, exposed_ns=exposed_ns)
        narrow = dict(layer=layer, h2d_blocks=h2d_blocks, d2h_blocks=d2h_blocks, hits=hits, misses=misses)
        checked = {name: whole(value, name, 64) for name, value in wide.items()} | {name: whole(value, name) for name, value in narrow.items()}
        record = lib.Layer(**checked)
        for name, value in (stages_ns or {}).items():
            if name not in STAGES:
                raise ValueError(f"{name!r} is not a stage; there are {', '.join(STAGES)}")
            record.stage_ns[STAGES.index(name)] = whole(value, f"the time of {name}", 64)
        call("step_layer", self._handle, ctypes.byref(record))

    def stages(self, embed_ns: int = 0, lm_head_ns: int = 0, sample_ns: int = 0) -> None:
        """Sets the wall time (ns) of the stages outside the layers."""
        times = dict(embed_ns=embed_ns, lm_head_ns=lm_head_ns, sample_ns=sample_ns)
        call("step_stages", self._handle, *(whole(value, name, 64) for name, value in times.items()))

    def tokens(self, seq: int, position: int, ids: Any, texts: Sequence[str | bytes] | None = None) -> None:
        """Tokens that the step produced for a sequence: ids [n], the first at `position`, prompt included."""
        array = as_array(ids, ("int32",), "ids")
        if len(array.shape) != 1:
            raise ValueError(f"ids has {len(array.shape)} axes; give the tokens of one sequence, [n]")
        count = array.shape[0]
        array = dense(array, "ids")
        text, offsets = _pieces(texts, count, "the tokens of a step")
        call("step_tokens", self._handle, whole(seq, "seq"), whole(position, "position", 64), array.address or None, count, text, offsets)

    def prompt(self, seq: int, first: int, ids: Any = None, texts: Sequence[str | bytes] | None = None, *, tokens: int | None = None,
               begins: bool | None = None) -> None:  # fmt: skip
        """A piece of a sequence's prompt, or a whole one, that a step of phase "prompt" or "mixed" reads.

        first: position of its first token. ids: its tokens [n], or None with their number in `tokens`.
        begins: whether it is the first piece of a prompt, behind which the sequence has nothing of before (another request
            has its row); None: where `first` is 0. Say so where a first piece begins behind a prefix from a cache.
        """
        count, array = tokens, None
        text, offsets = None, None
        if ids is not None:
            array = as_array(ids, ("int32",), "ids")
            if len(array.shape) != 1:
                raise ValueError(f"ids has {len(array.shape)} axes; give the tokens of one sequence, [n]")
            if tokens is not None and tokens != array.shape[0]:
                raise ValueError(f"tokens is {tokens} for {array.shape[0]} ids; leave it out")
            count = array.shape[0]
            array = dense(array, "ids")
            text, offsets = _pieces(texts, count, "a piece of a prompt")
        if count is None:
            raise ValueError("a piece of a prompt has neither ids nor tokens; give one of both")
        if texts is not None and ids is None:
            raise ValueError("a piece of a prompt has texts without ids; give both")
        start = whole(first, "first", 64)
        record = lib.PromptPiece(
            sequence=whole(seq, "seq"), begins=int(start == 0 if begins is None else bool(begins)), tokens=whole(count, "tokens"), first=start,
            ids=array.address or None if array is not None else None, text=text,
            offsets=ctypes.cast(offsets, ctypes.c_void_p) if offsets else None,
        )  # fmt: skip
        call("step_prompt", self._handle, ctypes.byref(record))

    def commit(self, end_ns: int | None = None) -> None:
        """Hands the whole step over. end_ns: since the run began; None: now. Raises Error if the step breaks a rule, and then discards it."""
        end = lib.NOW if end_ns is None else whole(end_ns, "end_ns", 64)
        self._done = True  # also where it is refused: the library discards it then
        call("step_commit", self._handle, end)

    def discard(self) -> None:
        """Ends the step without recording it; health() counts it among discarded_steps."""
        self._done = True
        call("step_discard", self._handle)

    def __enter__(self) -> Step:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._done:  # committed or discarded within the block
            self._leave(kind is not None, self.commit if kind is None else self.discard)


def _three(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """[rows, k] and [k] as [rows, heads, k]."""
    if len(shape) == 2:
        return (shape[0], 1, shape[1]), (strides[0], 0, strides[1])
    if len(shape) == 1:
        return (1, 1, shape[0]), (0, 0, strides[0])
    return shape, strides


class Run(_Block):
    """Steps that read prompts, and decode steps. A context manager: it ends as finished, or as failed by an exception."""

    def __init__(self, recorder: Recorder, info: lib.RunInfo):
        self._handle = ctypes.c_uint64()
        self._recorder = recorder  # which closes when nobody has it any more
        self._ended = False
        call("run_begin", recorder._handle, ctypes.byref(info), ctypes.byref(self._handle))

    def step(self, phase: str = "decode", tokens: int = 1, start_ns: int | None = None) -> Step:
        """Begins a step. tokens: fed in it, all sequences. start_ns: since the run began; None: now.

        phase: "decode"; "prefill", once and first, where the prompts of all sequences are read at once; "prompt" or "mixed" where they
        are read in pieces or come later, and Step.prompt says which.
        """
        return Step(self, phase, tokens, start_ns)

    def span(self, track: str, name: str, start_ns: int, duration_ns: int, *, step: int = -1, layer: int = -1) -> None:
        """Adds a stretch of time to a track of the timeline. start_ns: since the run began. step, layer: -1 where it belongs to none."""
        times = whole(start_ns, "start_ns", 64), whole(duration_ns, "duration_ns", 64)
        call("span", self._handle, _text(track), _text(name), *times, whole(step, "step"), whole(layer, "layer"), 0, -1)

    def counter(self, track: str, start_ns: int, duration_ns: int, value: int) -> None:
        """Adds a count over an interval, 0 or more, to a track of the timeline. start_ns: since the run began."""
        times = whole(start_ns, "start_ns", 64), whole(duration_ns, "duration_ns", 64)
        call("counter", self._handle, _text(track), *times, whole(value, "value", 64))

    def clock(self, name: str, own_ns: int, reference_ns: int, error_ns: int = 0) -> None:
        """Adds a reading of another clock: at own_ns since the run began that clock showed reference_ns, and the two moments are at most error_ns apart. Merging ranks uses it."""
        times = dict(own_ns=own_ns, reference_ns=reference_ns, error_ns=error_ns)
        call("clock", self._handle, _text(name), *(whole(value, key, 64) for key, value in times.items()))

    def now_ns(self) -> int:
        """Nanoseconds since the run began."""
        now = ctypes.c_int64()
        call("run_now", self._handle, ctypes.byref(now))
        return now.value

    def end(self, status: str = "finished", message: str | None = None) -> None:
        """Ends the run as "finished", "stopped" or "failed". A second call does nothing."""
        code = _choice(_STATUS, status, "status")
        if not self._ended:
            self._ended = True
            call("run_end", self._handle, code, _text(message))

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._leave(False, self.end)
        else:
            self._leave(True, lambda: self.end("failed", f"{kind.__name__}: {error}"))


class Recorder(_Block):
    """One file that is being written. A context manager: leaving it closes the file."""

    def __init__(self, path: str | os.PathLike[str], level: str = "selections", overwrite: bool = False, rank: int = 0,
                 queue_bytes: int = 0):  # fmt: skip
        self._handle = ctypes.c_uint64()
        self._closed = False
        self._attached: list[Any] = []
        self._run: weakref.ref[Run] | None = None
        self._path = os.fspath(path)
        self._ranked = _ranked(self._path, rank)
        options = lib.Options(level=_choice(_LEVELS, level, "level"), flags=int(bool(overwrite)), rank=whole(rank, "rank"),
                              queue_bytes=whole(queue_bytes, "queue_bytes", 64))  # fmt: skip
        call("open", _path(path), ctypes.byref(options), ctypes.byref(self._handle))
        _open_recorders.add(self)
        self._forgotten = weakref.finalize(self, _close_forgotten, self._handle.value)
        self._forgotten.atexit = False  # _close_all detaches from models as well

    def run(
        self,
        *,
        method: str,
        model: str = "",
        block_size: int,
        layers: int,
        kv_heads: int = 1,
        sequences: int = 1,
        knows: Iterable[str] = ("selections", "step_times"),
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        backend: str = "cpu",
        device: str = "",
        link: str = "",
        link_gbps: float = 0.0,
        link_latency_us: float = 0.0,
        modelled: bool = False,
        query_heads: int = 0,
        head_dim: int = 0,
        device_slots: int = 0,
        budget_blocks: int = 0,
        block_bytes: int = 0,
        sink_blocks: int = 0,
        window_blocks: int = 0,
        prompts: Sequence[Any] | None = None,
        prompt_texts: Sequence[Sequence[str | bytes]] | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Run:
        """Begins a run. A recorder has one at a time.

        block_size: tokens of a block. kv_heads: heads that select apart; 1 where one list serves all. sequences: rows of
        the batch. knows: words of KNOWN. link_gbps: 1e9 bytes per second. block_bytes: keys and values of one block of one KV
        head; above 0 in a run that knows selections.
        device_slots, budget_blocks, sink_blocks, window_blocks: blocks. prompts: one list of token ids per sequence.
        """
        if isinstance(knows, str):
            raise ValueError(f"knows is {knows!r}; give a list of words, e.g. [{knows!r}]")
        bits = 0
        for word in knows:
            if word not in KNOWN:
                raise ValueError(f"{word!r} is nothing that a run can know; there are {', '.join(KNOWN)}")
            bits |= 1 << KNOWN.index(word)
        keep: list[Any] = []
        sizes = dict(block_size=block_size, layers=layers, kv_heads=kv_heads, query_heads=query_heads, head_dim=head_dim, sequences=sequences,
                     device_slots=device_slots, budget_blocks=budget_blocks, sink_blocks=sink_blocks, window_blocks=window_blocks)  # fmt: skip
        info = lib.RunInfo(
            knows=bits, name=_text(name), model=_text(model), method=_text(method), params_json=_text(_json(params)),
            backend=_text(backend), device=_text(device), link=_text(link), link_gbps=link_gbps, link_latency_us=link_latency_us,
            modelled=int(modelled), block_bytes=whole(block_bytes, "block_bytes", 64),
            **{size: whole(value, size) for size, value in sizes.items()},
        )  # fmt: skip
        if prompt_texts is not None and len(prompt_texts) != len(prompts or ()):
            raise ValueError(f"there are {len(prompt_texts)} prompt_texts for {len(prompts or ())} prompts; give a list for each")
        if prompts is not None:
            records = (lib.Prompt * max(len(prompts), 1))()
            for i, ids in enumerate(prompts):
                array = as_array(ids, ("int32",), f"prompt {i}")
                if len(array.shape) != 1:
                    raise ValueError(f"prompt {i} has {len(array.shape)} axes; give a list of token ids for each sequence")
                array = dense(array, f"prompt {i}")
                text, offsets = _pieces(prompt_texts[i] if prompt_texts is not None else None, array.shape[0], f"prompt {i}")
                keep += [array, text, offsets]
                records[i] = lib.Prompt(array.address or None, array.shape[0], text, ctypes.cast(offsets, ctypes.c_void_p) if offsets else None)
            info.prompts, info.prompt_count = records, len(prompts)
        pairs = {"engine": "python", **self._ranked, **(meta or {})}
        info.meta = (lib.Pair * len(pairs))(*[lib.Pair(_text(str(key)), _text(str(value))) for key, value in pairs.items()])
        info.meta_count = len(pairs)
        run = Run(self, info)
        self._run = weakref.ref(run)
        del keep
        return run

    def transformers(self, model: Any, **options: Any) -> Any:
        """Records a model of transformers until the recorder closes. See kvscope.transformers.attach for the options."""
        from .transformers import attach

        attached = attach(self, model, **options)
        self._attached.append(attached)
        return attached

    @property
    def health(self) -> dict[str, int]:
        """What was lost: dropped_steps, discarded_steps, future_ids, duplicate_ids; writer_busy_ns; failed (0 or 1)."""
        record = lib.Health()
        call("get_health", self._handle, ctypes.byref(record))
        return {name: getattr(record, name) for name, _ in record._fields_ if name != "size" and not name.startswith("reserved")}

    def flush(self, timeout_s: float = 30.0) -> None:
        """Waits until everything that was committed is in the file. Raises Error if that takes too long or the file cannot be written."""
        call("flush", self._handle, int(timeout_s * 1000))

    def close(self, timeout_s: float = 30.0) -> None:
        """Detaches from models, ends an open run as stopped, and finishes the file. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self._forgotten.detach()
        _open_recorders.discard(self)
        for attached in self._attached:
            attached.detach()
        call("close", self._handle, int(timeout_s * 1000))

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            said = f"{kind.__name__}: {error}"
            for attached in self._attached:
                attached.fail(said)
            run = self._run() if self._run is not None else None
            if run is not None:
                self._leave(True, lambda: run.end("failed", said))
        self._leave(kind is not None, self.close)

    def __repr__(self) -> str:
        return f"<kvscope.Recorder {self._path!r}{', closed' if self._closed else ''}>"


def _close_forgotten(handle: int) -> None:
    """Closes the file of a recorder that nobody has any more, such as one whose name a notebook has given to another."""
    try:
        call("close", handle, 30_000)
    except lib.Error:
        pass  # a forked child, or a disk that is full


_open_recorders: weakref.WeakSet[Recorder] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for recorder in list(_open_recorders):
        try:
            recorder.close()
        except lib.Error:
            pass  # a forked child, or a disk that is full: there is nobody left to tell


def record(path: str | os.PathLike[str], model: Any = None, *, level: str = "selections", overwrite: bool = True, rank: int = 0,
           **options: Any) -> Recorder:  # fmt: skip
    """Records into `path`, where %r is the rank and %p the process.

    model: a model of transformers, recorded until the recorder closes; `options` are those of Recorder.transformers.
    level: "counters", "selections" or "full" (with scores). overwrite: False adds runs to a trace that is there.
    """
    if model is None and options:
        raise TypeError(f"record() has no option {next(iter(options))!r} without a model")
    recorder = Recorder(path, level, overwrite, rank)
    if model is not None:
        try:
            recorder.transformers(model, **options)
        except BaseException:
            recorder.close()
            raise
    return recorder
