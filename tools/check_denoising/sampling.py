"""Candidates, their confidence, and which positions a forward writes."""

import itertools

import numpy as np

from attention import softmax
from judge import top


def distribution(logits, temperature=0.0, top_k=0, top_p=1.0, nucleus_first=False):
    """[n, ids] of the candidates: softmax of logits / temperature, kept to top_k ids and then to top_p of what they
    hold, or in the other order."""
    p = softmax(logits / temperature if temperature > 0 else logits)
    for cut in ((nucleus, best) if nucleus_first else (best, nucleus)):
        p = cut(p, top_k, top_p)
    return p


def best(p, top_k, _):
    if not 0 < top_k < p.shape[-1]:
        return p
    out = np.zeros_like(p)
    for row, kept in zip(p, out):
        ids = sorted(top(row, top_k))
        kept[ids] = row[ids]
    return out / out.sum(-1, keepdims=True)


def nucleus(p, _, top_p):
    """The fewest most probable ids that hold at least top_p."""
    if top_p >= 1:
        return p
    out = np.zeros_like(p)
    for row, kept in zip(p, out):
        held = 0.0
        for i in sorted(range(len(row)), key=lambda i: (-row[i], i)):
            if held >= top_p:
                break
            kept[i] = row[i]
            held += row[i]
    return out / out.sum(-1, keepdims=True)


def entropy(p):
    with np.errstate(divide="ignore", invalid="ignore"):
        return -np.where(p > 0, p * np.log(p), 0.0).sum(-1)


def near(values, bound, allowed):
    return [i for i, v in values.items() if abs(v - bound) <= allowed]


def over(judge, confidence, threshold, least, theirs, strict):
    """All above the threshold where they are at least `least`, else the `least` highest. confidence: by position"""
    allowed = judge.tolerance
    edge = near(confidence, threshold, allowed)[:6]
    sets = []
    for flips in itertools.product(*[(False, True)] * len(edge)):
        flipped = {i for i, f in zip(edge, flips) if f}
        above = {i for i, c in confidence.items() if (c > threshold if strict else c >= threshold) != (i in flipped)}
        sets.append(above if len(above) >= least else None)
    if theirs in sets:
        return judge.one_of("positions above the threshold", [s for s in sets if s is not None], theirs)
    if None not in sets:
        judge.wrong("positions above the threshold", sorted(sets[0]), sorted(theirs))
    return highest(judge, confidence, least, theirs)


def highest(judge, confidence, count, theirs, allowed=None):
    positions = sorted(confidence)
    index = {p: i for i, p in enumerate(positions)}
    if not theirs <= set(positions):
        judge.wrong("positions written", positions, sorted(theirs))
    chosen = judge.best("positions written", [confidence[p] for p in positions], count, {index[p] for p in theirs},
                        judge.tolerance if allowed is None else allowed)
    return {positions[i] for i in chosen}


def least_entropy(judge, entropies, bound, theirs):
    """By ascending entropy while the sums stay below the bound, at least one."""
    order = sorted(entropies, key=lambda i: (entropies[i], i))
    sets, total = [], 0.0
    for n, i in enumerate(order, 1):
        total += entropies[i]
        if n > 1 and total >= bound + judge.tolerance * n:
            break
        sets.append((n, total))
    count = max([n for n, s in sets if n == 1 or s < bound])
    counts = {count} | {n for n, s in sets if abs(s - bound) <= judge.tolerance * n} \
        | {n - 1 for n, s in sets if n > 1 and abs(s - bound) <= judge.tolerance * n}
    if len(theirs) not in counts:
        judge.wrong("positions of least entropy", sorted(order[:count]), sorted(theirs))
    return highest(judge, {i: -e for i, e in entropies.items()}, len(theirs), theirs, judge.tolerance * 4)


def by_factor(judge, confidence, factor, theirs):
    """The best, and those after it while the j-th is at least 1 - factor / (j + 1)."""
    order = sorted(confidence, key=lambda i: (-confidence[i], i))
    counts, count = set(), 1
    for j in range(2, len(order) + 1):
        gap = confidence[order[j - 1]] - (1 - factor / (j + 1))
        if abs(gap) <= judge.tolerance:
            counts.add(j if gap < 0 else j - 1)
            if gap < 0:  # by rounding this one and what follows may be written
                for further in range(j + 1, len(order) + 1):
                    if confidence[order[further - 1]] - (1 - factor / (further + 1)) < -judge.tolerance:
                        break
                    counts.add(further)
        if gap < 0:
            break
        count = j
    if len(theirs) not in counts | {count}:
        judge.wrong("positions by factor", sorted(order[:count]), sorted(theirs))
    return highest(judge, confidence, len(theirs), theirs)


def candidates(judge, logits, allowed_ids, theirs, temperature, drawn):
    """The best allowed id of each row, or the recorded one where it ties or was drawn from `drawn`."""
    ids = []
    for n, row in enumerate(logits):
        token = theirs[n]
        if not allowed_ids[token]:
            judge.wrong("a token that is none", "", token)
        if temperature > 0:
            if drawn[n][token] <= 0:
                judge.wrong("a token that top-k and top-p leave out", "", token)
            p = drawn[n][drawn[n] > 0]
            surprise = -np.log(p)
            mean = float((p * surprise).sum())
            judge.drew(-float(np.log(drawn[n][token])) - mean, float((p * surprise ** 2).sum()) - mean ** 2)
            ids.append(token)
            continue
        chosen = judge.best("token", row, 1, {token}, judge.tolerance * max(1.0, float(np.max(np.abs(
            row[np.isfinite(row)])))))
        ids.append(chosen.pop())
    return ids
