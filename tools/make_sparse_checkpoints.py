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
SMALLEST_GAP, or a margin of any query, of the prompt too, is below SMALLEST_MARGIN (indexer_choices.py).
"""

import pathlib

import indexer_choices
import make_family_checkpoints as families
from make_family_checkpoints import EXPERTS, LATENT, case, rope

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/sparse"

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


def seen(scores, chosen):
    """Of one head: a query sees the tokens up to its own."""
    queries, keys = scores.shape
    before = keys - queries + 1  # tokens that the first query sees
    return [[(sorted(int(token) for token in chosen[query] if token < before + query), scores[query, :before + query])
             for query in range(queries)]]


def decode(model, prompt):
    indexers = [layer.self_attn.indexer for layer in model.model.layers]
    leaders, own = [], -1  # a layer that shares has its leader's choice
    for indexer in indexers:
        own += indexer is not None
        leaders.append(own)
    choices = indexer_choices.Choices([indexer for indexer in indexers if indexer is not None], seen, leaders)
    return indexer_choices.decode(model, prompt, choices)


def without_heads(tensors):
    """The one head has no dimension in the file."""
    return {name: tensor.squeeze(2) if name.endswith(("selected", "margin")) else tensor for name, tensor in tensors.items()}


def write_case(name, spec, seed, root):
    folder = root / name
    model = families.make_model(spec, seed)
    families.save_model(model, folder)
    prompt, _ = families.random_prompt(spec, seed)
    single, double = (decode(families.fresh(spec, model, folder, exact), prompt) for exact in (False, True))
    return indexer_choices.write_reference(name, spec, seed, folder, prompt, single, double, spec["config"]["index_topk"],
                                           without_heads)


def main():
    families.make_cases(__doc__.splitlines()[0], FOLDER, CASES, random_case, write_case, (200, 6),
                        lambda spec: {"kind": spec["kind"]})


if __name__ == "__main__":
    main()
