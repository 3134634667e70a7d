"""The package without any engine: inputs, what is refused, and traces as data frames."""

from __future__ import annotations

import base64
import doctest
import gc
import importlib
import io
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time

import kvscope
import numpy as np
import pytest


def check(trace: str) -> None:
    """Breaks no rule of the format. Needs kvscope-cli, which ./test names."""
    result = subprocess.run([os.environ["KVSCOPE_CLI"], "check", trace], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def run_of(rec: kvscope.Recorder, **more):
    return rec.run(**(dict(method="mine", block_size=16, block_bytes=512, layers=2, kv_heads=2, sequences=2) | more))


IDS = np.array([[[0, 1, 6], [0, 2, 6]], [[0, 3, 12], [0, 4, 12]]], dtype=np.int64)


def as_torch(ids):
    """A tensor with these ids. Skips the test where torch is not installed: ./test has this file's other tests without it."""
    return pytest.importorskip("torch").from_numpy(ids.copy())


@pytest.mark.parametrize(
    "ids",
    [
        IDS,
        IDS.astype(np.int32),
        IDS.astype(np.int16),
        np.ascontiguousarray(IDS.transpose(1, 0, 2)).transpose(1, 0, 2),  # heads before rows
        np.repeat(IDS, 2, axis=2)[:, :, ::2],
        IDS.astype(">i8"),
        IDS.astype(np.float32),
        IDS.tolist(),
        lambda: as_torch(IDS),
        lambda: as_torch(np.ascontiguousarray(IDS.transpose(1, 0, 2))).transpose(0, 1),
    ],
    ids=["int64", "int32", "int16", "transposed", "strided", "big-endian", "whole floats", "lists", "torch", "torch-transposed"],
)
def test_every_kind_of_array_gives_the_same_selections(tmp_path, ids):
    ids = ids() if callable(ids) else ids
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path) as rec, run_of(rec) as run, run.step() as step:
        step.select(1, ids, position=[100, 200])
    assert kvscope.open(path).columns("selections")["blocks"] == [[0, 1, 6], [0, 2, 6], [0, 3, 12], [0, 4, 12]]
    check(path)


def test_ids_beyond_32_bits_are_never_taken_for_others(tmp_path):
    path = tmp_path / "run.kvtrace"
    with kvscope.record(path) as rec, run_of(rec) as run:
        with run.step() as step:
            step.select(0, [[[2**32 + 3, 1]] * 2] * 2, position=[100, 200])  # lies in the future
        assert rec.health["future_ids"] == 4
    assert kvscope.open(path).columns("selections")["blocks"] == [[1]] * 4


def test_what_lies_otherwise_than_the_ids_is_read_all_the_same(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    hit = np.arange(12).reshape(2, 2, 3) % 2 == 0
    with kvscope.record(path) as rec, run_of(rec, knows=["selections", "hits"], device_slots=8) as run, run.step() as step:
        step.select(0, np.repeat(IDS, 2, axis=2)[:, :, ::2], position=[100, 200], hit=hit)
        step.select(1, as_torch(IDS), position=[100, 200], hit=np.asfortranarray(hit))
    assert kvscope.open(path).columns("selections")["hit"] == hit.reshape(4, 3).astype(int).tolist() * 2
    check(path)


def test_everything_that_a_step_can_say(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path, level="full") as rec:
        with run_of(rec, knows=kvscope.KNOWN, device_slots=8, prompts=[[1, 2] * 50, [3] * 200], prompt_texts=[["a", "ä"] * 50, ["b"] * 200],
                    params={"k": 3}, meta={"engine": "tests"}) as run:  # fmt: skip
            for i in range(20):
                start = i * 1_000_000
                step = run.step("prefill" if i == 0 else "decode", 2, start)
                step.layer(0, start_ns=start + 10, stages_ns={"stage1": 100, "ffn": 50}, h2d_blocks=int(i > 0), h2d_bytes=512 * (i > 0),
                           transfer_ns=40 * (i > 0), exposed_ns=30 * (i > 0))  # fmt: skip
                step.stages(embed_ns=5, sample_ns=7)
                if i > 0:
                    step.select(0, IDS, position=[99 + i, 199 + i], hit=IDS != 1, score=IDS.astype(np.float32), mass=np.full((2, 2), 0.5, np.float32))
                for seq in range(2):
                    step.tokens(seq, 100 * (seq + 1) + i, [40 + i], ["x"])
                step.commit(start + 900_000)
            run.span("mine", "work", 5, 10)
            run.counter("bytes", 0, 10, 3)
    check(path)
    trace = kvscope.open(path)
    assert trace.columns("prompts")["text"] == ["a", "ä"] * 50 + ["b"] * 200
    assert trace.columns("selections")["hit"][0] == [1, 0, 1]
    assert trace.columns("transfers")["bytes"] == [512] * 19
    assert trace.columns("steps")["duration_ns"] == [900_000] * 20
    assert trace.columns("steps")["misses"][3] == 1


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_frames_say_what_is_not_known(tmp_path, library):
    pytest.importorskip(library)
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path) as rec, run_of(rec) as run:
        for i in range(5):
            with run.step() as step:
                step.select(0, IDS, position=[100, 200])
                step.tokens(0, 101 + i, [i])
    trace = kvscope.open(path, library=library)
    assert type(trace.steps).__module__.startswith(library)
    nulls = trace.steps["hits"].isna() if library == "pandas" else trace.steps["hits"].is_null()
    assert nulls.all()
    assert list(trace.steps["selected"]) == [12] * 5
    assert list(trace.selections["blocks"][0]) == [0, 1, 6]
    assert trace.runs["method"][0] == "mine" and len(trace.tokens) == 5 and len(trace.transfers) == 0 and len(trace.layers) == 10


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (lambda s: s.select(9, IDS, position=[1, 1]), "is of no layer"),
        (lambda s: s.select(0, IDS[0, 0, 0], position=[1]), "axes"),
        (lambda s: s.select(0, IDS, position=[1]), "2 are needed"),
        (lambda s: s.select(0, IDS, position=[1, 1], unit="page"), "block, token"),
        (lambda s: s.select(0, [[1], [1, 2]], position=[1, 1]), "ragged"),
        (lambda s: s.select(0, "ids", position=[1, 1]), "numpy array"),
        (lambda s: s.select(0, IDS, position=[1, 1], hit=IDS[0]), "must be equal"),
        (lambda s: s.layer(0, stages_ns={"stage9": 1}), "there are qkv_linear"),
        (lambda s: s.layer(0, h2d_bytes=1), 'add "bytes" to knows'),
        (lambda s: s.layer(0, h2d_blocks=1.5), "h2d_blocks is 1.5; give a whole number"),
        (lambda s: s.layer(2**32, h2d_blocks=1), "layer has the number 4294967296"),
        (lambda s: s.select(0, [[0.5]], position=[1]), "ids holds 0.5"),
        (lambda s: s.select(0, IDS + 0.5, position=[1, 1]), "ids has fractions"),
        (lambda s: s.select(0, as_torch(IDS) / 2, position=[1, 1]), "ids has fractions"),
        (lambda s: s.select(0, IDS * 1j, position=[1, 1]), "complex128; give whole numbers"),
        (lambda s: s.select(0, IDS.astype(str), position=[1, 1]), "give whole numbers"),
        (lambda s: s.select(0, IDS > 2, position=[1, 1]), "ids is a mask"),
        (lambda s: s.select(0, as_torch(IDS) > 2, position=[1, 1]), "ids is a mask"),
        (lambda s: s.select(0, np.ma.masked_equal(IDS, 6), position=[1, 1]), r"ids with .filled\(-1\)"),
        (lambda s: s.select(0, as_torch(IDS).to_sparse(), position=[1, 1]), "pass a dense one"),
        (lambda s: s.select(0, as_torch(IDS).to("meta"), position=[1, 1]), "ids is a tensor on meta"),
        (lambda s: s.select(0, list(IDS), position=[1, 1]), "numpy.stack"),
        (lambda s: s.select(0, list(as_torch(IDS)), position=[1, 1]), "torch.stack"),
        (lambda s: s.select(0, IDS, position=[1, 1], origin=np.full(IDS.shape, 300)), "origin has the number 300"),
        (lambda s: s.tokens(0, 5, np.array([2**32 + 1])), "ids has the number 4294967297"),
        (lambda s: s.tokens(0, 5, [2**31]), "ids has the number 2147483648"),
        (lambda s: s.tokens(0, 5, [1, 2], "ab"), "give a list with a text for each"),
        (lambda s: s.tokens(0, 5, [[1, 2]]), r"tokens of one sequence, \[n\]"),
    ],
)
def test_what_is_refused_is_one_sentence(tmp_path, wrong, sentence):
    with kvscope.record(tmp_path / "run.kvtrace") as rec, run_of(rec) as run:
        step = run.step()
        with pytest.raises((kvscope.Error, ValueError, TypeError), match=sentence):
            wrong(step)
        step.discard()


def test_names_that_there_are_not_are_refused(tmp_path):
    path = tmp_path / "run.kvtrace"
    with pytest.raises(TypeError, match="no option 'blocksize'"):
        kvscope.record(path, blocksize=3)
    with kvscope.record(path) as rec:
        with pytest.raises(ValueError, match="'hit' is nothing"):
            run_of(rec, knows=["hit"])
    with pytest.raises(kvscope.Error, match="there are runs, steps"):
        kvscope.open(path).columns("views")
    with pytest.raises(kvscope.Error, match="absent.kvtrace"):
        kvscope.open(tmp_path / "absent.kvtrace")


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        (dict(layers=2**33), "layers has the number 8589934592"),
        (dict(layers=0), "^layers is 0"),
        (dict(block_size=16.5), "block_size is 16.5"),
        (dict(knows="hits"), "give a list of words"),
        (dict(params={"a": float("nan")}), "params cannot be written as JSON"),
        (dict(params={"a": object()}), "params cannot be written as JSON"),
        (dict(prompts=[[1, 2]]), "1 prompts for 2 sequences"),
        (dict(prompts=[[1.5], [2]]), "prompt 0 holds 1.5"),
        (dict(prompts=[[1, 2], [3]], prompt_texts=[["a"], ["b"]]), "prompt 0: 1 texts for 2 tokens"),
        (dict(prompts=[[1, 2], [3]], prompt_texts=[["a", "b"]]), "1 prompt_texts for 2 prompts"),
        (dict(prompt_texts=[["a"], ["b"]]), "2 prompt_texts for 0 prompts"),
    ],
)
def test_what_a_run_cannot_be_is_one_sentence(tmp_path, wrong, sentence):
    with kvscope.record(tmp_path / "run.kvtrace") as rec:
        with pytest.raises((kvscope.Error, ValueError, TypeError), match=sentence):
            run_of(rec, **wrong)
        with run_of(rec, params={"k": np.int64(3)}, meta={"world": 4}) as run, run.step() as step:  # the recorder is as it was
            step.select(0, IDS, position=[100, 200])
    trace = kvscope.open(tmp_path / "run.kvtrace")
    assert trace.columns("runs")["params_json"] == ['{"k": 3}'] and "4" in trace.columns("meta")["value"]


def test_files_and_runs_that_there_are_not_are_refused(tmp_path):
    path = tmp_path / "run.kvtrace"
    with kvscope.record(path) as rec, run_of(rec):
        pass
    with pytest.raises(ValueError, match="has no run 2; it has 1"):
        kvscope.open(path, run=2)
    for refuses in (kvscope.record, kvscope.open):
        with pytest.raises(ValueError, match="zero byte"):
            refuses(f"{path}\0.kvtrace")
    assert "run.kvtrace" in repr(kvscope.open(path)) and ".selections" in repr(kvscope.open(path))


def test_a_step_that_was_handed_over_within_its_block_stays_so(tmp_path):
    path = tmp_path / "run.kvtrace"
    with kvscope.record(path) as rec, run_of(rec) as run:
        for ends in (lambda step: step.commit(), lambda step: step.discard()):
            with run.step() as step:
                step.select(0, IDS, position=[100, 200])
                ends(step)
        with pytest.raises(RuntimeError, match="afterwards"):
            with run.step() as step:
                step.select(0, IDS, position=[101, 201])
                step.commit()
                raise RuntimeError("afterwards")
        assert rec.health["discarded_steps"] == 1
    assert len(kvscope.open(path).columns("steps")["step"]) == 2


def test_an_exception_is_seen_whatever_the_library_says_then(tmp_path):
    with pytest.raises(RuntimeError, match="out of paper"):
        with kvscope.record(tmp_path / "run.kvtrace") as rec, run_of(rec) as run, run.step():
            rec.close()  # the step and the run are gone with it
            raise RuntimeError("out of paper")
    with pytest.raises(RuntimeError, match="out of ink"):
        with kvscope.record(tmp_path / "run.kvtrace") as rec:
            run = run_of(rec)  # in no block of its own
            raise RuntimeError("out of ink")
    runs = kvscope.open(tmp_path / "run.kvtrace").columns("runs")
    assert runs["status"] == ["failed"] and "out of ink" in runs["status_message"][0]


def test_a_recorder_that_nobody_has_any_more_is_closed(tmp_path):
    path = tmp_path / "run.kvtrace"
    for _ in range(3):  # a cell of a notebook that is run again
        rec = kvscope.record(path)
        run = run_of(rec)
        del rec
        gc.collect()
        with run.step() as step:  # whoever has a run has its file
            step.select(0, IDS, position=[100, 200])
        del run, step
        gc.collect()
    assert kvscope.open(path).columns("runs")["status"] == ["stopped"]
    assert len(kvscope.open(path).columns("steps")["step"]) == 1


@pytest.mark.parametrize("module", ["kvscope", "kvscope.converting", "kvscope.methods", "kvscope.reading"])
def test_examples_of_the_docstrings_give_what_they_say(tmp_path, monkeypatch, module):
    if module == "kvscope.methods":
        pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)  # they write traces
    result = doctest.testmod(importlib.import_module(module), raise_on_error=True)
    assert result.attempted >= 3 and result.failed == 0
    for trace in tmp_path.glob("*.kvtrace"):
        check(str(trace))


def test_an_exception_ends_the_run_as_failed_and_drops_the_step(tmp_path):
    path = tmp_path / "run.kvtrace"
    with pytest.raises(RuntimeError, match="out of paper"):
        with kvscope.record(path) as rec, run_of(rec) as run:
            with run.step() as step:
                step.select(0, IDS, position=[100, 200])
            with run.step():
                raise RuntimeError("out of paper")
    runs = kvscope.open(path).columns("runs")
    assert runs["status"] == ["failed"] and "out of paper" in runs["status_message"][0] and runs["steps"] == [1]
    check(str(path))


def test_a_program_that_never_closes_leaves_a_whole_trace(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    program = (
        "import kvscope, sys\n"
        f"rec = kvscope.record({path!r})\n"
        "run = rec.run(method='mine', block_size=16, block_bytes=512, layers=1)\n"
        "for i in range(9):\n"
        "    with run.step() as step: step.select(0, [0, 1], position=20)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    runs = kvscope.open(path).columns("runs")
    assert runs["status"] == ["stopped"] and runs["steps"] == [9]
    check(path)


def _in_child(run, told) -> None:
    try:
        run.step()
    except kvscope.Error as error:
        told.put(str(error))


def test_a_forked_child_is_told(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path) as rec, run_of(rec) as run:
        context = multiprocessing.get_context("fork")
        told = context.Queue()
        child = context.Process(target=_in_child, args=(run, told))
        child.start()
        assert "belongs to the process that forked this one" in told.get(timeout=60)
        child.join(60)
        assert child.exitcode == 0
        with run.step() as step:
            step.select(0, IDS, position=[100, 200])
    assert kvscope.open(path).columns("runs")["status"] == ["finished"]
    check(path)


def test_a_child_that_is_forked_within_blocks_leaves_by_its_own_exit(tmp_path):
    path = tmp_path / "run.kvtrace"
    program = f"""
import os, sys, kvscope
with kvscope.record({str(path)!r}) as rec, rec.run(method="m", block_size=16, block_bytes=64, layers=1) as run, run.step() as step:
    child = os.fork()
    if child == 0:
        sys.exit(3)
    step.select(0, [[[0]]], position=[20])
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (3, "")
    assert kvscope.open(path).columns("runs")["status"] == ["failed"]  # by the parent's own exit


def test_a_run_is_read_while_it_is_recorded(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path) as rec, run_of(rec) as run:
        for i in range(3):
            with run.step() as step:
                step.select(0, IDS, position=[100, 200])
            rec.flush()
            assert kvscope.open(path).columns("steps")["step"] == list(range(1, i + 2))
    assert rec is not None and kvscope.library_version() == kvscope.__version__


def test_prompts_in_pieces_and_of_later_requests(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    one = np.array([[[0, 1]]])
    with kvscope.record(path) as rec, run_of(rec, kv_heads=1) as run:
        with run.step("prompt", tokens=3) as step:
            step.prompt(0, 0, [5, 6, 7], texts=["a", "b", "c"])
        with run.step("prompt", tokens=17) as step:
            step.prompt(0, 3, tokens=17)
        for i in range(2):
            with run.step() as step:
                step.select(0, one, position=[20 + i])
        with run.step("mixed", tokens=1 + 8) as step:
            step.select(0, one, position=[22])
            step.prompt(1, 32, np.arange(8), begins=True)
        with run.step(tokens=2) as step:
            step.select(0, np.array([[[0, 1]], [[0, 2]]]), position=[23, 40])
        with pytest.raises(ValueError, match="neither ids nor tokens"), run.step("prompt", tokens=4) as step:
            step.prompt(0, 0)
        with pytest.raises(ValueError, match="tokens is 3 for 2 ids"), run.step("prompt", tokens=4) as step:
            step.prompt(0, 0, [1, 2], tokens=3)
        with pytest.raises(kvscope.Error, match="begin it as KVTRACE_PROMPT"), run.step() as step:
            step.prompt(0, 0, tokens=4)
    trace = kvscope.open(path)
    assert trace.columns("pieces") == {
        "run": [1, 1, 1], "step": [0, 1, 4], "seq": [0, 0, 1], "begins": [1, 0, 1], "first": [0, 3, 32], "tokens": [3, 17, 8],
    }  # fmt: skip
    assert trace.columns("steps")["phase"] == ["prefill", "prefill", "decode", "decode", "decode", "decode"]
    assert trace.columns("prompts")["text"] == ["a", "b", "c"]
    check(path)


def test_a_process_that_is_killed_leaves_a_trace_that_opens(tmp_path):
    program = """
import sys, kvscope
rec = kvscope.record(sys.argv[1])
run = rec.run(method="mine", block_size=16, block_bytes=512, layers=2, sequences=2)
for i in range(1_000_000):
    with run.step("mixed" if i % 3 == 1 else "decode", tokens=9) as step:
        for layer in range(2):
            step.select(layer, [[[0, 1 + i % 6, 7]]], position=[112])
        if i % 3 == 1:
            step.prompt(1, 8 * i, tokens=8, begins=i == 1)
    if i == 0:
        rec.flush()
        print("recording", flush=True)
"""
    chance = random.Random(23)
    for repeat in range(8):
        path = str(tmp_path / f"killed{repeat}.kvtrace")
        child = subprocess.Popen([sys.executable, "-c", program, path], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline() == b"recording\n"
        time.sleep(chance.uniform(0, 0.5))
        child.kill()
        assert child.wait(60) == -signal.SIGKILL
        trace = kvscope.open(path)
        steps, selections = trace.columns("steps")["step"], trace.columns("selections")["step"]
        assert steps == list(range(1, len(steps) + 1)) and steps
        assert len(selections) == 2 * len(steps), "steps are there as a whole"
        assert trace.columns("runs")["status"] == ["running"]
        check(path)
        with kvscope.record(path, overwrite=False) as rec, run_of(rec) as run, run.step() as step:  # it takes another run
            step.select(0, IDS, position=[100, 200])
        assert kvscope.open(path).columns("runs")["run"] == [1, 2]


def test_index_arrays_without_a_query_behind_the_prompt_are_refused_and_leave_the_file(tmp_path):
    path = tmp_path / "reply.kvtrace"
    array = np.array([[[0, -1]], [[1, 0]], [[2, 1]], [[3, 0]]], dtype=np.int32)
    kvscope.from_indexer_topk(array, path, prompt_tokens=3, block_size=1)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="all queries stand inside the prompt .*position 3, prompt_tokens is 4"):
        kvscope.from_indexer_topk(array, path, prompt_tokens=4, block_size=1)
    with pytest.raises(ValueError, match="all queries stand inside the prompt .*position 3, prompt_tokens is 4, 9"):
        kvscope.from_indexer_topk([array, array[:2]], path, prompt_tokens=[4, 9], block_size=1)
    assert path.read_bytes() == before
    kvscope.from_indexer_topk([array, array], path, prompt_tokens=[4, 2], block_size=1)
    assert kvscope.open(path).columns("selections")["blocks"] == [[1, 2], [0, 3]]


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_replies_of_servers_are_recorded_without_torch(tmp_path, engine):
    path = str(tmp_path / "reply.kvtrace")
    array = np.array([[[0, -1]], [[1, 0]], [[2, 1]], [[3, 0]], [[4, 2]]], dtype=np.int32)
    file = io.BytesIO()
    np.save(file, array)
    encoded = base64.b64encode(array.tobytes() if engine == "sglang" else file.getvalue()).decode()

    def reply(prompt, generated):
        if engine == "sglang":  # bare numbers, whose shape follows from the counts
            return {"meta_info": {"indexer_topk": encoded, "prompt_tokens": prompt, "completion_tokens": generated}}
        return {"choices": [{"indexer_topk": encoded}], "usage": {"prompt_tokens": prompt}}

    kvscope.from_reply(reply(3, 3), path, topk=2, block_size=1)
    assert kvscope.open(path).columns("selections")["blocks"] == [[0, 3], [2, 4]]
    check(path)
    with pytest.raises(ValueError, match="all queries stand inside the prompt .*position 4, prompt_tokens is 5"):  # one token was generated
        kvscope.from_reply(reply(5, 1), path, topk=2, block_size=1)
