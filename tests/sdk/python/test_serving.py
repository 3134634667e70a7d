"""Servers: replies that are converted, and plugins against packages with the same seams. Neither SGLang nor vLLM runs here."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import io
import json
import logging
import os
import subprocess
import sys
import types
import zipfile
from pathlib import Path

import kvscope
import numpy as np
import pytest
import torch
from engine_stubs import SGLANG, VLLM, install
from families import model_of
from kvscope import __main__ as program
from kvscope.serving import Folded, Served
from test_recording import check
from test_transformers import generate, prompts_of, sets_of

PROMPT, NEW, LAYERS, TOPK = 45, 14, 3, 16


@pytest.fixture(scope="module")
def reply(tmp_path_factory):
    """A reply with SGLang's layout, made by DeepSeek-V3.2's indexers; the trace of the hooks beside it; and all token ids."""
    model, ids, path = model_of("deepseek_v32"), prompts_of(1), str(tmp_path_factory.mktemp("reply") / "hooks.kvtrace")
    rows: dict[int, list[torch.Tensor]] = {layer: [] for layer in range(LAYERS)}

    def keep(layer, out):
        for query in out[0]:
            position = len(rows[layer])
            rows[layer].append(torch.nn.functional.pad(torch.where(query <= position, query, -1), (0, TOPK - query.shape[0]), value=-1))

    for name, module in model.named_modules():
        if type(module).__name__.endswith("Indexer"):
            module.register_forward_hook(lambda m, a, out, layer=int(name.split(".")[2]): keep(layer, out))
    with kvscope.record(path, model):
        tokens = generate(model, ids)[0].tolist()
    array = torch.stack([torch.stack(rows[layer]) for layer in range(LAYERS)], dim=1).to(torch.int32).numpy()
    assert array.shape == (PROMPT + NEW - 1, LAYERS, TOPK)
    text = base64.b64encode(array.tobytes()).decode()
    return {"meta_info": {"indexer_topk": text, "prompt_tokens": PROMPT, "completion_tokens": NEW}}, array, path, tokens


def test_a_reply_of_sglang_gives_the_trace_of_the_hooks(tmp_path, reply):
    said, array, hooks, tokens = reply
    path = str(tmp_path / "run.kvtrace")
    kvscope.from_reply(said, path, topk=TOPK, tokens=[tokens])
    assert sets_of(path) == sets_of(hooks)
    for table in ("selections", "tokens", "prompts"):
        mine, theirs = kvscope.open(path).columns(table), kvscope.open(hooks).columns(table)
        assert {c: mine[c] for c in mine if c != "mass"} == {c: theirs[c] for c in theirs if c != "mass"}, table
    runs = kvscope.open(path).columns("runs")
    assert runs["steps"] == [NEW] and json.loads(runs["knows"][0]) == ["selections"] and runs["method"] == ["dsa"]
    check(path)


def test_a_reply_of_vllm_is_a_numpy_file_that_knows_its_shape(tmp_path, reply):
    _, array, hooks, _ = reply
    file, source, path = io.BytesIO(), tmp_path / "reply.json", str(tmp_path / "run.kvtrace")
    np.save(file, array)
    source.write_text(json.dumps({"choices": [{"indexer_topk": base64.b64encode(file.getvalue()).decode()}], "usage": {"prompt_tokens": PROMPT}}))
    assert program.main(["convert", str(source), "-o", path]) == 0
    assert sets_of(path) == sets_of(hooks)
    meta = kvscope.open(path).columns("meta")
    assert dict(zip(meta["key"], meta["value"]))["engine"] == "vllm"
    check(path)


def test_sequences_of_several_lengths_and_layers_that_are_some_of_the_models(tmp_path, reply):
    _, array, _, _ = reply
    path = str(tmp_path / "run.kvtrace")
    kvscope.from_indexer_topk([array, torch.from_numpy(array[:50].copy())], path, prompt_tokens=[PROMPT, PROMPT - 5], layers=8,
                              layer_numbers=[1, 4, 6], block_size=1)  # fmt: skip
    sets = sets_of(path)
    assert {layer for _, layer, _, _ in sets} == {1, 4, 6} and {step for step, _, seq, _ in sets if seq == 1} == set(range(1, 11))
    assert sets[3, 4, 1, 0] == sorted(array[PROMPT - 5 - 1 + 3][1].tolist())
    check(path)


def test_a_file_that_is_no_reply_is_one_sentence(tmp_path, capsys):
    for text, sentence in (("host", "is not JSON"), ("[]", "holds no object"), ("{}", "has no indexer_topk")):
        (tmp_path / "reply.json").write_text(text)
        assert program.main(["convert", str(tmp_path / "reply.json"), "-o", str(tmp_path / "run.kvtrace")]) == 1
        said = capsys.readouterr().err
        assert sentence in said and said.count("\n") == 1
    assert not (tmp_path / "run.kvtrace").exists()


@pytest.mark.parametrize(
    "change, options, sentence",
    [
        (lambda r: r["meta_info"].pop("indexer_topk"), {}, "has no indexer_topk"),
        (lambda r: r["meta_info"].pop("completion_tokens"), {}, "give two of queries"),
        (lambda r: r["meta_info"].pop("prompt_tokens"), {}, "how long its prompt is"),
        (lambda r: None, {"topk": 7}, "are not an array of 58 queries"),
        (lambda r: None, {"layer_numbers": [1]}, "1 layer_numbers for 3"),
    ],
)
def test_what_a_reply_lacks_is_one_sentence(tmp_path, reply, change, options, sentence):
    said = json.loads(json.dumps(reply[0]))
    change(said)
    if "completion_tokens" not in said["meta_info"]:
        options = {"topk": None}
    with pytest.raises(ValueError, match=sentence):
        kvscope.from_reply(said, tmp_path / "run.kvtrace", **{"topk": TOPK, **options})


# ---- Plugins ----


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, unpacked: what entry points are found in."""
    folder = tmp_path_factory.mktemp("wheel")
    source = Path(__file__).resolve().parents[3] / "sdk/python/build_wheel.py"
    spec = importlib.util.spec_from_file_location("build_wheel", source)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    library = Path(os.environ.get("KVSCOPE_TRACE_LIBRARY") or Path(kvscope.__file__).parent / "libkvscope_trace.so")
    zipfile.ZipFile(module.pack(library, "py3-none-any", folder)).extractall(folder / "site")
    return folder / "site"


@pytest.fixture
def engine(tmp_path, monkeypatch, wheel):
    """Installs a package with seams and the entry points of the wheel, for one test."""

    def make(name: str, files: dict[str, str], **changes: str | None):
        install(tmp_path / "site", name, {**files, **changes})
        monkeypatch.syspath_prepend(str(tmp_path / "site"))
        entry = tmp_path / "site/kvscope-0.dist-info"  # of the wheel, found before that of an installed one
        entry.mkdir()
        (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: kvscope\nVersion: 0\n")
        (entry / "entry_points.txt").write_bytes(next(wheel.glob("*.dist-info/entry_points.txt")).read_bytes())
        monkeypatch.syspath_prepend(str(Path(kvscope.__file__).parents[1]))
        import kvscope_plugin

        monkeypatch.setattr(kvscope_plugin, "_loaded", set())

    yield make
    for name in [name for name in sys.modules if name.split(".")[0] in ("sglang", "vllm")]:
        del sys.modules[name]


def chosen_of(random, positions: list[int], topk: int = 8) -> torch.Tensor:
    """What one layer selects: int32 [rows, topk], -1 where fewer."""
    out = torch.full((len(positions), topk), -1, dtype=torch.int32)
    for row, position in enumerate(positions):
        ids = random.choice(position + 1, min(topk, position + 1), replace=False)
        out[row, : len(ids)] = torch.from_numpy(ids.astype(np.int32))
    return out


def folded_of(ids: torch.Tensor, size: int) -> list[int]:
    return sorted({int(i) // size for i in ids if i >= 0})


@pytest.mark.parametrize("own", [False, True], ids=["alone", "beside-its-own"])
def test_sglang_is_recorded_through_its_capturer(tmp_path, monkeypatch, caplog, engine, own):
    path = str(tmp_path / "run-%r.kvtrace")
    monkeypatch.setenv("KVSCOPE_TRACE", path)
    monkeypatch.setenv("KVSCOPE_BLOCK", "16")
    monkeypatch.setenv("KVSCOPE_SEQUENCES", "2")
    engine("sglang", SGLANG)
    plugins = importlib.import_module("sglang.srt.plugins")
    seam = importlib.import_module("sglang.srt.state_capturer.indexer_topk")
    seam.ENABLED = own
    with caplog.at_level(logging.WARNING, "kvscope"):
        plugins.load_plugins()
        text = types.SimpleNamespace(num_hidden_layers=2, index_topk=8)
        config = types.SimpleNamespace(hf_text_config=text, context_len=512, model_path="tiny")
        capturer = seam.create_indexer_capturer(model_config=config, num_tokens=4096, max_running_requests=8, device="cpu")
        seam.set_global_indexer_capturer(capturer)
    assert caplog.text.count("recording selections of sglang 0.9.stub") == 1
    random, expected, left_out = np.random.default_rng(1), [], 0
    # Three requests of which two are recorded; one ends, and its slot goes to another; a prompt is read between two steps.
    lives = {"a": (100, 0, 20), "b": (40, 0, 8), "c": (300, 2, 20), "d": (77, 9, 20)}
    recorded: dict[str, int] = {}
    rows = 0
    for time in range(20):
        if time == 9:
            seam.maybe_capture_indexer_topk(0, chosen_of(random, list(range(77))))
            prompt = types.SimpleNamespace(is_decode=lambda: False)
            given = dict(forward_batch=types.SimpleNamespace(forward_mode=prompt), can_run_graph=False, cuda_graph_batch=None)
            assert seam.get_global_indexer_capturer().on_forward_end(**given) == ("the engine's own" if own else None)
            drafted = types.SimpleNamespace(is_decode=lambda: True)  # a draft model's step, behind the model it drafts for
            given["forward_batch"] = types.SimpleNamespace(forward_mode=drafted, spec_info=object())
            assert seam.get_global_indexer_capturer().on_forward_end(**given) == ("the engine's own" if own else None)
        batch = [(one, first + time - begin) for one, (first, begin, end) in lives.items() if begin <= time < end]
        recorded = {one: row for one, row in recorded.items() if one in dict(batch)}
        for one, _ in batch:
            if one not in recorded and len(recorded) < 2:
                recorded[one], rows = rows, rows + 1
        step = []
        padded = chosen_of(random, [position for _, position in batch] + [5])  # a graph runs a padded batch
        for layer in range(2):
            ids = chosen_of(random, [position for _, position in batch])
            padded[: len(batch)] = ids
            seam.maybe_capture_indexer_topk(layer, padded)
            step += [(recorded[one], layer, folded_of(ids[row], 16)) for row, (one, _) in enumerate(batch) if one in recorded]
        left_out += len(batch) - len(recorded)
        expected.append(step)
        forward = types.SimpleNamespace(
            forward_mode=types.SimpleNamespace(is_decode=lambda: True), rids=[one for one, _ in batch], spec_info=None,
            seq_lens_cpu=torch.tensor([position + 1 for _, position in batch]),
        )  # fmt: skip
        capturer.on_forward_end(forward_batch=forward, can_run_graph=True, cuda_graph_batch=len(batch) + 1, no_copy_to_cpu=False)
    if own:
        assert capturer.captured == 41 and capturer.ended == 22
    assert seam.collect(3) == (3 if own else None)  # the scheduler asks every capturer
    capturer.destroy()
    file = path.replace("%r", "0")
    sets = sets_of(file)
    assert sets == {(i + 1, layer, row, 0): blocks for i, step in enumerate(expected) for row, layer, blocks in step}
    runs = kvscope.open(file).columns("runs")
    assert json.loads(runs["knows"][0]) == ["selections"] and runs["block_size"] == [16] and runs["model"] == ["tiny"]
    assert f"{left_out} rows of requests" in runs["status_message"][0]
    assert kvscope.open(file).columns("tokens")["token_id"] == [] and kvscope.open(file).columns("prompts")["token_id"] == []
    assert set(sum(kvscope.open(file).columns("selections")["origins"], [])) == {4}
    check(file)


@pytest.mark.parametrize(
    "text, fused, sentence",
    [
        (dict(index_topk=8), True, "places in the KV pool, not positions; start the server with SGLANG_DSA_FUSE_TOPK=0"),
        (dict(index_topk=8, compress_ratios=[1, 4]), False, "select compressed entries"),
        ({}, False, "has no indexer"),
    ],
)
def test_what_sglang_gives_instead_of_positions_is_not_recorded(tmp_path, monkeypatch, caplog, engine, text, fused, sentence):
    monkeypatch.setenv("KVSCOPE_TRACE", str(tmp_path / "run.kvtrace"))
    engine("sglang", SGLANG)
    importlib.import_module("sglang.srt.environ").envs.SGLANG_DSA_FUSE_TOPK.value = fused
    seam = importlib.import_module("sglang.srt.state_capturer.indexer_topk")
    config = types.SimpleNamespace(hf_text_config=types.SimpleNamespace(num_hidden_layers=2, **text), context_len=512, model_path="tiny")
    with caplog.at_level(logging.WARNING, "kvscope"):
        importlib.import_module("sglang.srt.plugins").load_plugins()
        assert seam.create_indexer_capturer(model_config=config, num_tokens=4096, max_running_requests=8, device="cpu") is None
    assert caplog.text.count("not recording") == 1 and sentence in caplog.text


def test_tokens_behind_the_query_are_no_positions(tmp_path, monkeypatch, caplog):
    """Such as places in an engine's KV pool."""
    path = str(tmp_path / "run.kvtrace")
    monkeypatch.setenv("KVSCOPE_TRACE", path)
    served, folded = Served("tests", "1", "tiny", 64, 1), Folded(1, 4, 4096, 64, "cpu")
    with caplog.at_level(logging.WARNING, "kvscope"):
        for i, last in enumerate((100, 127, 128, 100)):  # the block of the query at 100 ends at 127
            folded.fold(0, torch.tensor([[3, last]]))
            served.guarded(lambda: served.step(folded, [(0, "x", 100)]) if i < 2 else served.step(folded, [(0, "y", 100)]))
    assert caplog.text.count("layer 0 gives tokens behind its query's") == 1
    assert kvscope.open(path).columns("runs")["status"] == ["failed"] and len(sets_of(path)) == 2
    check(path)


def test_an_array_of_places_in_a_pool_is_refused(tmp_path, reply):
    _, array, _, _ = reply
    assert array[: TOPK - 1].max() < TOPK  # fewer to choose from than are chosen
    places = np.where(array < 0, array, array + 4096)
    with pytest.raises(ValueError, match="no positions.*SGLANG_DSA_FUSE_TOPK=0"):
        kvscope.from_indexer_topk(places, tmp_path / "run.kvtrace", prompt_tokens=PROMPT)
    assert not (tmp_path / "run.kvtrace").exists()


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"srt/plugins/hook_registry.py": ""}, "has no sglang.srt.plugins.hook_registry"),
        ({"srt/state_capturer/indexer_topk.py": None}, "create_indexer_capturer"),
        ({"srt/state_capturer/indexer_topk.py": "def create_indexer_capturer(model_config): pass\n"}, "create_indexer_capturer"),
        ({"srt/state_capturer/base.py": "class BaseTopkCapturer:\n    def capture(self, indices): pass\n"}, "BaseTopkCapturer.capture"),
    ],
)
def test_a_seam_that_sglang_lacks_is_one_sentence(tmp_path, monkeypatch, caplog, engine, changes, sentence):
    monkeypatch.setenv("KVSCOPE_TRACE", str(tmp_path / "run.kvtrace"))
    engine("sglang", SGLANG, **changes)
    import kvscope_plugin

    with caplog.at_level(logging.WARNING, "kvscope"):
        kvscope_plugin.sglang()
        kvscope_plugin.sglang()  # engines load plugins more than once
    assert caplog.text.count("not recording: sglang 0.9.stub") == 1 and sentence in caplog.text
    assert not (tmp_path / "run.kvtrace").exists()


def schedule(chosen, requests: list[tuple[str, int, int, int]], padding: int = 0):
    """A step of vLLM. requests: name, tokens computed before, tokens scheduled, tokens of the prompt; decode steps first."""
    names = [name for name, _, _, _ in requests]
    batch = types.SimpleNamespace(
        req_ids=names, num_computed_tokens_cpu=np.array([done for _, done, _, _ in requests]),
        num_prompt_tokens=np.array([prompt for _, _, _, prompt in requests]),
    )  # fmt: skip
    scheduled = {name: tokens for name, _, tokens, _ in requests}
    return types.SimpleNamespace(batch=batch, num_scheduled_tokens=scheduled, chosen=chosen, padding=padding)


@pytest.mark.parametrize("own", [False, True], ids=["op", "function"])
@pytest.mark.parametrize("place", ["vllm.v1.worker.gpu_model_runner", "vllm.v1.worker.gpu.model_runner"])
def test_vllm_is_recorded_though_one_buffer_serves_all_layers(tmp_path, monkeypatch, caplog, engine, place, own):
    path = str(tmp_path / "run.kvtrace")
    monkeypatch.setenv("KVSCOPE_TRACE", path)
    engine("vllm", VLLM)
    with caplog.at_level(logging.WARNING, "kvscope"):
        importlib.import_module("vllm.plugins").load_general_plugins()
    assert caplog.text.count("recording selections of vllm 0.99.stub") == 1
    importlib.import_module("vllm.models").OWN = own
    worker = importlib.import_module(place)
    runner = worker.GPUModelRunner(layers=LAYERS, requests=8, max_model_len=1024, topk=8)
    random, expected = np.random.default_rng(2), {}
    for time in range(12):
        # x decodes; y reads its prompt in parts of 30 tokens, then decodes; the batch is padded.
        x, y = ("x", 200 + time, 1, 200), ("y", 30 * time, 30, 90) if time < 3 else ("y", 90 + time - 3, 1, 90)
        positions = [200 + time] + [y[1] + i for i in range(y[2])]
        chosen = [chosen_of(random, positions) for _ in range(LAYERS)]
        step = schedule(chosen, [x, y], padding=3)
        if hasattr(runner, "sample_tokens"):
            assert runner.execute_model(step) is None and runner.sample_tokens(None) == "output"
            assert runner.execute_model(schedule([], [])) == "no output"
            runner.execute_model(schedule([chosen_of(random, [9])] * LAYERS, [("trial", 9, 1, 0)]), None, True)
        else:
            assert runner.execute_model(step) == "output"
        for layer in range(LAYERS):
            expected[time + 1, layer, 0, 0] = folded_of(chosen[layer][0], 64)
            if time >= 3:
                expected[time + 1, layer, 1, 0] = folded_of(chosen[layer][1], 64)
    recording_of(worker).close()
    assert sets_of(path) == expected
    assert kvscope.open(path).columns("runs")["status"] == ["finished"]
    check(path)


def recording_of(worker):
    cells = dict(zip(worker.GPUModelRunner.execute_model.__code__.co_freevars, worker.GPUModelRunner.execute_model.__closure__))
    return cells["self"].cell_contents


@pytest.mark.parametrize(
    "change, sentence",
    [
        (lambda r: setattr(r.model_config.hf_text_config, "compress_rates", {"csa": 4}), "select compressed entries"),
        (lambda r: setattr(r, "speculative_config", object()), "with speculative decoding"),
        (lambda r: None, "no indexer was seen in 64 decode steps"),
    ],
)
def test_what_vllm_does_not_show_is_one_sentence(tmp_path, monkeypatch, caplog, engine, change, sentence):
    monkeypatch.setenv("KVSCOPE_TRACE", str(tmp_path / "run.kvtrace"))
    engine("vllm", VLLM)
    importlib.import_module("vllm.plugins").load_general_plugins()
    runner = importlib.import_module("vllm.v1.worker.gpu.model_runner").GPUModelRunner(LAYERS, 8, 1024, 8)
    change(runner)
    with caplog.at_level(logging.WARNING, "kvscope"):
        for time in range(70):
            runner.execute_model(schedule([], [("x", 200 + time, 1, 200)]))
    assert caplog.text.count("not recording") == 1 and sentence in caplog.text
    assert not (tmp_path / "run.kvtrace").exists()


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"utils/torch_utils.py": "OPS = {}\n"}, "direct_register_custom_op"),
        ({"model_executor/layers/sparse_attn_indexer.py": ""}, "has no op sparse_attn_indexer"),
        ({"v1/worker/gpu_model_runner.py": "class GPUModelRunner: pass\n", "v1/worker/gpu/model_runner.py": None}, "GPUModelRunner.execute_model"),
    ],
)
def test_a_seam_that_vllm_lacks_is_one_sentence(tmp_path, monkeypatch, caplog, engine, changes, sentence):
    monkeypatch.setenv("KVSCOPE_TRACE", str(tmp_path / "run.kvtrace"))
    engine("vllm", VLLM, **changes)
    import kvscope_plugin

    with caplog.at_level(logging.WARNING, "kvscope"):
        kvscope_plugin.vllm()
    assert caplog.text.count("not recording: vllm 0.99.stub") == 1 and sentence in caplog.text


def test_an_error_while_recording_never_reaches_the_engine(tmp_path, monkeypatch, caplog, engine):
    monkeypatch.setenv("KVSCOPE_TRACE", str(tmp_path / "run.kvtrace"))
    engine("vllm", VLLM)
    import kvscope_plugin

    kvscope_plugin.vllm()
    worker = importlib.import_module("vllm.v1.worker.gpu_model_runner")
    runner = worker.GPUModelRunner(layers=LAYERS, requests=8, max_model_len=1024, topk=8)
    monkeypatch.setattr(Folded, "fold", lambda *a: 1 / 0)
    chosen = [chosen_of(np.random.default_rng(0), [200]) for _ in range(LAYERS)]
    with caplog.at_level(logging.WARNING, "kvscope"):
        for time in range(3):
            assert runner.execute_model(schedule(chosen, [("x", 200 + time, 1, 200)])) == "output"
    assert caplog.text.count("recording stopped: ZeroDivisionError") == 1


def test_without_the_variable_nothing_of_the_package_is_imported(wheel):
    code = (
        "import sys; from importlib.metadata import entry_points\n"
        "points = [p for g in ('sglang.srt.plugins', 'vllm.general_plugins') for p in entry_points(group=g) if p.name == 'kvscope']\n"
        "assert len(points) >= 2\n"
        "for point in points: point.load()()\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'kvscope'])\n"
    )
    clean = {key: value for key, value in os.environ.items() if key != "KVSCOPE_TRACE"} | {"PYTHONPATH": str(wheel)}
    assert subprocess.run([sys.executable, "-c", code], env=clean, check=True, capture_output=True, text=True).stdout == "[]\n"


def test_a_run_ends_where_its_rows_are_used_up(tmp_path, monkeypatch):
    path = str(tmp_path / "run.kvtrace")
    monkeypatch.setenv("KVSCOPE_TRACE", path)
    served, folded = Served("tests", "1", "tiny", 64, 1), Folded(1, 4, 1024, 64, "cpu")
    for request in range(300):
        for i in range(2):
            folded.fold(0, torch.tensor([[request, 0]]))
            served.step(folded, [(0, request, 1000 + i)])
    served.close()
    columns = kvscope.open(path).columns("runs")
    assert columns["status"] == ["finished", "finished"] and columns["steps"] == [512, 88]
    again = Served("tests", "1", "tiny", 64, 1)  # the server starts anew: what it recorded before stays
    again.step(folded, [(0, "x", 1000)])
    again.close()
    assert kvscope.open(path).columns("runs")["steps"] == [512, 88, 1]
    check(path)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch finds")
def test_every_replay_of_a_cuda_graph_is_recorded_once_and_without_waiting(tmp_path, monkeypatch):
    path, steps, rows = str(tmp_path / "run.kvtrace"), 1000, 4
    monkeypatch.setenv("KVSCOPE_TRACE", path)
    served, folded = Served("tests", "1", "tiny", 64, 2), Folded(2, rows, 4096, 64, "cuda")
    ids = torch.zeros((rows, 64), dtype=torch.int32, device="cuda")
    table = torch.randint(0, 2000, (steps, rows, 64), dtype=torch.int32, device="cuda")

    def forward():
        for layer in range(2):
            folded.fold(layer, ids - layer)  # layer 1: one less, -1 where 0 was

    forward()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()
    waits = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *a: waits.append(a))
    torch.cuda.set_sync_debug_mode("error")
    try:
        for i in range(steps):
            ids.copy_(table[i])
            graph.replay()
            while len(served._waiting) >= 8 and not served._waiting[0][0].query():
                pass  # the test's: a real step takes longer than its copy
            served.step(folded, [(row, row, 2100 + i) for row in range(rows)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    served.close()
    assert served.off is None and served.dropped == 0 and waits == []
    chosen, sets = table.cpu(), sets_of(path)
    assert len(sets) == steps * 2 * rows
    for (step, layer, row, _), blocks in sets.items():
        assert blocks == folded_of(chosen[step - 1, row] - layer, 64)
