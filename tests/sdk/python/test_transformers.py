"""Models of transformers, with tiny random weights on the CPU."""

from __future__ import annotations

import collections
import logging

import kvscope
import pytest
import torch
from families import FAMILIES, model_of
from test_recording import check

PROMPT, NEW = 45, 14


def prompts_of(rows: int = 2, columns: int = PROMPT) -> torch.Tensor:
    torch.manual_seed(3)
    return torch.randint(2, 100, (rows, columns))


def generate(model, ids, mask=None, new=NEW, **more):
    return model.generate(ids, attention_mask=torch.ones_like(ids) if mask is None else mask, max_new_tokens=new, do_sample=False, **more)


def sets_of(path: str) -> dict[tuple[int, int, int, int], list[int]]:
    """What the trace says was selected: (step, layer, sequence, head) -> blocks."""
    columns = kvscope.open(path).columns("selections")
    keys = zip(columns["step"], columns["layer"], columns["seq"], columns["kv_head"])
    return dict(zip(keys, columns["blocks"]))


class Seen:
    """What indexers gave, seen by hooks of the test's own: (step, layer, row, head) -> columns of the cache or blocks."""

    def __init__(self, model):
        self.step, self.sets = -1, {}
        self.handles = [model.register_forward_pre_hook(self._count)]
        for name, module in model.named_modules():
            if type(module).__name__.endswith("Indexer"):
                layer = int(name.split("layers.")[1].split(".")[0])
                self.handles.append(module.register_forward_hook(lambda m, a, out, layer=layer: self._keep(layer, out)))

    def _count(self, *_):
        self.step += 1

    def _keep(self, layer, out):
        for row in range(out.shape[0]):
            heads = out[row] if out.dim() == 4 else out[row][None]
            for head in range(heads.shape[0]):
                last = heads[head, -1]
                if last.dtype is torch.bool or last.dtype.is_floating_point:
                    last = torch.nonzero(last if last.dtype is torch.bool else last == 0).flatten()
                self.sets[self.step, layer, row, head] = sorted(i for i in last.tolist() if i >= 0)

    def close(self):
        for handle in self.handles:
            handle.remove()


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_recorded_as_it_chose_and_generates_the_same_tokens(tmp_path, family):
    model, ids, path = model_of(family), prompts_of(), str(tmp_path / "run.kvtrace")
    plain = generate(model, ids)
    seen = Seen(model)
    own = 0 if family in ("minimax_m3", "deepseek_v4") else 1  # blocks of one token: the exact positions
    with kvscope.record(path, model, block_size=own) as rec:
        recorded = generate(model, ids)
    seen.close()
    attached = rec._attached[0]
    assert attached.off is None and attached.notes == []
    assert torch.equal(plain, recorded)
    assert "generate" not in model.__dict__ and not model._forward_hooks and not model._forward_pre_hooks
    sets = sets_of(path)
    expected = {key: blocks for key, blocks in seen.sets.items() if key[0] > 0}
    assert len(expected) >= 2 * (NEW - 1) and sets.keys() == expected.keys()
    for key, blocks in expected.items():
        last = PROMPT - 1 + key[0]  # position of the query
        size = kvscope.open(path).columns("runs")["block_size"][0] if own == 0 else 1
        assert sets[key] == [block for block in blocks if block * size <= last], key
    trace = kvscope.open(path)
    assert trace.columns("runs")["status"] == ["finished"] and trace.columns("runs")["steps"] == [NEW]
    tokens = trace.columns("tokens")
    for row in range(2):
        mine = [token for token, seq in zip(tokens["token_id"], tokens["seq"]) if seq == row]
        assert mine == plain[row, PROMPT:].tolist()
    assert [p for p, seq in zip(tokens["position"], tokens["seq"]) if seq == 0] == list(range(PROMPT, PROMPT + NEW))
    assert trace.columns("prompts")["token_id"] == ids.flatten().tolist()
    check(path)


def test_the_method_is_named_as_people_call_it(tmp_path):
    for family, name in {"deepseek_v32": "dsa", "minimax_m3": "msa", "qwen4_exp": "qsa", "deepseek_v4": "csa"}.items():
        path = str(tmp_path / f"{family}.kvtrace")
        with kvscope.record(path, model := model_of(family)):
            generate(model, prompts_of(1), new=3)
        assert kvscope.open(path).columns("runs")["method"] == [name]


def test_padding_on_the_left_shifts_no_position(tmp_path, monkeypatch):
    """The choices of a padded row are those of the same prompt alone, but for ties: scores that ReLU made 0."""
    model, ids = model_of("deepseek_v32"), prompts_of()
    pad, scores = 7, []
    topk = torch.Tensor.topk

    def keep_scores(self, k, *args, **kwargs):
        if self.dim() == 3 and self.shape[-1] >= PROMPT and self.shape[1] == 1:
            scores.append(self[1, 0].clone())  # of the padded row, one a layer and decode step
        return topk(self, k, *args, **kwargs)

    mask = torch.ones_like(ids)
    mask[1, :pad] = 0
    alone, together = str(tmp_path / "alone.kvtrace"), str(tmp_path / "together.kvtrace")
    with kvscope.record(together, model, block_size=1), monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "topk", keep_scores)
        both = generate(model, ids, mask)
    with kvscope.record(alone, model, block_size=1):
        single = generate(model, ids[1:, pad:])
    assert both[1, PROMPT:].tolist() == single[0, PROMPT - pad :].tolist()
    mine, theirs = sets_of(alone), sets_of(together)
    assert len(scores) == len(mine) == 3 * (NEW - 1)
    equal = 0
    for (step, layer, _, _), one in sorted(mine.items()):
        other, of = theirs[step, layer, 1, 0], scores[(step - 1) * 3 + layer]
        last_taken = topk(of, 16).values[-1]
        for position in set(one) ^ set(other):
            assert abs(of[position + pad] - last_taken) < 1e-5, (step, layer, position)
        if one != other:
            break  # a tie: from here on the two runs attend to different tokens
        equal += 1
    assert equal >= 20
    prompt = kvscope.open(together).columns("prompts")
    assert [token for token, seq in zip(prompt["token_id"], prompt["seq"]) if seq == 1] == ids[1, pad:].tolist()
    check(together)


def test_padded_sequences_of_block_families_are_left_out_and_said(tmp_path, caplog):
    model, ids, path = model_of("minimax_m3"), prompts_of(), str(tmp_path / "run.kvtrace")
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    with caplog.at_level(logging.WARNING, "kvscope"), kvscope.record(path, model):
        generate(model, ids, mask)
    assert {seq for _, _, seq, _ in sets_of(path)} == {0}
    assert "padded sequences are not recorded" in caplog.text
    assert "padded sequences are not recorded" in kvscope.open(path).columns("runs")["status_message"][0]
    check(path)


def test_a_sequence_that_has_ended_is_recorded_no_further(tmp_path):
    model, ids, path = model_of("deepseek_v32"), prompts_of(), str(tmp_path / "run.kvtrace")
    plain = generate(model, ids)
    end = plain[0, PROMPT + 4].item()
    at = [int((row[PROMPT:] == end).nonzero()[0]) if (row[PROMPT:] == end).any() else None for row in plain]
    model.generation_config.eos_token_id = end
    model.generation_config.pad_token_id = 0
    with kvscope.record(path, model):
        generate(model, ids)
    steps = [step for step, _, seq, _ in sets_of(path) if seq == 0]
    assert max(steps) == at[0] or at[0] == 0 and not steps
    check(path)


def test_each_prompt_is_a_run(tmp_path):
    model, path = model_of("deepseek_v32"), str(tmp_path / "run.kvtrace")
    with kvscope.record(path) as rec:
        rec.transformers(model, name="mine", tokens=False)
        generate(model, prompts_of(1), new=4)
        generate(model, prompts_of(1, 20), new=6)
    trace = kvscope.open(path)
    assert trace.columns("runs")["steps"] == [4, 6] and trace.columns("runs")["name"] == ["mine", "mine"]
    assert trace.columns("tokens")["step"] == [] and trace.columns("prompts")["seq"] == []
    check(path)


def test_a_loop_of_ones_own_is_recorded(tmp_path):
    model, ids, path = model_of("deepseek_v32"), prompts_of(1), str(tmp_path / "run.kvtrace")
    plain = generate(model, ids)[0, PROMPT:].tolist()
    with kvscope.record(path, model), torch.no_grad():
        out, made = model(input_ids=ids, use_cache=True), []
        for _ in range(NEW):
            made.append(out.logits[:, -1].argmax(-1, keepdim=True))
            if len(made) < NEW:
                out = model(input_ids=made[-1], past_key_values=out.past_key_values, use_cache=True)
    assert [token.item() for token in made] == plain
    tokens = kvscope.open(path).columns("tokens")
    assert tokens["token_id"] == plain[:-1]  # nobody was told the last one
    check(path)


def test_sharing_of_an_index_is_said(tmp_path):
    model, path = model_of("glm_moe_dsa"), str(tmp_path / "run.kvtrace")
    with kvscope.record(path, model):
        generate(model, prompts_of(1), new=3)
    meta = kvscope.open(path).columns("meta")
    assert dict(zip(meta["key"], meta["value"]))["index_leader"] == "[0, 1, 1]"


def test_what_cannot_be_recorded_is_refused_before_anything_is_computed(tmp_path):
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, StaticCache, T5Config, T5ForConditionalGeneration

    model, path = model_of("deepseek_v32"), tmp_path / "run.kvtrace"
    with kvscope.record(path, model):
        with pytest.raises(ValueError, match="cache_implementation='static'"):
            generate(model, prompts_of(1), cache_implementation="static")
        with pytest.raises(ValueError, match="num_beams=1"):
            generate(model, prompts_of(1), num_beams=2)
        with pytest.raises(ValueError, match="num_beams=1"):
            model.generate(prompts_of(1), GenerationConfig(num_beams=2, max_new_tokens=3))
        with pytest.raises(ValueError, match="leave use_cache out"):
            generate(model, prompts_of(1), use_cache=False)
        with pytest.raises(ValueError, match="past_key_values is a StaticCache"):
            generate(model, prompts_of(1), past_key_values=StaticCache(config=model.config, max_cache_len=128))
    assert kvscope.open(path).columns("runs")["run"] == []

    with pytest.raises(ValueError, match="the model is compiled"):
        kvscope.record(path, torch.compile(model))
    encoder = T5ForConditionalGeneration(T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2))
    with pytest.raises(ValueError, match="T5ForConditionalGeneration has an encoder and a decoder"):
        kvscope.record(path, encoder, shadow="quest")
    dense = LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(ValueError, match="has no module that selects"):
        kvscope.record(path, dense)
    with kvscope.record(path, model, block_size=64):
        pass


def test_passes_that_are_no_steps_are_said_once_and_the_next_prompt_is_recorded(tmp_path, caplog):
    """Assisted decoding and inputs_embeds: tokens stay, the run ends and says why, and what follows is recorded."""
    model, ids, path = model_of("deepseek_v32"), prompts_of(1), str(tmp_path / "run.kvtrace")
    embedded = dict(inputs_embeds=model.get_input_embeddings()(ids).detach(), attention_mask=torch.ones_like(ids))

    def all_three():
        return [
            model.generate(ids, max_new_tokens=8, do_sample=False, prompt_lookup_num_tokens=3),
            model.generate(**embedded, max_new_tokens=4, do_sample=False),
            generate(model, ids, new=4),
        ]

    plain = all_three()
    with caplog.at_level(logging.WARNING, "kvscope"), kvscope.record(path, model) as rec:
        assert all(torch.equal(one, other) for one, other in zip(all_three(), plain))
    assert rec._attached[0].off is None and len(caplog.records) == len(rec._attached[0].notes) == 2
    assert "assisted decoding" in caplog.text and "inputs_embeds" in caplog.text
    runs = kvscope.open(path).columns("runs")
    assert runs["status"][-1] == "finished" and runs["steps"][-1] == 4 and set(runs["status"][:-1]) == {"stopped"}
    check(path)


def test_compiled_passes_give_the_same_tokens_and_are_said_not_to_be_seen(tmp_path, caplog):
    model, ids, path = model_of("deepseek_v32"), prompts_of(1), str(tmp_path / "run.kvtrace")
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        plain = model(input_ids=ids).logits[:, -1].argmax(-1)
        with caplog.at_level(logging.WARNING, "kvscope"), kvscope.record(path, model):
            assert torch.equal(compiled(input_ids=ids).logits[:, -1].argmax(-1), plain)
    assert caplog.text.count("no forward pass of the model was seen") == 1
    assert kvscope.open(path).columns("runs")["run"] == []


def test_an_error_in_the_recorder_never_reaches_the_model(tmp_path, caplog, monkeypatch):
    model, ids = model_of("deepseek_v32"), prompts_of(1)
    plain = generate(model, ids)
    path = str(tmp_path / "run.kvtrace")
    with caplog.at_level(logging.WARNING, "kvscope"), kvscope.record(path, model) as rec:
        monkeypatch.setattr(kvscope.Step, "select", lambda *a, **k: 1 / 0)
        assert torch.equal(generate(model, ids), plain)
        assert "ZeroDivisionError" in rec._attached[0].off
    assert caplog.text.count("recording stopped") == 1
    runs = kvscope.open(path).columns("runs")
    assert runs["status"] == ["failed"] and "ZeroDivisionError" in runs["status_message"][0]
    check(path)


def test_an_unknown_output_is_said_once_and_skipped(tmp_path, caplog):
    model, ids, path = model_of("deepseek_v32"), prompts_of(1), str(tmp_path / "run.kvtrace")

    class OddIndexer(torch.nn.Module):
        layer_idx = 0

        def forward(self, x):
            return x

    def call_odd(module, args):
        model.odd(torch.zeros(1, 2))

    model.odd = OddIndexer()
    with caplog.at_level(logging.WARNING, "kvscope"), kvscope.record(path, model):
        model.model.register_forward_pre_hook(call_odd)
        generate(model, ids, new=4)
    assert caplog.text.count("neither ids nor a mask") == 1
    assert len(sets_of(path)) == 3 * 3


def test_a_step_makes_few_calls(tmp_path, monkeypatch):
    """What a step costs is measured by kvscope.measure_overhead; here is counted what it consists of."""
    model, ids = model_of("deepseek_v32"), prompts_of(1)
    calls, call = collections.Counter(), kvscope.writing.call

    def count(function, *arguments):
        calls[function] += 1
        return call(function, *arguments)

    monkeypatch.setattr(kvscope.writing, "call", count)
    with kvscope.record(tmp_path / "run.kvtrace", model):
        generate(model, ids)
    layers = 3
    assert calls == {"open": 1, "run_begin": 1, "step_begin": NEW, "step_select": layers * (NEW - 1), "step_tokens": NEW,
                     "step_commit": NEW, "counter": NEW, "run_end": 1, "close": 1}  # fmt: skip
