"""Where the learning rate is exactly 0 for long, and where it moves while steps are skipped."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.series import median, runs_of
from forensics.diagnose.signals import Signals
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

LINEAR = 5
"""Rates before a 0 that tell whether they fell to it in equal parts."""


def zero_stretches(signals: Signals, least: int, most: int) -> list[tuple[int, int]]:
    """First and last row of each stretch of at least ``least`` steps at a rate of 0.

    All groups must be at 0, and steps must be taken. Left out is a small rate that reads as 0
    with the decimals it is printed with; of the others the first ``most`` are told.
    """
    zero = signals.present("lr") & (signals.lr == 0)
    for name in signals.table:
        if name.startswith("lr_"):
            zero &= ~signals.present(name) | (signals.column(name) == 0)
    first, last = runs_of(zero)
    if len(first) == 0:
        return []
    taken = np.cumsum(np.append(0, ~signals.skipped))
    long = taken[last + 1] - taken[first] >= least
    pairs = list(zip(first[long].tolist(), last[long].tolist(), strict=True))[:most]
    return [(a, b) for a, b in pairs if not _reads_as_zero(signals, a, b)]


def _reads_as_zero(signals: Signals, first: int, last: int) -> bool:
    """Is 0 what a small rate looks like here, with the few decimals it is printed with?

    So it is where the rate comes down to 0, or up from it, through the last printed decimal; not
    where it came down by the same amount in each row, and the next of them ends at 0.
    """
    rate = signals.lr[: last + 2]
    known = np.flatnonzero(np.isfinite(rate) & (rate > 0))
    if _runs_out(rate[known[known < first]]):
        return False
    if len(known) == 0:
        return _learns(signals.loss[: last + 2])
    smallest, highest = float(rate[known].min()), float(rate[known].max())
    decimals = next((d for d in range(1, 9) if round(smallest, d) == smallest), None)
    if decimals is None:
        return False
    at = int(np.searchsorted(known, first))
    beside = [float(rate[known[i]]) for i in (at - 1, at) if 0 <= i < len(known)]
    if last == len(signals) - 1:
        beside = beside[:1]
    return min(beside) <= 2.5 * 10.0**-decimals and highest >= 3 * min(beside)


def _runs_out(rate: FloatArray) -> bool:
    """Does a rate fall in equal parts, as a linear decay does, of which the last is what is left?

    A rate that only rounds to 0 flattens before: a cosine, or an exponential, whose parts shrink.
    """
    tail = rate[-LINEAR:]
    parts = -np.diff(tail)
    if len(tail) < LINEAR or parts.min() <= 0:
        return False
    usual = median(parts)
    return bool((np.abs(parts - usual) <= 0.1 * usual).all() and tail[-1] <= 1.1 * usual)


def _learns(loss: FloatArray) -> bool:
    """Does the loss fall by more than its noise? Then the rate is not 0, whatever is printed."""
    loss = loss[np.isfinite(loss)]
    if len(loss) < 10:
        return False
    fifth = max(3, len(loss) // 5)
    spread = float(np.subtract(*np.percentile(loss[-fifth:], [75, 25])))
    return median(loss[:fifth]) - median(loss[-fifth:]) > max(spread, 0.05 * abs(median(loss)))


def moving_skips(signals: Signals) -> tuple[IntArray, IntArray]:
    """First and last rows of the runs of skips on which the schedule moved all the same.

    In a sound loop k skipped steps leave the rate as it was k times; here it moved at each. Empty
    where fewer than 2 runs, or fewer than four in five, did so.
    """
    nothing = np.empty(0, dtype=np.int64)
    if not signals.skipped.any() or len(signals) < 8:
        return nothing, nothing
    first, last = runs_of(signals.skipped)
    inside = (first >= 2) & (last < len(signals) - 2)
    first, last = first[inside], last[inside]
    # The schedule moves on both sides of the skips.
    active = _moved(signals, first - 1) & _moved(signals, last + 2)
    moves = _moves_within(signals, first, last + 1)
    wrong = active & (moves == last - first + 2)
    right = active & (moves <= last - first + 1)
    # Counted as they come: what is right later does not take back what was wrong before.
    sure = (np.cumsum(wrong) >= 2) & (np.cumsum(wrong) >= 4 * np.cumsum(right))
    return (first[wrong], last[wrong]) if sure.any() else (nothing, nothing)


def _moved(signals: Signals, rows: IntArray) -> BoolArray:
    """Did the rate move to each of these rows from the one before, one step earlier?"""
    lr, step, before = signals.lr, signals.step, rows - 1
    moved = np.abs(lr[rows] - lr[before]) > 1e-9 * np.abs(lr[before])
    return np.asarray(moved & (step[rows] - step[before] == 1), dtype=bool)


def _moves_within(signals: Signals, first: IntArray, last: IntArray) -> IntArray:
    """How many of the rows from each ``first`` to its ``last`` the rate moved at."""
    lengths = last - first + 1
    begins = np.cumsum(lengths) - lengths
    rows = np.arange(int(lengths.sum())) + np.repeat(first - begins, lengths)
    total = np.cumsum(np.append(0, _moved(signals, rows)))
    return np.asarray(total[begins + lengths] - total[begins], dtype=np.int64)
