"""The search for the first bad state: pure, without torch and without a file.

Four roles are kept apart: a *range* of candidates (saved states, oldest first), a *search* that
chooses the next one, an *evaluation* that somebody else provides, and a *report* of what was asked
and answered. A search over states is binary because a non-finite state stays non-finite; where the
answers contradict that, the result says so instead of assuming it away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What one saved state was found to be."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """The evaluation of one candidate; ``reason`` says what is bad, or why it cannot be tested."""

    state: State
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One answer of the search, in the order they were had.

    Attributes:
        index: which candidate.
        judgement: what it was found to be.
        loaded: was it loaded for this, or known beforehand?
    """

    index: int
    judgement: Judgement
    loaded: bool


class Ending(StrEnum):
    """How a search ended."""

    FOUND = "found"
    ALL_GOOD = "all-good"
    ALL_BAD = "all-bad"
    NOTHING_TESTABLE = "nothing-testable"


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """What the search found.

    Attributes:
        ending: FOUND when a good state is followed by a bad one.
        last_good: index of the newest state known to be good before the first bad one.
        first_bad: index of the oldest state known to be bad.
        untestable: indices between the two that could not be tested: the change may lie in any.
        contradictions: indices that are good although an older state is bad.
        history: every answer, in order.
    """

    ending: Ending
    last_good: int | None
    first_bad: int | None
    untestable: tuple[int, ...]
    contradictions: tuple[int, ...]
    history: tuple[Probe, ...]

    @property
    def monotone(self) -> bool:
        """True when no state is good after a bad one."""
        return not self.contradictions

    @property
    def loads(self) -> int:
        """How many states were loaded."""
        return sum(probe.loaded for probe in self.history)


def search(
    count: int,
    test: Callable[[int], Judgement],
    *,
    known: Mapping[int, Judgement] | None = None,
    within: tuple[int, int] | None = None,
) -> SearchResult:
    """Find the first bad of ``count`` candidates.

    Both ends are tested first: without a good one before and a bad one after there is nothing
    between which to search. At most ⌈log2 n⌉ + 2 candidates are loaded, and one more for each that
    turns out untestable.

    Args:
        count: number of candidates, oldest first.
        test: loads and judges one; called at most once for each.
        known: judgements had without loading (health files).
        within: first and last index worth testing, inclusive; the step log gives it.
    """
    book = _Book(test, dict(known or {}))
    first, last = within or (0, count - 1)
    left = list(range(max(0, first), min(count - 1, last) + 1))
    oldest = book.first_testable(left)
    newest = book.first_testable(left[::-1])
    if oldest is None or newest is None:
        return book.result(Ending.NOTHING_TESTABLE, None, None)
    if book.is_bad(oldest):
        return book.result(Ending.ALL_BAD, None, oldest)
    if not book.is_bad(newest):
        return book.result(Ending.ALL_GOOD, newest, None)
    good, bad = _halve(book, [i for i in left if oldest <= i <= newest])
    return book.result(Ending.FOUND, good, bad)


def _halve(book: _Book, left: list[int]) -> tuple[int, int]:
    """Halve a range whose first candidate is good and whose last is bad, down to neighbours."""
    while len(left) > 2:
        middle = len(left) // 2
        index = left[middle]
        state = book.ask(index).state
        if state is State.UNTESTABLE:
            left.pop(middle)
        elif state is State.BAD:
            left = left[: middle + 1]
        else:
            left = left[middle:]
    return left[0], left[-1]


class _Book:
    """Who was asked, and what was answered."""

    def __init__(self, test: Callable[[int], Judgement], known: dict[int, Judgement]) -> None:
        self._test = test
        self._answers = dict(known)
        self._history = [
            Probe(index=i, judgement=j, loaded=False) for i, j in sorted(known.items())
        ]

    def ask(self, index: int) -> Judgement:
        """The judgement of one candidate; it is loaded once."""
        if index not in self._answers:
            judgement = self._test(index)
            self._answers[index] = judgement
            self._history.append(Probe(index=index, judgement=judgement, loaded=True))
        return self._answers[index]

    def is_bad(self, index: int) -> bool:
        return self.ask(index).state is State.BAD

    def first_testable(self, order: Sequence[int]) -> int | None:
        """The first candidate of an order that can be tested."""
        testable = (i for i in order if self.ask(i).state is not State.UNTESTABLE)
        return next(testable, None)

    def result(self, ending: Ending, last_good: int | None, first_bad: int | None) -> SearchResult:
        bad = [i for i, j in self._answers.items() if j.state is State.BAD]
        good = [i for i, j in self._answers.items() if j.state is State.GOOD]
        untestable = [i for i, j in self._answers.items() if j.state is State.UNTESTABLE]
        low = -1 if last_good is None else last_good
        high = max(self._answers, default=0) + 1 if first_bad is None else first_bad
        return SearchResult(
            ending=ending,
            last_good=last_good,
            first_bad=first_bad,
            untestable=tuple(sorted(i for i in untestable if low < i < high)),
            contradictions=tuple(sorted(i for i in good if bad and i > min(bad))),
            history=tuple(self._history),
        )
