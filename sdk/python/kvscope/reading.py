"""Reading: the tables of a trace as data frames."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Any

from . import _library as lib
from ._arrays import whole
from ._library import call
from .writing import _path

if TYPE_CHECKING:
    from .overhead import Overhead

TABLES = ("runs", "steps", "layers", "selections", "transfers", "tokens", "prompts", "pieces", "meta")
_INT, _REAL, _TEXT, _LIST = range(4)


def _values(column: lib.Column) -> list[Any]:
    """The rows of a column; None: not known or undefined."""
    rows = column.rows
    present = column.present[:rows]
    if column.type == _INT:
        return [value if there else None for value, there in zip(column.ints[:rows], present)]
    if column.type == _REAL:
        return [value if there else None for value, there in zip(column.reals[:rows], present)]
    offsets = column.offsets[: rows + 1]
    if column.type == _LIST:
        items = column.ints[: offsets[rows]] if rows else []
        return [items[offsets[i] : offsets[i + 1]] if present[i] else None for i in range(rows)]
    text = ctypes.string_at(column.text, offsets[rows]) if rows and offsets[rows] else b""
    return [text[offsets[i] : offsets[i + 1]].decode(errors="replace") if present[i] else None for i in range(rows)]


def read(path: str | os.PathLike[str], table: str, run: int = 0) -> dict[str, tuple[int, list[Any]]]:
    """Columns of a table: name -> (type, rows). run: 0 for all. Raises Error: no trace, damaged, no such table."""
    handle = ctypes.c_uint64()
    call("read", _path(path), table.encode(), whole(run, "run"), ctypes.byref(handle))
    try:
        count = ctypes.c_int32()
        call("table_columns", handle, ctypes.byref(count))
        columns: dict[str, tuple[int, list[Any]]] = {}
        for i in range(count.value):
            column = lib.Column()
            call("table_column", handle, i, ctypes.byref(column))
            columns[column.name.decode()] = (column.type, _values(column))
        return columns
    finally:
        call("table_free", handle)


def _pandas(columns: dict[str, tuple[int, list[Any]]]) -> Any:
    import pandas

    series = {}
    for name, (kind, rows) in columns.items():
        dtype: Any = {_INT: "Int64" if None in rows else "int64", _REAL: "float64"}.get(kind, "object")
        series[name] = pandas.Series(rows, dtype=dtype)
    return pandas.DataFrame(series)


def _polars(columns: dict[str, tuple[int, list[Any]]]) -> Any:
    import polars

    types = {_INT: polars.Int64, _REAL: polars.Float64, _TEXT: polars.String, _LIST: polars.List(polars.Int64)}
    return polars.DataFrame([polars.Series(name, rows, dtype=types[kind]) for name, (kind, rows) in columns.items()])


def _frame(columns: dict[str, tuple[int, list[Any]]], library: str | None) -> Any:
    for name, make in (("pandas", _pandas), ("polars", _polars)):
        if library not in (None, name):
            continue
        try:
            return make(columns)
        except ImportError:
            continue
    raise ImportError("data frames need pandas or polars; pip install one of them, or call Trace.columns(), which needs neither")


class Trace:
    """A trace file. Every attribute reads the file anew, so that one that is being recorded may be looked at.

    Columns are those of docs/trace-format.md. What a run does not know is missing (NA in pandas, null in polars), never 0.
    Times are ns since the run began, sizes bytes, `seq`, `kv_head`, `layer` and `blocks` count from 0.

    >>> import kvscope
    >>> with kvscope.record("short.kvtrace") as rec, rec.run(method="mine", block_size=16, block_bytes=8192, layers=1) as run:
    ...     with run.step() as step:
    ...         step.tokens(0, 100, [17], [" word"])
    >>> trace = kvscope.open("short.kvtrace")
    >>> trace.columns("tokens")["text"], trace.columns("steps")["hits"]  # nobody knows of hits here
    ([' word'], [None])
    """

    def __init__(self, path: str | os.PathLike[str], run: int = 0, library: str | None = None):
        self.path = os.fspath(path)
        self._run = run
        self._library = library
        found = read(self.path, "runs", run)["run"][1]  # refuses a file that is no trace at once
        if run and not found:
            there = read(self.path, "runs")["run"][1]
            raise ValueError(f"{self.path} has no run {run}; {'it has ' + ', '.join(map(str, there)) if there else 'it has none yet'}")

    def __repr__(self) -> str:
        run = f", run={self._run}" if self._run else ""
        return f"<kvscope.Trace {self.path!r}{run}: .runs, .steps, .layers, .selections, .transfers, .tokens, .prompts, .pieces>"

    def columns(self, table: str) -> dict[str, list[Any]]:
        """A table of TABLES as lists, without pandas or polars. None: not known."""
        return {name: rows for name, (_, rows) in read(self.path, table, self._run).items()}

    def _table(self, name: str) -> Any:
        return _frame(read(self.path, name, self._run), self._library)

    @property
    def runs(self) -> Any:
        """One row per run: names, sizes (block_size in tokens), status, `knows` as JSON."""
        return self._table("runs")

    @property
    def steps(self) -> Any:
        """One row per step of the batch."""
        return self._table("steps")

    @property
    def layers(self) -> Any:
        """One row per layer of a step, with the time of its stages."""
        return self._table("layers")

    @property
    def selections(self) -> Any:
        """One row per (step, layer, seq, kv_head): counts, and the lists `blocks`, `origins` and `hit` of equal length."""
        return self._table("selections")

    @property
    def transfers(self) -> Any:
        """One row per layer, step and direction that moved anything."""
        return self._table("transfers")

    @property
    def tokens(self) -> Any:
        """Generated tokens."""
        return self._table("tokens")

    @property
    def prompts(self) -> Any:
        """Prompt tokens."""
        return self._table("prompts")

    @property
    def pieces(self) -> Any:
        """One row per sequence and step that read a piece of its prompt; empty where step 0 read the prompts as a whole."""
        return self._table("pieces")

    @property
    def overhead(self) -> Overhead | None:
        """What recording cost, if kvscope.measure_overhead wrote the trace; else None."""
        from .overhead import overhead_of

        return overhead_of(self.path, self._run)


def open(path: str | os.PathLike[str], run: int = 0, library: str | None = None) -> Trace:
    """Opens a trace. run: 0 for all runs. library: "pandas" or "polars"; None: whichever is installed."""
    if library not in (None, "pandas", "polars"):
        raise ValueError(f"library is {library!r}; give pandas or polars")
    return Trace(path, run, library)
