"""Dense models with a method evaluated in shadow: the choice, its mass, and tokens that stay the same."""

from __future__ import annotations

import json
import subprocess
import sys

import kvscope
import pytest
import torch
from families import model_of
from kvscope.methods import EvictionHeads
from kvscope.transformers import RECORDING
from test_recording import check
from test_transformers import generate, prompts_of

PROMPT, NEW = 300, 12
KEYS = ("step", "layer", "kv_head")
SMALL = {
    "quest": {"total_blocks": 6, "skip_layers": 1},
    "infllmv2": {"block_size": 32, "total_blocks": 5, "window_blocks": 1},
    "nosa": {"block_size": 32, "total_blocks": 6, "window_blocks": 1, "select_blocks": 2},
    "msa": {"block_size": 32, "total_blocks": 4},
}


def dense(implementation: str = "sdpa", **more):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=1024, eos_token_id=None, pad_token_id=0, **more)  # fmt: skip
    config._attn_implementation = implementation
    return LlamaForCausalLM(config).eval()


def heads_of(model) -> EvictionHeads:
    config = model.config
    torch.manual_seed(5)
    return EvictionHeads(torch.randn(3, 2), torch.randn(3, 2, 2 * (config.hidden_size // config.num_attention_heads)))


def plainly(name: str, p: dict, q, k, v, heads, layer) -> list[int]:
    """What a method selects for one KV head, in float64 with loops. q: [G, D]; k: [n, D]; v: [heads, n, D], of `layer` and KV head."""
    n, size, head = k.shape[0], p["block_size"], heads[1] if heads else 0
    blocks = (n + size - 1) // size
    q, k = q.double(), k.double()
    score, worth = [], [0.0] * blocks

    def windows_of(block: int) -> list[int]:
        return [c for c in range((n - 32) // 16 + 1) if c * 16 + 32 > block * size and c * 16 < (block + 1) * size]

    pooled = [k[c * 16 : c * 16 + 32].mean(0) for c in range((n - 32) // 16 + 1)]
    if name in ("infllmv2", "nosa"):
        shares = torch.softmax(torch.stack([q @ key for key in pooled], dim=1) * q.shape[1] ** -0.5, dim=1).sum(0)
        score = [max((shares[c].item() for c in windows_of(b)), default=-1e30) for b in range(blocks)]
    for b in range(blocks) if name in ("quest", "msa") else ():
        inside = k[b * size : (b + 1) * size]
        if name == "quest":
            score.append(sum(torch.maximum(one * inside.amin(0), one * inside.amax(0)).sum().item() for one in q))
        else:
            score.append((inside @ q.mean(0)).max().item())
    if name == "nosa":
        gain, weight = heads[0].gain[layer, head].double(), heads[0].weight[layer, head].double()
        token = gain * torch.nn.functional.softplus(v.double().transpose(0, 1).flatten(1) @ weight)
        worth = [max((token[c * 16 : c * 16 + 32].mean().item() for c in windows_of(b)), default=-1e30) for b in range(blocks)]
    sink = {"quest": 0, "msa": 0}.get(name, 1)
    window = {"quest": 1, "msa": 1}.get(name, p.get("window_blocks", 0) + 1)
    chosen = set(range(min(sink, blocks))) | set(range(max(0, blocks - window), blocks))
    phases = [(score, p["total_blocks"] - sink - window)]
    if name == "nosa":
        phases = [(score, p["select_blocks"] - 1), (worth, p["total_blocks"] - sink - window - (p["select_blocks"] - 1))]
    for values, count in phases:
        chosen |= set(sorted(set(range(blocks)) - chosen, key=lambda b: (-values[b], b))[:count])
    return sorted(chosen)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", SMALL)
def test_the_choice_and_its_mass_are_those_of_the_definition_and_tokens_stay(tmp_path, monkeypatch, name, implementation):
    model, ids, path = dense(implementation), prompts_of(2, PROMPT), str(tmp_path / "run.kvtrace")
    heads = heads_of(model) if name == "nosa" else None
    plain = generate(model, ids, new=NEW)
    calls, choose = [], kvscope.methods.Method.choose

    def keep(self, layer, memory, query, key, value=None, *, scale):
        choice = choose(self, layer, memory, query, key, value, scale=scale)
        calls.append((layer, query.clone(), key.clone(), value.clone(), choice is not None))
        return choice

    monkeypatch.setattr(kvscope.methods.Method, "choose", keep)
    with kvscope.record(path, model, shadow=name, params=SMALL[name], eviction=heads) as rec:
        assert torch.equal(generate(model, ids, new=NEW), plain)
    assert rec._attached[0].off is None and rec._attached[0].notes == []
    first = SMALL[name].get("skip_layers", 0)
    columns = kvscope.open(path).columns("selections")
    assert len(columns["step"]) == (NEW - 1) * (3 - first) * 2 * 2
    found = {key: i for i, key in enumerate(zip(columns["step"], columns["layer"], columns["seq"], columns["kv_head"]))}
    p, differing = {"block_size": 16, **SMALL[name]}, 0
    for number, (layer, query, key, value, selects) in enumerate(calls):
        step, row = number // 6 + 1, number % 2
        assert selects == (layer >= first) and key.shape[1] == PROMPT + step
        for head in range(2) if selects else ():
            i = found[step, layer, row, head]
            expected = plainly(name, p, query[head], key[head], value, (heads, head) if heads else None, layer)
            differing += columns["blocks"][i] != expected
            shares = torch.softmax(query[head].double() @ key[head].double().T * query.shape[-1] ** -0.5, dim=1).mean(0)
            inside = [t for t in range(key.shape[1]) if t // p["block_size"] in columns["blocks"][i]]
            assert columns["mass"][i] == pytest.approx(shares[inside].sum().item(), abs=1e-5)
    assert differing <= 1  # ties of float32 against float64
    runs = kvscope.open(path).columns("runs")
    assert runs["method"] == [name] and runs["status"] == ["finished"] and runs["block_size"] == [p["block_size"]]
    assert json.loads(runs["params_json"][0])["total_blocks"] == SMALL[name]["total_blocks"]
    check(path)


def test_origins_say_why_a_block_was_taken(tmp_path):
    model, path = dense(), str(tmp_path / "run.kvtrace")
    with kvscope.record(path, model, shadow="nosa", params=SMALL["nosa"], eviction=heads_of(model)):
        generate(model, prompts_of(1, PROMPT), new=4)
    for origins in kvscope.open(path).columns("selections")["origins"]:
        assert origins[0] == 0 and origins[-2:] == [1, 1] and sorted(origins[1:-2]) == [2, 3, 3]


def test_left_padding_shifts_no_position(tmp_path):
    model, ids = dense(), prompts_of(2, PROMPT)
    mask, pad = torch.ones_like(ids), 37
    mask[1, :pad] = 0
    together, alone = str(tmp_path / "together.kvtrace"), str(tmp_path / "alone.kvtrace")
    with kvscope.record(together, model, shadow="quest", params=SMALL["quest"]):
        both = generate(model, ids, mask, new=NEW)
    with kvscope.record(alone, model, shadow="quest", params=SMALL["quest"]):
        single = generate(model, ids[1:, pad:], new=NEW)
    assert both[1, PROMPT:].tolist() == single[0, PROMPT - pad :].tolist()
    mine, theirs = (kvscope.open(path).columns("selections") for path in (together, alone))
    padded = {tuple(key): blocks for *key, seq, blocks in zip(*(mine[c] for c in (*KEYS, "seq", "blocks"))) if seq == 1}
    unpadded = dict(zip(zip(*(theirs[c] for c in KEYS)), theirs["blocks"]))
    assert padded.keys() == unpadded.keys()
    assert sum(padded[key] != unpadded[key] for key in padded) <= 1  # a tie: rotations differ by rounding
    check(together)


def test_two_methods_at_once_and_every_few_steps(tmp_path):
    model, ids = dense(), prompts_of(1, PROMPT)
    plain = generate(model, ids, new=NEW)
    outer, inner = str(tmp_path / "quest.kvtrace"), str(tmp_path / "msa.kvtrace")
    with kvscope.record(outer, model, shadow="quest", params=SMALL["quest"]):
        with kvscope.record(inner, model, shadow="msa", params={"block_size": 16}, budget=64, mass=False, every=4):
            assert torch.equal(generate(model, ids, new=NEW), plain)
        assert torch.equal(generate(model, ids, new=NEW), plain)
    assert "generate" not in model.__dict__ and not model._forward_hooks
    assert kvscope.open(outer).columns("runs")["steps"] == [NEW, NEW]
    few = kvscope.open(inner).columns("selections")
    assert sorted(set(few["step"])) == [1, 2, 5, 6, 9, 10] and set(few["mass"]) == {None} and len(few["blocks"][0]) == 4
    assert {step for step, kept in zip(few["step"], few["kept"]) if kept is not None} == {2, 6, 10}
    for path in (outer, inner):
        check(path)


def test_nothing_stays_behind_and_other_models_are_not_seen(tmp_path):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    model, other, path = dense(), dense(), str(tmp_path / "run.kvtrace")
    with kvscope.record(path, model, shadow="quest", params=SMALL["quest"]):
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not before
        generate(other, prompts_of(1, PROMPT), new=4)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before and "sdpa" not in ALL_ATTENTION_FUNCTIONS._local_mapping
    assert kvscope.open(path).columns("runs")["run"] == []


def test_layers_with_a_sliding_window_are_left_out_and_said(tmp_path):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        use_sliding_window=True, sliding_window=64, eos_token_id=None, layer_types=["full_attention", "sliding_attention", "full_attention"],
    )).eval()  # fmt: skip
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path, model, shadow="infllmv2", params=SMALL["infllmv2"]):
        generate(model, prompts_of(1, PROMPT), new=4)
    assert set(kvscope.open(path).columns("selections")["layer"]) == {0, 2}
    assert "sliding windows" in kvscope.open(path).columns("runs")["status_message"][0]
    check(path)


@pytest.mark.parametrize(
    "options, sentence",
    [
        (dict(shadow="magic"), "no method 'magic'"),
        (dict(shadow="quest", params={"budget": 3}), "no parameter 'budget'"),
        (dict(shadow="quest", params={"total_blocks": 0}), "must hold the 1 blocks"),
        (dict(shadow="quest", budget=100), "multiple of the block size, 16"),
        (dict(shadow="quest", every=2), "give 1 for every step"),
        (dict(shadow="nosa"), "needs the eviction heads"),
        (dict(shadow="quest", block_size=3), "no option 'block_size' with shadow"),
        (dict(every=3), "no option 'every' without shadow"),
        (dict(), 'shadow="quest"'),
    ],
)
def test_what_there_is_not_is_refused(tmp_path, options, sentence):
    with pytest.raises((ValueError, TypeError), match=sentence):
        kvscope.record(tmp_path / "run.kvtrace", dense(), **options)


SHAPE = dict(vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1, eos_token_id=None)


@pytest.mark.parametrize(
    "family, more, layers",
    [
        ("GptOss", dict(head_dim=16, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, intermediate_size=32, sliding_window=16,
                        layer_types=["full_attention", "sliding_attention"], pad_token_id=0), {0}),
        ("GPTNeoX", dict(intermediate_size=128), {0, 1}),
        ("MiniMax", dict(head_dim=16, num_key_value_heads=2, num_local_experts=2, intermediate_size=32, pad_token_id=0,
                         layer_types=["linear_attention", "full_attention"]), {1}),
        ("DeepseekV3", dict(kv_lora_rank=16, q_lora_rank=32, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, num_key_value_heads=4,
                            moe_intermediate_size=32, n_shared_experts=1, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
                            intermediate_size=128, pad_token_id=0), {0, 1}),
    ],
)  # fmt: skip
def test_families_of_other_shapes_are_recorded_with_equal_tokens(tmp_path, family, more, layers):
    import transformers

    torch.manual_seed(0)
    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SHAPE, **more)).eval()
    ids, path = prompts_of(2, PROMPT), str(tmp_path / "run.kvtrace")
    mask = torch.ones_like(ids)
    mask[1, :37] = 0
    plain = generate(model, ids, mask, new=4)
    with kvscope.record(path, model, shadow="quest", params=SMALL["quest"] | {"skip_layers": 0}):
        assert torch.equal(generate(model, ids, mask, new=4), plain)
    assert kvscope.open(path).columns("runs")["steps"] == [4]
    selections = kvscope.open(path).columns("selections")
    assert set(selections["layer"]) == layers and all(0 < mass <= 1 for mass in selections["mass"])
    check(path)


@pytest.mark.parametrize(
    "family, sentence",
    [("Falcon", "'sdpa' from a table that a recorder can wrap; record another model"), ("GPTJ", "record another model"), ("Mamba", "a loop of your own records with")],
)
def test_models_without_an_attention_that_can_be_wrapped_are_refused(tmp_path, family, sentence):
    import transformers

    model = getattr(transformers, f"{family}ForCausalLM")(getattr(transformers, f"{family}Config")(**SHAPE)).eval()
    with pytest.raises(ValueError, match=sentence):
        kvscope.record(tmp_path / "run.kvtrace", model, shadow="quest")


def test_a_model_that_selects_by_itself_needs_no_shadow(tmp_path):
    with pytest.raises(ValueError, match="selects by itself"):
        kvscope.record(tmp_path / "run.kvtrace", model_of("deepseek_v32"), shadow="quest")


def test_an_error_in_a_method_never_reaches_the_model(tmp_path, monkeypatch):
    model, ids, path = dense(), prompts_of(1, PROMPT), str(tmp_path / "run.kvtrace")
    plain = generate(model, ids, new=4)
    with kvscope.record(path, model, shadow="quest", params=SMALL["quest"]):
        monkeypatch.setattr(kvscope.methods.Method, "choose", lambda *a, **k: 1 / 0)
        assert torch.equal(generate(model, ids, new=4), plain)
    assert "ZeroDivisionError" in kvscope.open(path).columns("runs")["status_message"][0]
    check(path)


def test_what_recording_costs_is_measured_and_kept(tmp_path):
    model, ids, path = dense(), prompts_of(1, PROMPT), str(tmp_path / "run.kvtrace")
    given = dict(shadow="quest", params=SMALL["quest"], meta={"mine": "1"})
    result = kvscope.measure_overhead(path, model, lambda: generate(model, ids, new=NEW), repeats=2, **given)
    assert kvscope.open(path).overhead == result and result.tokens_equal and (result.steps, result.repeats) == (NEW, 2)
    assert result.share == result.recorded_ms / result.plain_ms - 1 and min(result.plain_ms, result.plain_cpu_ms) > 0
    assert str(result).endswith("tokens equal") and "ms a step" in str(result)
    meta = kvscope.open(path).columns("meta")
    assert "mine" in meta["key"] and kvscope.open(path).columns("runs")["steps"] == [NEW]
    check(path)
    numbers = iter(range(100))  # another result each time
    with pytest.raises(ValueError, match="nothing was recorded"):
        kvscope.measure_overhead(path, model, lambda: next(numbers), repeats=1, **given)
    drawn = kvscope.measure_overhead(path, model, lambda: [generate(model, ids, new=2), next(numbers)][1], repeats=1, **given)
    assert not drawn.tokens_equal and str(drawn).endswith("NOT equal")


def test_a_trace_that_nobody_measured_says_so(tmp_path):
    path = str(tmp_path / "run.kvtrace")
    with kvscope.record(path, dense(), shadow="quest"):
        pass
    assert kvscope.open(path).overhead is None


def test_each_step_says_what_recording_took(tmp_path):
    model, path = dense(), str(tmp_path / "run.kvtrace")
    with kvscope.record(path, model, shadow="quest", params=SMALL["quest"]):
        generate(model, prompts_of(1, PROMPT), new=NEW)
    program = (
        "import sqlite3, sys, json\n"
        "db = sqlite3.connect(f'file:{sys.argv[1]}?mode=ro', uri=True)\n"
        "print(json.dumps(db.execute('SELECT track, value FROM v_counter ORDER BY start_ns').fetchall()))\n"
    )
    out = subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True, text=True).stdout
    samples = json.loads(out)
    assert len(samples) == NEW and {track for track, _ in samples} == {RECORDING} and all(value > 0 for _, value in samples)
