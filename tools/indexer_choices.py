"""What make_sparse_checkpoints.py and make_block_sparse_checkpoints.py share: the choices of a library's indexers, read at
their call of topk while the library decodes, and the reference file that is made of them. Nothing is computed a second time.

What one forward chose is (ids, margins), both [layers][heads][queries]: ascending lists, and the score of the worst one taken
minus the best left out, over the largest of the query's scores; infinite where nothing is left out.
"""

import make_family_checkpoints as families
import torch
from safetensors.torch import load_file, save_file

SMALLEST_MARGIN = 1e-5
EVERY = 17  # queries of the prompt, of which one is kept


def margin_of(scores, chosen):
    """scores: of what a query sees, -inf where it may choose nothing; chosen: their indices."""
    scores = scores.double()
    finite = scores[scores.isfinite()]
    left = scores.clone()
    left[chosen] = -float("inf")
    largest = max(finite.abs().max().item() if len(finite) else 0, 1e-30)
    return (scores[chosen].min() - left.max()).item() / largest


class Choices:
    """Hears what the indexers of a model choose.

    indexers  modules that call topk once in a forward
    seen      seen(scores, chosen) takes the scores given to topk and what the module returned, both of the only sequence, and
              returns [heads][queries] pairs: the indices chosen, ascending, and the scores of what the query sees
    layers    which of the indexers chose for each layer that is listed
    """

    def __init__(self, indexers, seen, layers):
        self.seen, self.layers = seen, layers
        self.ids, self.margins = [], []
        for indexer in indexers:
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
        heads = self.seen(self.scores, chosen[0])
        self.ids.append([[chosen for chosen, _ in queries] for queries in heads])
        self.margins.append([[margin_of(scores, chosen) for chosen, scores in queries] for queries in heads])

    def take(self):
        """Of the last forward."""
        taken = [self.ids[at] for at in self.layers], [self.margins[at] for at in self.layers]
        self.ids, self.margins = [], []
        return taken


@torch.no_grad()
def decode(model, prompt, choices):
    """Greedy, with the library's cache. @return ids, logits, and what the prompt and each step chose"""
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    ids, logits, cache, taken = [], [out.logits[0, -1]], out.past_key_values, [choices.take()]
    for step in range(families.STEPS):
        ids.append(int(logits[-1].argmax()))
        out = model(input_ids=torch.tensor([[ids[-1]]]), past_key_values=cache, use_cache=True,
                    position_ids=torch.tensor([[len(prompt) + step]]))
        cache = out.past_key_values
        logits.append(out.logits[0, -1])
        taken.append(choices.take())
    ids.append(int(logits[-1].argmax()))
    return ids, torch.stack(logits), taken


def by_query(taken, queries, width):
    """[queries, layers, heads, width] and [queries, layers, heads] of what one forward chose."""
    ids, margins = taken
    padded = [[[head[query] + [-1] * (width - len(head[query])) for head in layer] for layer in ids] for query in queries]
    return (torch.tensor(padded, dtype=torch.int32),
            torch.tensor([[[head[query] for head in layer] for layer in margins] for query in queries], dtype=torch.float32))


def write_reference(name, spec, seed, folder, prompt, single, double, width, more=None):
    """Writes the weights as the case wants them and reference.safetensors.

    single, double  what decode returned in float32 and in float64
    width           how many a query chooses at most
    more            a function of reference.safetensors' tensors, which returns those that are written in their place
    @return a report, or None where the case is refused (see the docstrings of the two programs)
    """
    ids, logits, taken = single
    exact_ids, exact, exactly = double
    margin = min(value for _, forward in taken for layer in forward for head in layer for value in head)
    same = all(one[0] == other[0] for one, other in zip(taken, exactly))
    if (exact_ids != ids or not same or families.smallest_gap(logits) < families.SMALLEST_GAP or margin < SMALLEST_MARGIN
            or len(set(ids)) < families.FEWEST_IDS):
        return None
    dtype = spec.get("dtype", "bfloat16")
    families.save_weights(load_file(folder / "model.safetensors"), folder, getattr(torch, dtype), 1)
    families.write_config(folder, {"dtype": dtype})
    steps = [by_query(step, [0], width) for step in taken[1:]]
    prompt_ids, prompt_margins = by_query(taken[0], range(0, len(prompt), EVERY), width)
    tensors = {"prompt_ids": torch.tensor(prompt, dtype=torch.int32),
               "generated_ids": torch.tensor(ids, dtype=torch.int32), "logits": logits.float().contiguous(),
               "selected": torch.cat([chosen for chosen, _ in steps]), "margin": torch.cat([gaps for _, gaps in steps]),
               "prompt_selected": prompt_ids, "prompt_margin": prompt_margins}
    save_file(more(tensors) if more else tensors, folder / "reference.safetensors")
    return {**families.report_of(name, seed, folder, ids, logits, exact), "margin": margin}
