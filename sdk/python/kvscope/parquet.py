"""The tables of traces as Parquet files, for questions over many traces. Needs pyarrow.

    kvscope.parquet.write_parquet(["a/run-0.kvtrace", "a/run-1.kvtrace"], "fleet")

gives fleet/steps/run=run.1/rank=0/part-0.parquet and so on: a folder for each table of kvscope.open(), in it one for each run and rank, as
DuckDB, Polars, Spark and Ray read them. A run is called after key `group` of run_meta, which the files of all ranks share, or after its
file; a dot and the number of the run in the file follow.
"""

from __future__ import annotations

import collections
import os
import urllib.parse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ._library import Error
from .reading import _INT, _LIST, _REAL, TABLES, read

UNKNOWN = "__HIVE_DEFAULT_PARTITION__"
"""Folder of what is not known: a null for whoever reads it."""
Unreadable = Callable[[Path, Error], None]


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("Parquet files need pyarrow; pip install pyarrow") from error
    return pyarrow


def _named(paths: Iterable[str | os.PathLike[str]], unreadable: Unreadable | None) -> dict[tuple[str, str], tuple[Path, list[int]]]:
    """(name, rank) -> a file and its runs. Files of one name and rank are called after their folders, too. Raises ValueError if two of them still have the same name."""
    found: list[tuple[str, str, Path, list[int]]] = []
    for path in map(Path, paths):
        try:
            keys, runs = read(path, "meta"), read(path, "runs")["run"][1]
        except Error as error:
            if unreadable is None:
                raise
            unreadable(path, error)
            continue
        said = dict(zip(keys["key"][1], keys["value"][1]))  # of the file: its runs have one rank
        found.append((said.get("group") or path.name.removesuffix(".kvtrace"), said.get("rank", UNKNOWN), path, runs))
    often = collections.Counter((name, rank) for name, rank, _, _ in found)
    crowded = {name for (name, _), count in often.items() if count > 1}
    named: dict[tuple[str, str], tuple[Path, list[int]]] = {}
    for name, rank, path, runs in found:
        full = f"{path.resolve().parent.name}-{name}" if name in crowded else name
        if (full, rank) in named:
            raise ValueError(f"{named[full, rank][0]} and {path} would both be called {full}; write them into two folders")
        named[full, rank] = path, runs
    return named


def write_parquet(paths: Iterable[str | os.PathLike[str]], folder: str | os.PathLike[str],
                  tables: Sequence[str] | None = None, unreadable: Unreadable | None = None) -> list[Path]:  # fmt: skip
    """Writes tables (None: all of kvscope.reading.TABLES) of traces below `folder`, one file for each run, rank and table.

    Columns are those of kvscope.open(); `run` and `rank` are in the folders' names, and `trace` and `run_number` say where a row of
    `runs` comes from. What a run does not know is null. A trace that is written again replaces its files. The result: files written.
    unreadable: called with the path and the error of each file that cannot be read, which is left out; None: such an error is raised.
    Raises ValueError for a table that there is not, kvscope.Error for a file that is no trace, ImportError without pyarrow.
    """
    arrow = _arrow()
    for table in tables or ():
        if table not in TABLES:
            raise ValueError(f"there is no table {table!r}; there are {', '.join(TABLES)}")
    types = {_INT: arrow.int64(), _REAL: arrow.float64(), _LIST: arrow.list_(arrow.int64())}
    written: list[Path] = []
    for (name, rank), (path, runs) in _named(paths, unreadable).items():
        for run in runs:
            try:
                read_tables = {table: read(path, table, run) for table in tables or TABLES}  # all, before any is written
            except Error as error:
                if unreadable is None:
                    raise
                unreadable(path, error)
                break
            for table, columns in read_tables.items():
                del columns["run"]
                made = {key: arrow.array(rows, types.get(kind, arrow.string())) for key, (kind, rows) in columns.items()}
                if table == "runs":
                    made["trace"], made["run_number"] = arrow.array([str(path)], arrow.string()), arrow.array([run], arrow.int64())
                place = Path(folder) / table / f"run={urllib.parse.quote(f'{name}.{run}', safe=' ')}" / f"rank={rank}"
                place.mkdir(parents=True, exist_ok=True)
                whole, part = place / "part-0.parquet", place / "part-0.parquet.part"
                arrow.parquet.write_table(arrow.table(made), part)
                os.replace(part, whole)  # whoever reads the folder meanwhile sees whole files
                written.append(whole)
    return written
