"""Which samples of a batch are to blame: delta debugging over indices, pure, without torch.

After Zeller and Hildebrandt, *Simplifying and Isolating Failure-Inducing Input* (IEEE Transactions
on Software Engineering 28, 2002), with two changes. What is known to be harmless stays in the batch
while the rest is halved, since a batch of one changes what a batch statistic means (a standard
deviation of one sample is NaN by itself). And where both halves go bad, both are searched: two
broken samples are two, not one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

PARTS = 8
"""A batch all of whose parts, this many, go bad one by one is searched no further: it is not the
batch. A larger number tells a batch half of which is broken from one that is not to blame, for more
replays; a look at the single samples of one part does that, too."""

Indices = tuple[int, ...]


class Trial(StrEnum):
    """What a step on a part of its batch did."""

    BAD = "bad"
    GOOD = "good"
    UNTESTABLE = "untestable"


@dataclass(frozen=True, kw_only=True)
class Blame:
    """Which samples are to blame.

    Attributes:
        guilty: ascending; empty where the batch is not to blame or cannot be taken apart.
        exact: every guilty sample was isolated; False where the budget ended the search, and the
            guilty ones are among those named.
        everywhere: every part of the batch goes bad on its own: it is not the batch.
        testable: False where no part of the batch can be run alone.
        trials: how many parts were tried.
    """

    guilty: Indices = ()
    exact: bool = True
    everywhere: bool = False
    testable: bool = True
    trials: int = 0


def blame(count: int, try_part: Callable[[Indices], Trial], *, budget: int) -> Blame:
    """Find the samples without which the whole batch would not go bad.

    One guilty sample of ``n`` takes at most 2⌈log2 n⌉ trials, k of them about k times as many; a
    batch that is not to blame takes ``2 · PARTS``.

    Args:
        count: samples in the batch, which as a whole goes bad.
        try_part: runs the step on these samples alone (ascending, never empty, never all) and
            says whether it goes bad in the same way. Called once for each part.
        budget: trials to make at most.
    """
    search = _Search(try_part, budget)
    if count < 2:
        return Blame()
    whole = tuple(range(count))
    try:
        if all(search.try_part(half) is Trial.UNTESTABLE for half in _halves(whole)):
            return Blame(testable=False, trials=search.trials)
        if search.bad_everywhere(whole):
            return Blame(everywhere=True, trials=search.trials)
        guilty = search.isolate(whole, ())
    except _BudgetSpentError:
        guilty, exact = search.suspects(whole), False
    else:
        exact = True
    if len(guilty) == count:
        guilty = ()
    return Blame(guilty=tuple(sorted(guilty)), exact=exact, trials=search.trials)


class _BudgetSpentError(Exception):
    """No trial is left."""


class _Search:
    """The trials that were made, and what they tell."""

    def __init__(self, try_part: Callable[[Indices], Trial], budget: int) -> None:
        self._try, self._left = try_part, budget
        self._known: dict[Indices, Trial] = {}

    @property
    def trials(self) -> int:
        return len(self._known)

    def try_part(self, part: Indices) -> Trial:
        key = tuple(sorted(part))
        if key not in self._known:
            if self._left <= 0:
                raise _BudgetSpentError
            self._left -= 1
            self._known[key] = self._try(key)
        return self._known[key]

    def goes_bad(self, part: Indices) -> bool:
        return self.try_part(part) is Trial.BAD

    def bad_everywhere(self, whole: Indices) -> bool:
        """Does every part go bad, and every single sample of the smallest one that can be run?"""
        parts = [whole]
        while len(parts) < PARTS and all(len(part) > 1 for part in parts):
            parts = [half for part in parts for half in _halves(part)]
            if not all(map(self.goes_bad, parts)):
                return False
        single = (self.try_part((i,)) for i in min(parts, key=len))
        return all(trial is not Trial.GOOD for trial in single)

    def isolate(self, suspects: Indices, harmless: Indices) -> Indices:
        """The guilty ones among ``suspects``; with ``harmless`` alone the step is good."""
        if len(suspects) == 1:
            return suspects
        left, right = _halves(suspects)
        left_bad, right_bad = self.goes_bad(left + harmless), self.goes_bad(right + harmless)
        if left_bad and right_bad:
            return self.isolate(left, harmless) + self.isolate(right, harmless)
        if left_bad:
            return self.isolate(left, right + harmless)
        if right_bad:
            return self.isolate(right, left + harmless)
        # Only together: what is needed of the one, given the other whole.
        needed = self.isolate(left, right + harmless)
        return needed + self.isolate(right, needed + harmless)

    def suspects(self, whole: Indices) -> Indices:
        """The smallest part that is known to go bad."""
        bad = (part for part, trial in self._known.items() if trial is Trial.BAD)
        return min(bad, key=len, default=whole)


def _halves(indices: Indices) -> tuple[Indices, Indices]:
    middle = (len(indices) + 1) // 2
    return indices[:middle], indices[middle:]
