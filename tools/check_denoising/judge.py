"""Whether a decision that KVScope recorded is the computed one, up to the rounding of float32.

Where it is another one and the numbers behind it are too close to tell, the recorded one is taken over, so that the
rest of the run can be compared: `ties` counts these.
"""

import numpy as np


class Wrong(Exception):
    """The recorded run does something else than the specification."""


class Unsure(Exception):
    """A decision that the recording does not show is within rounding: the rest of the sequence cannot be compared."""


class Judge:
    def __init__(self, tolerance):
        self.tolerance, self.ties, self.decisions, self.place = tolerance, 0, 0, ""
        self.luck, self.variance = 0.0, 0.0  # sums over drawn decisions: distance from the mean, and variance

    def wrong(self, what, mine, theirs):
        raise Wrong(f"{self.place}: {what}: expected {short(mine)}, recorded {short(theirs)}")

    def equal(self, what, mine, theirs):
        if mine != theirs:
            self.wrong(what, mine, theirs)

    def close(self, what, mine, theirs, allowed):
        mine, theirs = np.asarray(mine, float), np.asarray(theirs, float)
        if mine.shape != theirs.shape:
            self.wrong(what + " has another shape", mine.shape, theirs.shape)
        off = np.abs(mine - theirs) - allowed
        if mine.size and not np.all(off <= 0):
            at = np.unravel_index(np.argmax(off), mine.shape)
            self.wrong(f"{what} at {tuple(int(i) for i in at)}", float(mine[at]), float(theirs[at]))

    def best(self, what, scores, count, theirs, allowed, eligible=None):
        """The `count` items of highest score, of equal ones the lower item. -> the set to go on with"""
        mine = top(scores, count, eligible)
        self.decisions += 1
        if theirs is None or mine == theirs:
            return mine
        if len(mine) != len(theirs) or (eligible is not None and not theirs <= eligible):
            self.wrong(what, sorted(mine), sorted(theirs))
        border = min(scores[i] for i in mine)
        far = [i for i in mine ^ theirs if abs(scores[i] - border) > allowed]
        if far:
            self.wrong(f"{what} (scores {[float(scores[i]) for i in sorted(far)]} border {float(border)})",
                       sorted(mine), sorted(theirs))
        self.ties += 1
        return theirs

    def one_of(self, what, sets, theirs):
        """The first set is the computed one, the others what it may be where numbers are within rounding."""
        self.decisions += 1
        if theirs in sets:
            self.ties += theirs != sets[0]
            return theirs
        self.wrong(what, sorted(sets[0]), sorted(theirs))

    def drew(self, luck, variance):
        self.luck += luck
        self.variance += variance

    def sure(self, margin, allowed):
        if margin < allowed:
            raise Unsure()


def top(scores, count, eligible=None):
    items = range(len(scores)) if eligible is None else sorted(eligible)
    return set(sorted(items, key=lambda i: (-scores[i], i))[:count])


def border(scores, count, eligible=None):
    """How far the last of the best is above the first of the others."""
    items = sorted((scores[i] for i in (range(len(scores)) if eligible is None else eligible)), reverse=True)
    return items[count - 1] - items[count] if 0 < count < len(items) else np.inf


def short(value):
    text = str(value)
    return text if len(text) < 300 else text[:297] + "..."
