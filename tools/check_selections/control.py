"""What rounding accounts for where the GPU has chosen by labels: a second sequence whose arithmetic is bf16, made apart
from KVScope, says how far rounding moves every score, and which channels it may put in each other's place."""

from dataclasses import dataclass, field

import numpy as np


class Control:
    """The sequence of a Replay once more, with Bf16Model. It goes on with what was recorded."""

    def __init__(self, model, cache, checker):
        self.model, self.cache, self.checker = model, cache, checker

    def begin(self, token, n):
        self.hidden, self.n = self.model.embed([token]), n

    def append(self, layer):
        self.cache.layers[layer].append(self.model.project(layer, self.hidden, [self.n - 1]))

    def finish(self, layer, recorded):
        attended = self.checker.attend(layer, recorded, self.n)
        self.hidden = self.model.finish(layer, self.hidden, attended[None])


def channel_sets(mine, moved, count):
    """The sets of channels that a head may have: float64's, the control's, and either of them with one channel exchanged
    for another whose importance differs by no more than rounding moves the two.
    mine, moved: importance of the channels in float64 and in the control"""
    near = 2 * np.abs(mine - moved).max()
    sets = []
    for ranks in (mine, moved):
        order = np.argsort(-ranks, kind="stable")
        kept, others = order[:count].tolist(), order[count:].tolist()
        sets.append(sorted(kept))
        sets += [sorted(set(kept) - {a} | {b}) for a in kept for b in others if ranks[a] - ranks[b] < near]
    return [np.array(channels) for channels in dict.fromkeys(map(tuple, sets))]


@dataclass
class Difference:
    """How a recorded choice of one step differs from the choice by one set of channels."""
    units: set  # chosen by one side alone
    own: int = 0  # how many of the units lie closer to their rivals in score than the control moves the two
    others: list = field(default_factory=list)  # (score gap over the sum of both scores, lower unit, higher one)
    share: float = 0.0  # the largest by which the control moves a score of this step, of the score itself
    by_labels: list = field(default_factory=list)  # of every unit: score gap over what the labels' rounding moves the two

    def beyond(self):
        return [f"{low} instead of {high}: {apart:.2g} of their scores apart, where rounding moves no score by more "
                f"than {self.share:.2g}; {labels:.2g} of what the labels' rounding moves the two"
                for apart, low, high, labels in self.others if apart > self.share]

    def widest(self):
        return max((apart / self.share if self.share else np.inf for apart, *_ in self.others), default=0.0)


def difference(pick, moved, recorded):
    """pick: of float64; moved: the same scores in the control."""
    scores, best = pick.scores, sorted(pick.candidates, key=lambda unit: (-pick.scores[unit], unit))
    lost, extra = sorted(set(best[:pick.count]) - recorded), sorted(recorded - set(best[:pick.count]))
    moves = np.abs(moved - scores)
    matter = np.array(best[:2 * pick.count])  # scores far below are of no consequence, however far they move
    result = Difference(set(lost + extra), share=float((moves[matter] / scores[matter]).max()))
    if not lost or not extra:
        return result
    worst, top = min(extra, key=lambda unit: scores[unit]), max(lost, key=lambda unit: scores[unit])
    for high, low in [(unit, worst) for unit in lost] + [(top, unit) for unit in extra]:
        gap = scores[high] - scores[low]
        result.by_labels.append(float(gap / (pick.slack[high] + pick.slack[low])))
        if gap <= moves[high] + moves[low]:
            result.own += 1
        else:
            result.others.append((float(gap / (scores[high] + scores[low])), low, high, result.by_labels[-1]))
    return result


class Head:
    """All choices of one KV head, with every set of channels that it may have. The set is the same at every step."""

    def __init__(self, sets):
        self.sets, self.steps = sets, []  # (step, n, [Difference] in the order of `sets`)

    def add(self, step, n, differences):
        self.steps.append((step, n, differences))

    def settled(self):
        """The set that leaves the fewest differences; float64's where that is one of them."""
        return int(np.argmin([sum(len(d[i].units) for _, _, d in self.steps) for i in range(len(self.sets))]))

    def count(self, counts, report):
        """report(step, n, text)"""
        i = self.settled()
        counts["heads"] += 1
        counts["heads swapped"] += i > 0
        for step, n, differences in self.steps:
            plain, settled = differences[0], differences[i]
            beyond, by_channels = settled.beyond(), len(plain.units - settled.units)
            counts["wrong" if beyond else "channels" if by_channels else "rounding" if settled.units else "equal"] += 1
            counts["by channels"] += by_channels
            counts["by own"] += settled.own
            counts["by step"] += len(settled.others) - len(beyond)
            counts["beyond"] += len(beyond)
            counts["widest"] = max(counts["widest"], settled.widest())
            counts["beyond labels"] += sum(gap > 1 for gap in settled.by_labels)
            counts["widest by labels"] = max([counts["widest by labels"], *settled.by_labels])
            if beyond:
                report(step, n, "; ".join(beyond[:3]))


def summary(counts):
    share = 1 - counts["units apart"] / counts["units"]
    apart = sum(counts[name] for name in ("by channels", "by own", "by step", "beyond"))
    return (f"{share:.4%} of {counts['units']} tokens are the same; of {apart} that one side alone chose\n"
            f"        {counts['by channels']} by channels that nearly tie, in {counts['heads swapped']} of "
            f"{counts['heads']} heads\n"
            f"        {counts['by own']} no further apart in score than bf16 moves those two tokens\n"
            f"        {counts['by step']} no further than it moves some token of the step\n"
            f"        {counts['beyond']} further apart; the widest by {counts['widest']:.2g} of that\n"
            f"        {counts['beyond labels']} with those channels further apart than the labels' own rounding moves "
            f"the two, the widest by {counts['widest by labels']:.2g} of it")
