"""Fifty traces as Parquet, and the questions of docs/recording.md over them."""

from __future__ import annotations

import collections
import re
import statistics
from pathlib import Path

import kvscope
import numpy as np
import pytest
from kvscope import __main__ as program

arrow = pytest.importorskip("pyarrow", reason="Parquet files need pyarrow, which is not installed")
from kvscope.parquet import write_parquet  # noqa: E402

RUNS, RANKS, STEPS, LAYERS = 10, 5, 12, 3
DOCS = Path(__file__).resolve().parents[3] / "docs/recording.md"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """Ten runs of five ranks each: a file for each rank."""
    folder, random = tmp_path_factory.mktemp("fleet"), np.random.default_rng(4)
    paths = []
    for number in range(RUNS):
        for rank in range(RANKS):
            pattern = folder / f"serve{number}-%r.kvtrace"
            with kvscope.record(pattern, rank=rank) as rec:
                knows = ["selections", "step_times", *(["hits"] if number % 2 == 0 else [])]
                with rec.run(method=("dsa", "msa")[number % 2], model=f"model{number % 3}", block_size=16, block_bytes=512, layers=LAYERS,
                             device_slots=8, knows=knows) as run:  # fmt: skip
                    for i in range(STEPS):
                        step = run.step(start_ns=i * 1_000_000)
                        for layer in range(LAYERS):
                            ids = np.sort(random.choice(100, 8, replace=False))
                            hit = random.random(8) < 0.1 * (rank + 1) if number % 2 == 0 else None
                            step.select(layer, ids, position=[1600 + i], hit=hit)
                        step.commit(i * 1_000_000 + 100_000 * (rank + 1) + int(random.integers(50_000)))
            paths.append(folder / f"serve{number}-{rank}.kvtrace")
    return paths


def questions() -> list[str]:
    """The SQL of section "Many traces"."""
    section = DOCS.read_text().split("## Many traces")[1].split("\n## ")[0]
    return re.findall(r"```sql\n(.*?)```", section, re.S)


def test_files_have_the_tables_partitioned_by_run_and_rank(fleet, tmp_path):
    written = write_parquet(fleet[:2], tmp_path, ["selections", "runs", "steps"])
    assert tmp_path / "selections/run=serve0.1/rank=0/part-0.parquet" in written and len(written) == 6
    import pyarrow.parquet

    selections = pyarrow.parquet.read_table(tmp_path / "selections/run=serve0.1/rank=1/part-0.parquet", partitioning=None).to_pydict()
    theirs = kvscope.open(fleet[1]).columns("selections")
    for column in theirs.keys() - {"run"}:
        assert selections[column] == [None if isinstance(v, float) and v != v else v for v in theirs[column]], column
    assert pyarrow.parquet.read_table(written[0].parents[3] / "runs")["run_number"].to_pylist() == [1, 1]
    assert write_parquet(fleet[:2], tmp_path, ["selections", "runs", "steps"]) == written  # again: replaced, not doubled


def test_what_is_not_known_is_null_and_a_rank_that_nobody_said_too(tmp_path):
    with kvscope.record(tmp_path / "alone.kvtrace") as rec:
        with rec.run(method="dsa", block_size=16, block_bytes=512, layers=1, knows=["selections"]) as run, run.step() as step:
            step.select(0, [0, 1], position=[40])
    (file,) = write_parquet([tmp_path / "alone.kvtrace"], tmp_path / "out", ["steps"])
    assert file.parent.name == "rank=__HIVE_DEFAULT_PARTITION__"
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(file, partitioning=None)
    assert table["hits"].to_pylist() == [None] and str(table.schema.field("hits").type) == "int64" and table["selected"].to_pylist() == [2]


def test_a_file_that_cannot_be_read_is_said_and_the_others_are_written(fleet, tmp_path, capsys):
    damaged, empty = tmp_path / "damaged.kvtrace", tmp_path / "empty.kvtrace"
    content = bytearray(fleet[0].read_bytes())
    content[8192:] = bytes(255 - byte for byte in content[8192:])  # the schema is whole, rows are not
    damaged.write_bytes(content)
    empty.touch()
    paths = [damaged, fleet[1], empty, tmp_path / "absent.kvtrace"]
    said = []
    written = write_parquet(paths, tmp_path / "out", ["runs", "selections"], lambda path, error: said.append((path, str(error))))
    assert [file.parts[-2] for file in written] == ["rank=1", "rank=1"] and list((tmp_path / "out").rglob("*.parquet")) != []
    assert {path for path, _ in said} == {damaged, empty, tmp_path / "absent.kvtrace"} and all(str(path) in text for path, text in said)
    with pytest.raises(kvscope.Error, match="damaged.kvtrace"):
        write_parquet(paths, tmp_path / "out")
    assert program.main(["parquet", *map(str, paths), "-o", str(tmp_path / "cli"), "--tables", "runs"]) == 1
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 1 and "kvscope: left out: " in shown.err and "absent.kvtrace" in shown.err


def test_two_files_of_one_name_are_told_apart(fleet, tmp_path):
    paths = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for file in fleet[:2]:
            paths.append(tmp_path / folder / file.name)
            paths[-1].write_bytes(file.read_bytes())
    files = write_parquet(paths, tmp_path / "out", ["runs"])
    places = [str(file.parent.relative_to(tmp_path / "out/runs")) for file in files]
    assert places == ["run=a-serve0.1/rank=0", "run=a-serve0.1/rank=1", "run=b-serve0.1/rank=0", "run=b-serve0.1/rank=1"]
    with pytest.raises(ValueError, match="would both be called"):
        write_parquet(paths[:1] * 2, tmp_path / "out")
    with pytest.raises(ValueError, match="no table 'views'"):
        write_parquet([fleet[0]], tmp_path, ["views"])


def test_the_command_line_writes_them_and_says_what_is_wrong(fleet, tmp_path, capsys):
    assert program.main(["parquet", str(fleet[0]), "-o", str(tmp_path), "--tables", "runs,meta"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert program.main(["parquet", str(tmp_path / "absent.kvtrace"), "-o", str(tmp_path)]) == 1
    assert "absent.kvtrace" in capsys.readouterr().err


def test_the_three_questions_of_the_documentation_over_fifty_traces(fleet, tmp_path, monkeypatch):
    duckdb = pytest.importorskip("duckdb", reason="the questions are asked with duckdb, which is not installed")
    assert len(fleet) == 50
    write_parquet(fleet, tmp_path / "fleet")
    monkeypatch.chdir(tmp_path)
    duckdb.sql("SET threads = 1")
    locality, late, rates = [duckdb.sql(question).fetchall() for question in questions()]

    kept, durations, hits = collections.defaultdict(list), collections.defaultdict(list), collections.defaultdict(lambda: [0, 0])
    for i, path in enumerate(fleet):
        number, rank = divmod(i, RANKS)
        columns = kvscope.open(path).columns("selections")
        rows = zip(columns["layer"], columns["kept"], columns["selected"], columns["hits"], columns["opens_block"])
        for layer, both, selected, hit, opens in rows:
            if both is not None and not opens:
                kept[f"model{number % 3}", ("dsa", "msa")[number % 2], layer].append(both / selected)
            if hit is not None and both is not None:
                hits[f"model{number % 3}", layer][0] += hit
                hits[f"model{number % 3}", layer][1] += selected
        durations[f"serve{number}.1", str(rank)] += kvscope.open(path).columns("steps")["duration_ns"]
    assert len(locality) == len(kept) and [row[3] for row in locality] == sorted(row[3] for row in locality)
    for model, method, layer, mean in locality:
        assert mean == pytest.approx(statistics.fmean(kept[model, method, layer]), abs=5e-4)
    assert len(late) == RUNS
    for run, rank, milliseconds, behind in late:
        medians = {r: statistics.median(durations[run, r]) / 1e6 for r in map(str, range(RANKS))}
        assert str(rank) == max(medians, key=lambda r: medians[r]) and milliseconds == pytest.approx(max(medians.values()), abs=5e-4)
        assert behind == pytest.approx(max(medians.values()) / min(medians.values()), abs=5e-3)
    assert {(row[0], row[1]) for row in rates} == set(hits)
    for model, layer, rate, unknown in rates:
        assert rate == pytest.approx(hits[model, layer][0] / hits[model, layer][1], abs=5e-4)
        assert unknown == sum(f"model{n % 3}" == model and n % 2 == 1 for n in range(RUNS)) * RANKS
