"""Arrays of a caller as addresses: numpy arrays and torch tensors on the CPU without copies, sequences of numbers copied."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

_TYPES: dict[str, Any] = {
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "float32": ctypes.c_float,
}  # fmt: skip


class Array(NamedTuple):
    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    keep: Any  # what owns the memory


@functools.lru_cache(maxsize=64)
def _memory_type(dtype: str, count: int) -> Any:
    """Types are kept, because making one takes longer than all else here."""
    return _TYPES[dtype] * count


def _shape_of(value: Any) -> tuple[int, ...]:
    shape: list[int] = []
    while isinstance(value, (list, tuple, range)):
        shape.append(len(value))
        value = value[0] if len(value) else None
    return tuple(shape)


def _flatten(value: Any, shape: tuple[int, ...], what: str, out: list[Any]) -> None:
    if not shape:
        out.append(value)
        return
    if not isinstance(value, (list, tuple, range)) or len(value) != shape[0]:
        raise ValueError(f"{what} is ragged; pad its rows to one length, ids with -1")
    for item in value:
        _flatten(item, shape[1:], what, out)


def _dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= size
    return tuple(strides)


def as_array(value: Any, dtypes: tuple[str, ...], what: str) -> Array:
    """`value` as memory of one of `dtypes`; another integer or float type is converted to the first of them. What it gave is taken back.

    Raises TypeError for what is no array, and for tensors that are not on the CPU.
    """
    if isinstance(value, Array) and value.dtype in dtypes:
        return value
    if type(value).__module__.startswith("torch") and hasattr(value, "data_ptr"):
        if value.device.type != "cpu":
            raise TypeError(f"{what} is a tensor on {value.device}; pass it with .cpu()")
        import torch

        name = str(value.dtype).removeprefix("torch.")
        if name == "bool" and "uint8" in dtypes:
            value, name = value.view(torch.uint8), "uint8"
        if name not in dtypes:
            value, name = value.to(getattr(torch, dtypes[0])), dtypes[0]
        value = value.detach()
        return Array(value.data_ptr(), name, tuple(value.shape), tuple(value.stride()), value)
    if hasattr(value, "__array_interface__"):
        import numpy

        value = numpy.asarray(value)
        if value.dtype == numpy.bool_ and "uint8" in dtypes:
            value = value.view(numpy.uint8)
        if value.dtype.name not in dtypes:
            value = value.astype(dtypes[0])
        size = value.dtype.itemsize
        if any(stride % size for stride in value.strides):
            value = numpy.ascontiguousarray(value)
        return Array(value.ctypes.data, value.dtype.name, value.shape, tuple(s // size for s in value.strides), value)
    if isinstance(value, (list, tuple, range)):
        shape = _shape_of(value)
        flat: list[Any] = []
        _flatten(value, shape, what, flat)
        memory = _memory_type(dtypes[0], len(flat))(*flat)
        return Array(ctypes.addressof(memory), dtypes[0], shape, _dense_strides(shape), memory)
    raise TypeError(f"{what} is a {type(value).__name__}; pass a numpy array, a torch tensor or a list of numbers")


def numbers(values: list[int], dtype: str) -> Array:
    """A list of integers as an array."""
    memory = _memory_type(dtype, len(values))(*values)
    return Array(ctypes.addressof(memory), dtype, (len(values),), (1,), memory)


def contiguous(value: Any, dtype: str, count: int, what: str) -> Array:
    """As as_array, one-dimensional or flattened, of exactly `count` elements that lie end to end."""
    array = as_array(value, (dtype,), what)
    total = 1
    for size in array.shape:
        total *= size
    if total != count:
        raise ValueError(f"{what} has {total} numbers; {count} are needed")
    if array.strides != _dense_strides(array.shape):
        return as_array(array.keep.copy() if hasattr(array.keep, "ctypes") else array.keep.contiguous(), (dtype,), what)
    return array
