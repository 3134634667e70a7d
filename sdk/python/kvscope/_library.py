"""libkvscope_trace by ctypes: its structs as in kvscope_trace.h, and errors as exceptions."""

from __future__ import annotations

import ctypes
import os
import re
from ctypes import c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64, c_uint8, c_void_p
from pathlib import Path
from typing import Any

NOW = -(2**63)
ABI_MAJOR = 1


class Error(RuntimeError):
    """What libkvscope_trace refused, in its own sentence. `status` is the code of kvscope_trace.h, e.g. -4: storage."""

    def __init__(self, sentence: str, status: int):
        super().__init__(sentence)
        self.status = status


class _Sized(ctypes.Structure):
    """A struct that begins with its size."""

    def __init__(self, **fields: Any):
        super().__init__(size=ctypes.sizeof(type(self)), **fields)


class Options(_Sized):
    _fields_ = [("size", c_uint32), ("level", c_int32), ("queue_bytes", c_uint64), ("flags", c_uint32), ("rank", c_int32)]


class Health(_Sized):
    _fields_ = [
        ("size", c_uint32), ("reserved", c_uint32), ("dropped_steps", c_int64), ("discarded_steps", c_int64),
        ("future_ids", c_int64), ("duplicate_ids", c_int64), ("writer_busy_ns", c_int64), ("failed", c_int32),
        ("reserved2", c_int32),
    ]  # fmt: skip


class Pair(ctypes.Structure):
    _fields_ = [("key", c_char_p), ("value", c_char_p)]


class Prompt(ctypes.Structure):
    _fields_ = [("ids", c_void_p), ("count", c_int64), ("text", c_char_p), ("offsets", c_void_p)]


class PromptPiece(_Sized):
    _fields_ = [
        ("size", c_uint32), ("sequence", c_int32), ("begins", c_int32), ("tokens", c_int32), ("first", c_int64), ("ids", c_void_p),
        ("text", c_char_p), ("offsets", c_void_p),
    ]  # fmt: skip


class RunInfo(_Sized):
    _fields_ = [
        ("size", c_uint32), ("knows", c_uint32), ("name", c_char_p), ("model", c_char_p), ("method", c_char_p),
        ("params_json", c_char_p), ("backend", c_char_p), ("device", c_char_p), ("link", c_char_p),
        ("link_gbps", c_double), ("link_latency_us", c_double), ("modelled", c_int32), ("block_size", c_int32),
        ("layers", c_int32), ("kv_heads", c_int32), ("query_heads", c_int32), ("head_dim", c_int32),
        ("sequences", c_int32), ("device_slots", c_int32), ("budget_blocks", c_int32), ("sink_blocks", c_int32),
        ("window_blocks", c_int32), ("prompt_count", c_int32), ("block_bytes", c_int64),
        ("prompts", ctypes.POINTER(Prompt)), ("meta", ctypes.POINTER(Pair)), ("meta_count", c_int64),
    ]  # fmt: skip


class Selection(_Sized):
    _fields_ = [
        ("size", c_uint32), ("layer", c_int32), ("unit", c_int32), ("id_type", c_int32), ("ids", c_void_p),
        ("rows", c_int64), ("heads", c_int64), ("k", c_int64), ("row_stride", c_int64), ("head_stride", c_int64),
        ("id_stride", c_int64), ("sequence", c_void_p), ("position", c_void_p), ("count", c_void_p), ("hit", c_void_p),
        ("score", c_void_p), ("origin", c_void_p), ("mass", c_void_p), ("head0", c_int32), ("reserved", c_int32),
    ]  # fmt: skip


class Layer(_Sized):
    _fields_ = [
        ("size", c_uint32), ("layer", c_int32), ("start_ns", c_int64), ("stage_ns", c_int64 * 10),
        ("h2d_blocks", c_int32), ("d2h_blocks", c_int32), ("h2d_bytes", c_int64), ("d2h_bytes", c_int64),
        ("transfer_ns", c_int64), ("exposed_ns", c_int64), ("hits", c_int32), ("misses", c_int32),
    ]  # fmt: skip


class Column(_Sized):
    _fields_ = [
        ("size", c_uint32), ("type", c_int32), ("name", c_char_p), ("rows", c_int64), ("present", ctypes.POINTER(c_uint8)),
        ("ints", ctypes.POINTER(c_int64)), ("reals", ctypes.POINTER(c_double)), ("text", c_void_p),
        ("offsets", ctypes.POINTER(c_int64)),
    ]  # fmt: skip


_SIGNATURES: dict[str, list[Any]] = {
    "open": [c_char_p, ctypes.POINTER(Options), ctypes.POINTER(c_uint64)],
    "flush": [c_uint64, c_int32],
    "close": [c_uint64, c_int32],
    "get_health": [c_uint64, ctypes.POINTER(Health)],
    "run_begin": [c_uint64, ctypes.POINTER(RunInfo), ctypes.POINTER(c_uint64)],
    "run_now": [c_uint64, ctypes.POINTER(c_int64)],
    "run_end": [c_uint64, c_int32, c_char_p],
    "step_begin": [c_uint64, c_int32, c_int32, c_int64, ctypes.POINTER(c_uint64)],
    "step_select": [c_uint64, ctypes.POINTER(Selection)],
    "step_layer": [c_uint64, ctypes.POINTER(Layer)],
    "step_stages": [c_uint64, c_int64, c_int64, c_int64],
    "step_tokens": [c_uint64, c_int32, c_int64, c_void_p, c_int64, c_char_p, c_void_p],
    "step_prompt": [c_uint64, ctypes.POINTER(PromptPiece)],
    "step_commit": [c_uint64, c_int64],
    "step_discard": [c_uint64],
    "span": [c_uint64, c_char_p, c_char_p, c_int64, c_int64, c_int32, c_int32, c_int32, c_int64],
    "counter": [c_uint64, c_char_p, c_int64, c_int64, c_int64],
    "clock": [c_uint64, c_char_p, c_int64, c_int64, c_int64],
    "read": [c_char_p, c_char_p, c_int32, ctypes.POINTER(c_uint64)],
    "table_columns": [c_uint64, ctypes.POINTER(c_int32)],
    "table_column": [c_uint64, c_int32, ctypes.POINTER(Column)],
    "table_free": [c_uint64],
}


def _load() -> ctypes.CDLL:
    inside = Path(__file__).parent / "libkvscope_trace.so"
    name = os.environ.get("KVSCOPE_TRACE_LIBRARY") or (str(inside) if inside.exists() else "libkvscope_trace.so.1")
    try:
        loaded = ctypes.CDLL(name)
    except OSError as error:
        raise ImportError(
            f"kvscope cannot load {name}: {error}; install a wheel that has the library inside, or name it in "
            "KVSCOPE_TRACE_LIBRARY"
        ) from error
    loaded.kvtrace_abi.restype = c_int32
    abi = loaded.kvtrace_abi()
    if abi >> 16 != ABI_MAJOR:
        raise ImportError(f"{name} has version {abi >> 16} of the interface, kvscope needs {ABI_MAJOR}; install a wheel anew")
    loaded.kvtrace_last_error.restype = c_char_p
    loaded.kvtrace_version.restype = c_char_p
    for function, arguments in _SIGNATURES.items():
        entry = getattr(loaded, "kvtrace_" + function)
        entry.argtypes = arguments
        entry.restype = c_int32
    return loaded


_loaded = _load()
_functions = {name: getattr(_loaded, "kvtrace_" + name) for name in _SIGNATURES}


def _as_python(sentence: str) -> str:
    """The library's sentence with the names of this package in place of C's."""
    sentence = re.sub(r"KVTRACE_KNOWS_([A-Z_]+)", lambda found: f'"{found[1].lower()}"', sentence)
    return re.sub(r"kvtrace_(?:run_info|selection|prompt|layer)(?:\.|: )", "", sentence).replace("kvtrace_layer", "layer()")


def call(function: str, *arguments: Any) -> None:
    """Calls kvtrace_<function>. Raises Error with the library's sentence."""
    status = _functions[function](*arguments)
    if status != 0:
        raise Error(_as_python(_loaded.kvtrace_last_error().decode(errors="replace")), status)


def library_version() -> str:
    """Version of the library that was loaded, e.g. "0.1.0"."""
    return _loaded.kvtrace_version().decode()


__all__ = ["NOW", "Column", "Error", "Health", "Layer", "Options", "Pair", "Prompt", "RunInfo", "Selection", "call", "c_float",
           "library_version"]  # fmt: skip
