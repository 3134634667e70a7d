"""Arrays of a caller as addresses: numpy arrays and torch tensors on the CPU without copies, sequences of numbers copied."""

from __future__ import annotations

import ctypes
import functools
import operator
from typing import Any, NamedTuple

_TYPES: dict[str, Any] = {
    "int32": ctypes.c_int32, "int64": ctypes.c_int64, "uint8": ctypes.c_uint8, "float32": ctypes.c_float,
}  # fmt: skip
_LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "uint8": (0, 255)}


class Array(NamedTuple):
    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    keep: Any  # what owns the memory


@functools.lru_cache(maxsize=64)
def _memory_type(dtype: str, count: int) -> Any:
    """The type of memory of so many bytes. Types are kept for the next call, because making one takes longer than the rest of the work."""
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


def _refuse_range(what: str, lowest: int, highest: int, limits: tuple[int, int]) -> None:
    if lowest < limits[0] or highest > limits[1]:
        raise ValueError(f"{what} has the number {lowest if lowest < limits[0] else highest}; {limits[0]} to {limits[1]} can be recorded")


def whole(value: Any, what: str, bits: int = 32) -> int:
    """`value` as a number that a field of so many bits holds. Raises TypeError for what is no whole number, ValueError beyond."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}; give a whole number") from None
    _refuse_range(what, number, number, (-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
    return number


def _wide_enough(dtypes: tuple[str, ...], lowest: int, highest: int, what: str) -> str:
    """The first of `dtypes` that holds all numbers between the two."""
    for dtype in dtypes:
        if _LIMITS[dtype][0] <= lowest and highest <= _LIMITS[dtype][1]:
            return dtype
    _refuse_range(what, lowest, highest, _LIMITS[dtypes[-1]])
    raise AssertionError(what)


def _from_list(value: Any, dtypes: tuple[str, ...], what: str) -> Array:
    shape = _shape_of(value)
    flat: list[Any] = []
    _flatten(value, shape, what, flat)
    reals = dtypes[0] == "float32"
    take: Any = float if reals else operator.index
    for i, item in enumerate(flat):
        try:
            flat[i] = take(item)
        except (TypeError, ValueError, RuntimeError):
            if len(getattr(item, "shape", ())):
                raise TypeError(f"{what} is a list of arrays; make one array of them with numpy.stack or torch.stack") from None
            raise TypeError(f"{what} holds {item!r}; give {'numbers' if reals else 'whole numbers'}") from None
    dtype = dtypes[0]
    if dtype != "float32" and flat:
        dtype = _wide_enough(dtypes, min(flat), max(flat), what)
    memory = _memory_type(dtype, len(flat))(*flat)
    return Array(ctypes.addressof(memory), dtype, shape, _dense_strides(shape), memory)


@functools.lru_cache(maxsize=64)
def _name_of(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _from_torch(value: Any, dtypes: tuple[str, ...], what: str) -> Array:
    if not value.is_cpu:
        raise TypeError(f"{what} is a tensor on {value.device}; pass it with .cpu()")
    import torch

    if value.layout is not torch.strided or value.is_nested:
        raise TypeError(f"{what} is a sparse or nested tensor; pass a dense one, ids padded with -1")
    name = _name_of(value.dtype)
    if name in dtypes and not value.requires_grad:  # as recorders give it, in every layer
        return Array(value.data_ptr(), name, tuple(value.shape), value.stride(), value)
    value = value.detach()
    if name == "bool" and "uint8" in dtypes:
        value, name = value.view(torch.uint8), "uint8"
    if name == "bool":
        raise TypeError(f"{what} is a mask; give numbers, as torch.nonzero finds them")
    if name not in dtypes:
        if value.is_complex():
            raise TypeError(f"{what} has the type {value.dtype}; give {'numbers' if dtypes[0] == 'float32' else 'whole numbers'}")
        name = dtypes[0]
        if name != "float32" and value.numel() > 0:
            if value.is_floating_point() and not bool((value == value.trunc()).all() & value.isfinite().all()):
                raise TypeError(f"{what} has fractions or NaN, of type {value.dtype}; give whole numbers")
            exact = value.double() if value.is_floating_point() else value
            if value.dtype is torch.uint64 and bool((value.view(torch.int64) < 0).any()):
                raise ValueError(f"{what} has a number of 2^63 or above; give positions and blocks")
            exact = exact.long() if value.dtype is torch.uint64 else exact
            name = _wide_enough(dtypes, int(exact.min()), int(exact.max()), what)
        value = value.to(getattr(torch, name))
    return Array(value.data_ptr(), name, tuple(value.shape), tuple(value.stride()), value)


@functools.lru_cache(maxsize=64)
def _native_name(dtype: Any) -> str:
    """The name of a numpy type, which numpy makes anew whenever it is asked; "" where the bytes are swapped."""
    return dtype.name if dtype.isnative else ""


def _from_numpy(value: Any, dtypes: tuple[str, ...], what: str) -> Array:
    import numpy

    if type(value) is numpy.ndarray and value.flags.aligned and _native_name(value.dtype) in dtypes:  # as engines give it, in every layer
        size = value.itemsize
        strides = tuple([stride // size for stride in value.strides])
        if tuple([stride * size for stride in strides]) == value.strides:
            address = value.__array_interface__["data"][0]  # value.ctypes takes longer
            return Array(address, _native_name(value.dtype), value.shape, strides, value)
    if isinstance(value, numpy.ma.MaskedArray):
        raise TypeError(f"{what} is a masked array; pass it with .filled(), ids with .filled(-1)")
    value = numpy.asarray(value)
    if value.dtype == numpy.bool_ and "uint8" in dtypes:
        value = value.view(numpy.uint8)
    if value.dtype == numpy.bool_:
        raise TypeError(f"{what} is a mask; give numbers, as numpy.nonzero finds them")
    if value.dtype.kind not in "iuf":
        raise TypeError(f"{what} has the type {value.dtype}; give {'numbers' if dtypes[0] == 'float32' else 'whole numbers'}")
    if value.dtype.name not in dtypes:
        name = dtypes[0]
        if name != "float32" and value.size > 0:
            if value.dtype.kind == "f" and not (numpy.isfinite(value).all() and (value == numpy.trunc(value)).all()):
                raise TypeError(f"{what} has fractions or NaN, of type {value.dtype}; give whole numbers")
            name = _wide_enough(dtypes, int(value.min()), int(value.max()), what)
        value = value.astype(name)
    elif not value.dtype.isnative:
        value = value.astype(value.dtype.newbyteorder("="))
    size = value.dtype.itemsize
    if any(stride % size for stride in value.strides) or not value.flags.aligned:
        value = numpy.ascontiguousarray(value) if value.flags.aligned else value.copy()
    return Array(value.ctypes.data, value.dtype.name, value.shape, tuple(s // size for s in value.strides), value)


def as_array(value: Any, dtypes: tuple[str, ...], what: str) -> Array:
    """`value` as memory of one of `dtypes`; other numbers are converted to the first of them that holds all. An Array that this function has made is returned as it is.

    Raises TypeError for what is no array of such numbers, and for tensors that are not on the CPU; ValueError for numbers that are too large.
    """
    if isinstance(value, Array) and value.dtype in dtypes:
        return value
    if hasattr(value, "data_ptr") and hasattr(value, "device"):
        return _from_torch(value, dtypes, what)
    if hasattr(value, "__array_interface__"):
        return _from_numpy(value, dtypes, what)
    if isinstance(value, (list, tuple, range)):
        return _from_list(value, dtypes, what)
    raise TypeError(f"{what} is a {type(value).__name__}; pass a numpy array, a torch tensor or a list of numbers")


def dense(array: Array, what: str) -> Array:
    """The same numbers end to end: a copy, unless they lie so already."""
    if array.strides == (1,) or array.strides == _dense_strides(array.shape):
        return array
    return as_array(array.keep.copy() if hasattr(array.keep, "ctypes") else array.keep.contiguous(), (array.dtype,), what)


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
    return dense(array, what)
