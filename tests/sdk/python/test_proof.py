"""nosa-tiny in transformers, with NOSA written as an attention function, against KVScope's engine: the same blocks in every step."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import kvscope
import pytest
import torch
from kvscope.methods import DEFAULTS, Memory, Method, captured_mass, eviction_heads
from test_recording import check

MODEL = Path(__file__).resolve().parents[3] / "resources/models/nosa-tiny"
PROMPT, STEPS = 2500, 210
TIE = 1e-5


class Scores(Method):
    """A method that keeps the scores of its last choice, for what is a tie."""

    def _best(self, score, worth, tokens, key):
        self.score, self.worth = score, worth
        return super()._best(score, worth, tokens, key)


def engine(path: str, method: str, *settings: str) -> kvscope.Trace:
    """A run of KVScope's engine over the built-in needle prompt."""
    command = [os.environ["KVSCOPE_CLI"], "run", "--model", str(MODEL), "--method", method, "--prompt-needle", str(PROMPT), "--ignore-eos",
               "--max-new-tokens", str(STEPS), "--threads", "1", "--oracle", "--trace", path, "--overwrite"]  # fmt: skip
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, capture_output=True)
    return kvscope.open(path)


class SparseLlama:
    """LlamaForCausalLM in float32 whose decode steps attend to what a method selects, with the eviction head's bias where there is one."""

    def __init__(self, method: Scores, biased: bool):
        from transformers import AttentionInterface, AttentionMaskInterface, LlamaForCausalLM
        from transformers.masking_utils import eager_mask

        AttentionInterface.register("kvscope_proof", self._attend)
        AttentionMaskInterface.register("kvscope_proof", eager_mask)
        self.model = LlamaForCausalLM.from_pretrained(MODEL, dtype=torch.float32, attn_implementation="kvscope_proof").eval()
        self.method, self.biased, self.heads = method, biased, eviction_heads(MODEL)
        self.memories = [Memory() for _ in range(self.model.config.num_hidden_layers)]
        self.chosen = {}  # (layer, KV head) -> ids, of the last step
        self.scores = {}
        self.masses = {}

    def _attend(self, module, query, key, value, attention_mask, scaling, **_):
        layer, size = module.layer_idx, self.method.block_size
        q = query[0].unflatten(0, (key.shape[1], -1))  # [KV heads, queries of each, S, head_dim]
        logits = q @ key[0].transpose(1, 2)[:, None] * scaling
        if self.biased:
            logits = logits + self.heads.scores(layer, value[0])[:, None, None]
        if query.shape[2] > 1:
            logits = logits + attention_mask[0, :, :, : key.shape[2]]
        else:
            choice = self.method.choose(layer, self.memories[layer], q[:, :, 0], key[0], value[0], scale=scaling)
            if choice is not None:
                attended = torch.zeros(key.shape[1], (key.shape[2] + size - 1) // size, dtype=torch.bool).scatter_(1, choice.ids, True)
                attended = attended.repeat_interleave(size, dim=1)[:, : key.shape[2]]
                mass = captured_mass(q[:, :, 0], key[0], choice.ids, size, scale=scaling)
                for head in range(key.shape[1]):
                    self.chosen[layer, head] = choice.ids[head]
                    self.scores[layer, head] = [None if s is None else s[head] for s in (self.method.score, self.method.worth)]
                    self.masses[layer, head] = mass[head].item()
                logits = logits.masked_fill(~attended[:, None, None], -torch.inf)
        out = torch.softmax(logits, dim=-1) @ value[0][:, None]
        return out.flatten(0, 1).transpose(0, 1)[None], None


def is_tie(mine: set[int], theirs: set[int], scores) -> bool:
    """Whether the blocks that differ have, by one of the scores, equal ones but for rounding."""
    for score in scores:
        if score is None:
            continue
        differing = torch.stack([score[block] for block in mine ^ theirs])
        if (differing.max() - differing.min()).abs() <= TIE * max(1.0, float(differing.abs().max())):
            return True
    return False


@pytest.mark.parametrize("method, settings", [("nosa", ()), ("infllmv2", ()), ("quest", ("total_blocks=32", "bias=none"))])
def test_selections_equal_those_of_the_engine(tmp_path, method, settings):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    theirs = engine(str(tmp_path / "engine.kvtrace"), method, *settings)
    used = json.loads(theirs.columns("runs")["params_json"][0])
    params = {key: value for key, value in used.items() if key in DEFAULTS[method]}
    llama = SparseLlama(Scores(method, params, eviction_heads(MODEL)), used["bias"] == "ed-dma")
    columns = theirs.columns("selections")
    keys = list(zip(columns["step"], columns["layer"], columns["kv_head"]))
    expected, masses, apart = dict(zip(keys, columns["blocks"])), dict(zip(keys, columns["mass"])), []
    prompt, tokens = theirs.columns("prompts")["token_id"], theirs.columns("tokens")["token_id"]
    path = str(tmp_path / "transformers.kvtrace")
    equal = ties = same_tokens = 0
    differences = []
    try:
        with kvscope.record(path) as rec, torch.no_grad():
            config = llama.model.config
            with rec.run(method=method, params=params, block_size=llama.method.block_size, block_bytes=1, layers=config.num_hidden_layers,
                         kv_heads=config.num_key_value_heads, prompts=[prompt]) as run:  # fmt: skip
                with run.step("prefill", tokens=PROMPT) as step:
                    out = llama.model(input_ids=torch.tensor([prompt]), use_cache=True)
                    step.tokens(0, PROMPT, tokens[:1])
                for index in range(1, STEPS):
                    same_tokens += int(out.logits[0, -1].argmax()) == tokens[index - 1]
                    with run.step() as step:  # fed with the engine's tokens, so that one tie does not end the comparison
                        fed = torch.tensor([[tokens[index - 1]]])
                        out = llama.model(input_ids=fed, past_key_values=out.past_key_values, use_cache=True)
                        for layer in sorted({layer for layer, _ in llama.chosen}):
                            ids = torch.stack([llama.chosen[layer, head] for head in range(config.num_key_value_heads)])
                            step.select(layer, ids[None], position=[PROMPT + index - 1])
                        step.tokens(0, PROMPT + index, [tokens[index]])
                    for key in [key for key in keys if key[0] == index]:
                        if not llama.biased:  # the engine's mass is that of its attention, bias included
                            apart.append(abs(llama.masses[key[1:]] - masses[key]))
                        mine, other = set(llama.chosen[key[1:]].tolist()), set(expected[key])
                        if mine == other:
                            equal += 1
                        elif is_tie(mine, other, llama.scores[key[1:]]):
                            ties += 1
                        else:
                            differences.append((key, sorted(mine - other), sorted(other - mine)))
    finally:
        torch.set_num_threads(threads)
    print(f"{method}: {equal} selections equal, {ties} ties, {len(differences)} differ; {same_tokens} of {STEPS - 1} tokens equal")
    assert differences == [] and max(apart, default=0) < 1e-4
    assert equal + ties == len(expected) == (STEPS - 1) * len(llama.chosen) and ties <= len(expected) // 100
    recorded = kvscope.open(path).columns("selections")
    written = dict(zip(zip(recorded["step"], recorded["layer"], recorded["kv_head"]), recorded["blocks"]))
    assert sum(written[key] == expected[key] for key in expected) == equal
    check(path)
