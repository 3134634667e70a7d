"""Training batches: natural text cut at random, and synthetic long-range tasks made by worker processes."""
import os

import numpy as np
import torch

from synthetic import TaskMaker


class Synthetic(torch.utils.data.IterableDataset):
    """An endless stream of ([count, length+1] ids, weights) of synthetic sequences.

    data holds tokenizer.json and tokens.npy; the seed and the worker's number fix the stream.
    """

    def __init__(self, data, length, count, answer_weight, seed):
        self.args = (data, length, count, answer_weight, seed)

    def __iter__(self):
        from tokenizers import Tokenizer
        data, length, count, answer_weight, seed = self.args
        info = torch.utils.data.get_worker_info()
        if info is not None:
            torch.set_num_threads(1)
        rng = np.random.default_rng([seed, info.id if info else 0])
        tok = Tokenizer.from_file(os.path.join(data, "tokenizer.json"))
        maker = TaskMaker(np.load(os.path.join(data, "tokens.npy"), mmap_mode="r"),
                          lambda t: tok.encode(t, add_special_tokens=False).ids, 0, answer_weight)
        while True:
            rows = [maker.build(rng, length + 1) for _ in range(count)]
            yield torch.from_numpy(np.stack([r[0] for r in rows])), torch.from_numpy(np.stack([r[1] for r in rows]))


class Batches:
    """next() gives (ids, targets, weights), each [natural + synthetic, length], on the device of `tokens`."""

    def __init__(self, data, tokens, length, natural, synthetic, answer_weight, seed, workers=10):
        self.tokens, self.length, self.natural = tokens, length, natural
        self.gen = torch.Generator(device=tokens.device).manual_seed(seed)
        self.stream = iter(torch.utils.data.DataLoader(
            Synthetic(data, length, synthetic, answer_weight, seed), batch_size=None, num_workers=workers,
            prefetch_factor=6 if workers else None, pin_memory=tokens.is_cuda)) if synthetic else None

    def next(self):
        length, device = self.length, self.tokens.device
        at = torch.randint(0, len(self.tokens) - length - 1, (self.natural, 1), generator=self.gen, device=device)
        ids = self.tokens[at + torch.arange(length + 1, device=device)].long()
        ids[:, 0] = 0
        weight = torch.ones(ids.shape, device=device)
        if self.stream is not None:
            s, w = next(self.stream)
            ids = torch.cat((ids, s.to(device, non_blocking=True).long()))
            weight = torch.cat((weight, w.to(device, non_blocking=True)))
        return ids[:, :-1], ids[:, 1:].contiguous(), weight[:, 1:].contiguous()


def sample_positions(weight, answer_weight, count, generator, first=320):
    """Query positions for the auxiliary losses [B, count]: half at answers (where there are any), half anywhere."""
    where = (weight == answer_weight).float() + 1e-6
    where[:, :first] = 0
    pos = torch.multinomial(where, count // 2, replacement=True, generator=generator)
    other = torch.randint(first, weight.shape[1], (weight.shape[0], count - count // 2), generator=generator,
                          device=weight.device)
    return torch.cat((pos, other), 1)
