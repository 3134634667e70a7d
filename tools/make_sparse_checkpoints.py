#!/usr/bin/env python3
"""Tiny random checkpoints of families that select what they attend to, and what transformers selects and computes.

    python3 -m venv venv && venv/bin/pip install torch "transformers==5.17.*"
    venv/bin/python tools/make_sparse_checkpoints.py                     writes tests/golden/sparse
    venv/bin/python tools/make_sparse_checkpoints.py --random 20 -o DIR  other sizes and seeds, for a wider check

Budgets lie far below the prompt's length, so that nearly every query selects. One folder per case, as
make_family_checkpoints.py writes them (which this uses), with reference.safetensors that holds
    prompt_ids         i32 [P]
    generated_ids      i32 [65]             greedy: generated_ids[s] is the arg-max of logits[s]
    logits             f32 [65, vocab]      of the prompt's last position, then of every decode step
    selected           i32 [64, layers, K]  tokens a decode step attends to, ascending, -1 behind the last
    margin             f32 [64, layers]     score of the worst one taken minus the best left out, over the largest of
                                            the query's scores; infinite where nothing is left out
    prompt_selected    i32 [Q, layers, K]   the same of the prompt's queries 0, 17, 34, ...
    prompt_margin      f32 [Q, layers]
read at the call of topk in the library's indexers; a layer that shares a choice has its leader's. A case is refused, and the next
seed tried, when a float64 run generates other ids or selects other tokens anywhere, or two best logits come closer than
SMALLEST_GAP, or a margin of any query, of the prompt too, is below SMALLEST_MARGIN.
"""

import pathlib

import make_family_checkpoints as families
import torch
from make_family_checkpoints import EXPERTS, LATENT, STEPS, case, rope
from safetensors.torch import load_file, save_file

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/sparse"
SMALLEST_MARGIN = 1e-5
EVERY = 17  # queries of the prompt, of which one is kept

CASES = {
    "deepseek32": case("DeepseekV32", prompt=600, max_position_embeddings=2048, q_lora_rank=24, n_group=2, topk_group=1, routed_scaling_factor=2.5,
                       index_topk=24, index_n_heads=12, index_head_dim=16, **LATENT, **EXPERTS,
                       **rope("yarn", original=256, mscale=1.0, mscale_all_dim=1.0)),
    "glm-dsa-shared": case("GlmMoeDsa", prompt=280, max_position_embeddings=2048, q_lora_rank=24, n_group=1, topk_group=1, num_hidden_layers=4,
                           index_topk=20, index_n_heads=10, index_head_dim=12, attention_bias=True,
                           indexer_types=["full", "shared", "shared", "full"],
                           **LATENT, **{**EXPERTS, "n_routed_experts": 4, "num_experts_per_tok": 2}, **rope("default")),
}


def random_case(rng):
    heads, dim = rng.choice([1, 2, 4, 6]), rng.choice([4, 8, 16])
    groups, each = rng.choice([(1, 7), (2, 3), (4, 4)])
    used = rng.randint(1, groups)
    layers = rng.choice([1, 2, 3])
    kind = rng.choice(["DeepseekV32", "GlmMoeDsa"])
    config = dict(num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=heads,
                  hidden_size=rng.choice([24, 40]), kv_lora_rank=rng.choice([8, 20]),
                  qk_nope_head_dim=rng.choice([6, 16]), qk_rope_head_dim=dim, v_head_dim=rng.choice([5, 16]),
                  q_lora_rank=rng.choice([12, 30]), index_topk=rng.choice([1, 7, 16, 33]),
                  index_n_heads=rng.choice([8, 16, 21]), index_head_dim=dim + rng.choice([0, 4, 10]),
                  n_routed_experts=groups * each, num_experts_per_tok=rng.randint(1, used * each), n_group=groups,
                  topk_group=used, moe_intermediate_size=8, n_shared_experts=rng.choice([1, 2]),
                  first_k_dense_replace=rng.choice([0, 1]), attention_bias=rng.random() < 0.3,
                  routed_scaling_factor=rng.choice([1.0, 2.5]), norm_topk_prob=rng.random() < 0.5)
    if kind == "GlmMoeDsa" and rng.random() < 0.8:
        config["indexer_types"] = ["full"] + rng.choices(["full", "shared"], k=layers - 1)
    result = case(kind, prompt=rng.choice([40, 130, 200, 600]), **config,
                  **rope(rng.choice(["default", "yarn", "linear", "llama3"]), dim=dim))
    result["config"]["max_position_embeddings"] = 1024
    result["dtype"] = rng.choice(["bfloat16", "float32"])
    return result


class Choices:
    """What a model's layers attend to in a forward: `tokens` [layers][queries] ascending lists, `margins` the same
    shape. Taken from the call of topk inside the library's indexers, so that nothing is computed a second time."""

    def __init__(self, model):
        self.indexers = [layer.self_attn.indexer for layer in model.model.layers]
        self.tokens, self.margins = [], []
        for indexer in self.indexers:
            if indexer is not None:
                indexer.register_forward_pre_hook(self.before)
                indexer.register_forward_hook(self.after)

    def before(self, *_):
        own = self.topk = torch.Tensor.topk

        def recorded(scores, k, *args, **more):
            self.scores = scores[0].detach().clone()
            return own(scores, k, *args, **more)

        torch.Tensor.topk = recorded

    def after(self, indexer, inputs, chosen):
        torch.Tensor.topk = self.topk
        queries, keys = self.scores.shape
        lists, margins = [], []
        for query in range(queries):
            visible = keys - queries + query + 1
            lists.append(sorted(int(token) for token in chosen[0, query] if token < visible))
            scores = self.scores[query, :visible].double()
            left = scores.clone()
            left[lists[-1]] = -float("inf")
            largest = max(scores.abs().max().item(), 1e-30)
            margins.append((scores[lists[-1]].min() - left.max()).item() / largest)
        self.tokens.append(lists)
        self.margins.append(margins)

    def take(self):
        """Of the last forward, by layer: a layer that shares has its leader's."""
        tokens, margins, at = [], [], -1
        for indexer in self.indexers:
            at += indexer is not None
            tokens.append(self.tokens[at])
            margins.append(self.margins[at])
        self.tokens, self.margins = [], []
        return tokens, margins


@torch.no_grad()
def decode(model, prompt):
    """Greedy, with the library's cache. @return ids, logits, and (tokens, margins) of the prompt and of each step"""
    choices = Choices(model)
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    ids, logits, cache, taken = [], [out.logits[0, -1]], out.past_key_values, [choices.take()]
    for step in range(STEPS):
        ids.append(int(logits[-1].argmax()))
        out = model(input_ids=torch.tensor([[ids[-1]]]), past_key_values=cache, use_cache=True,
                    position_ids=torch.tensor([[len(prompt) + step]]))
        cache = out.past_key_values
        logits.append(out.logits[0, -1])
        taken.append(choices.take())
    ids.append(int(logits[-1].argmax()))
    return ids, torch.stack(logits), taken


def padded(lists, width):
    return torch.tensor([row + [-1] * (width - len(row)) for row in lists], dtype=torch.int32)


def by_query(taken, queries, width):
    """[queries, layers, width] and [queries, layers] of what one forward chose."""
    tokens, margins = taken
    return (torch.stack([padded([layer[query] for layer in tokens], width) for query in queries]),
            torch.tensor([[layer[query] for layer in margins] for query in queries], dtype=torch.float32))


def write_case(name, spec, seed, root):
    folder = root / name
    model = families.make_model(spec, seed)
    families.save_model(model, folder)
    prompt, _ = families.random_prompt(spec, seed)
    ids, logits, taken = decode(families.fresh(spec, model, folder, False), prompt)
    exact_ids, exact, exactly = decode(families.fresh(spec, model, folder, True), prompt)
    margin = min(value for _, margins in taken for layer in margins for value in layer)
    differs = sum(one != other for (tokens, _), (others, _) in zip(taken, exactly)
                  for layer, otherwise in zip(tokens, others) for one, other in zip(layer, otherwise))
    if (exact_ids != ids or differs or families.smallest_gap(logits) < families.SMALLEST_GAP or margin < SMALLEST_MARGIN
            or len(set(ids)) < families.FEWEST_IDS):
        return None
    dtype = spec.get("dtype", "bfloat16")
    families.save_weights(load_file(folder / "model.safetensors"), folder, getattr(torch, dtype), 1)
    families.write_config(folder, {"dtype": dtype})
    width = spec["config"]["index_topk"]
    steps = [by_query(step, [0], width) for step in taken[1:]]
    prompt_tokens, prompt_margins = by_query(taken[0], range(0, len(prompt), EVERY), width)
    save_file({"prompt_ids": torch.tensor(prompt, dtype=torch.int32),
               "generated_ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.float().contiguous(),
               "selected": torch.cat([tokens for tokens, _ in steps]),
               "margin": torch.cat([margins for _, margins in steps]),
               "prompt_selected": prompt_tokens, "prompt_margin": prompt_margins}, folder / "reference.safetensors")
    return {**families.report_of(name, seed, folder, ids, logits, exact), "margin": margin}


def main():
    families.make_cases(__doc__.splitlines()[0], FOLDER, CASES, random_case, write_case, (200, 6),
                        lambda spec: {"kind": spec["kind"]})


if __name__ == "__main__":
    main()
