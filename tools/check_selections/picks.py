"""What a method must have chosen, and the comparison with what was recorded."""

from dataclasses import dataclass, field

import numpy as np


@dataclass
class Pick:
    """The `count` best of `candidates` by score; equal scores: the lower unit first."""
    scores: np.ndarray  # of every unit
    candidates: set
    count: int
    origin: str = ""  # "": any
    unsure: set = field(default_factory=set)  # units whose scores float32 may round to something else
    slack: np.ndarray = None  # of every unit: by how much its score moves when its label is rounded the other way
    gaps: list = field(default_factory=list)  # of units that differ, after compare(): (unit, score gap, slack of the two)

    def measure(self, best, mine):
        """How far apart in score the units are that only one side chose: each beside the worst (or best) of the other
        side's that took its place."""
        lost, extra = sorted(best - mine), sorted(mine - best)
        if self.slack is None or not lost or not extra:
            return
        rival = {**{u: min(extra, key=lambda e: self.scores[e]) for u in lost},
                 **{u: max(lost, key=lambda l: self.scores[l]) for u in extra}}
        for unit, other in rival.items():
            gap = abs(float(self.scores[unit] - self.scores[other]))
            self.gaps.append((unit, gap, float(self.slack[unit] + self.slack[other])))


@dataclass
class Choice:
    """Forced units, then picks in order, each among what the ones before it left."""
    picks: list
    forced: set = None

    def best(self):
        chosen = set(self.forced or ())
        for pick in self.picks:
            left = sorted(pick.candidates - chosen, key=lambda unit: (-clean(pick.scores[unit]), unit))
            chosen |= set(left[:pick.count])
        return chosen


@dataclass
class Through:
    """Tokens are chosen; the blocks that hold them are recorded."""
    scores: dict  # token -> score
    best: np.ndarray
    block_size: int
    tie: bool  # the blocks that tokens are chosen from are a matter of rounding

    def close(self, tolerance):
        """Whether a token next to the best could be among them by rounding."""
        limit = min(self.scores[t] for t in self.best)
        near = {t for t, s in self.scores.items() if s <= limit and t not in self.best}
        return any(limit - self.scores[t] <= tolerance * max(self.scores.values()) for t in near)


@dataclass
class Exactly:
    """Units that follow from sets of which only the union is recorded; `maybe` differ by rounding."""
    units: set
    maybe: set


def clean(score):
    return -np.inf if np.isnan(score) else score


def compare(choice, recorded, tolerance):
    """recorded: {unit: origin}. -> "equal", "rounding" or a sentence with the scores."""
    if isinstance(choice, Through):
        tie = choice.tie
        limit = min(choice.scores[t] for t in choice.best)
        slack = tolerance * max(choice.scores.values())
        choice = Exactly({int(t) // choice.block_size for t in choice.best},
                         {t // choice.block_size for t, s in choice.scores.items() if abs(s - limit) <= slack})
        if tie and set(recorded) != choice.units:
            return "rounding"
    if isinstance(choice, Exactly):
        wrong = set(recorded) ^ choice.units
        return "equal" if not wrong else "rounding" if wrong <= choice.maybe else \
            f"without {sorted(choice.units - set(recorded))[:8]}, with {sorted(set(recorded) - choice.units)[:8]}"
    taken = set(choice.forced or ())
    if not taken <= set(recorded):
        return f"forced units {sorted(taken - set(recorded))} are missing"
    verdict = "equal"
    rest = set(recorded) - taken
    for pick in choice.picks:
        eligible = pick.candidates - taken
        mine = {u for u in rest if not pick.origin or recorded[u] == pick.origin}
        if not mine <= eligible:
            return f"{pick.origin} units {sorted(mine - eligible)[:8]} are no candidates"
        want = min(pick.count, len(eligible))
        if len(mine) != want:
            return f"{len(mine)} {pick.origin} units, not {want}"
        best = set(sorted(eligible, key=lambda unit: (-clean(pick.scores[unit]), unit))[:want])
        if best != mine:
            pick.measure(best, mine)
            lost, extra = sorted(best - mine), sorted(mine - best)
            worst = max(clean(pick.scores[u]) for u in lost) - min(clean(pick.scores[u]) for u in extra)
            finite = pick.scores[np.isfinite(pick.scores)]
            if not set(lost + extra) & pick.unsure and not worst <= tolerance * np.abs(finite).max():
                return (f"{pick.origin} {extra[:6]} instead of {lost[:6]}: scores "
                        f"{[float(pick.scores[u]) for u in extra[:4]]} < {[float(pick.scores[u]) for u in lost[:4]]}, "
                        f"apart by {worst:.3g}")
            verdict = "rounding"
        taken |= mine
        rest -= mine
    return f"{sorted(rest)[:8]} belong to no pick" if rest else verdict
