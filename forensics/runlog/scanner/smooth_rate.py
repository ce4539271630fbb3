"""Steps that the optimizer did not take, as a smoothly falling learning rate tells them.

A cosine, a polynomial or an inverse square root has no constant slope to count by, but its slope
changes slowly: that of each stretch between two records is foretold by the stretches around it. A
skipped step leaves the schedule standing still, so that a stretch of k steps with m skips falls by
only (k - m)/k of what is foretold: ``m = k · (1 - slope / foretold)``. That is told only where m
comes out whole, and where the stretches around it come out as 0: a kink of the schedule, rounded
rates, a schedule of epochs or a change by hand give other numbers, and tell nothing.
"""

from __future__ import annotations

import numpy as np

from forensics.runlog.scanner.rate_digits import spacing_of
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

_FEWEST = 8
"""Stretches of a fall; with fewer any fall is smooth."""
_WHOLE = 0.1
"""Steps by which a count of skips may miss a whole number, and stretches without any miss 0."""
_BLURRED = 0.04
"""Steps that the last digit written may stand for: two such errors stay well below ``_WHOLE``."""
_ROUNDS = 12
"""Passes in which stretches that fall short are put aside, so that they spoil no forecast."""
_MOST_ODD = 0.2
"""Share of stretches that may fall short: a schedule that stands still more often is a stair."""
_BEND = 0.2
"""Relative difference of the slopes on both sides from which a forecast is none: a kink, an end."""
_NEAR = 3
"""Stretches on each side that must be without a doubt."""


def skips_in_fall(at: IntArray, rate: FloatArray) -> tuple[IntArray, BoolArray]:
    """Skips between records of a learning rate that falls smoothly, in one or several falls.

    Args:
        at: steps attempted until each record, ascending, shape (n,).
        rate: learning rate at each, finite, shape (n,).

    Returns:
        Skips since the record before, and where that is known; both of shape (n,).
    """
    skipped, known = np.zeros(len(at), dtype=np.int64), np.zeros(len(at), dtype=bool)
    rises = np.flatnonzero(np.diff(rate) > 0) + 1
    for start, stop in zip([0, *rises], [*rises, len(rate)], strict=True):
        if stop - start > _FEWEST:
            told = _in_one_fall(at[start:stop], rate[start:stop])
            skipped[start + 1 : stop], known[start + 1 : stop] = told
    return skipped, known


def _in_one_fall(at: IntArray, rate: FloatArray) -> tuple[IntArray, BoolArray]:
    """Skips in each stretch of one fall, and where they are known; shape (n - 1,)."""
    length = np.diff(at).astype(float)
    slope = -np.diff(rate) / length
    middle = at[:-1] + length / 2
    sound = slope > 0
    nothing = np.zeros(len(slope), dtype=np.int64), np.zeros(len(slope), dtype=bool)
    for _ in range(_ROUNDS):
        if sound.sum() < max(_FEWEST, (1 - _MOST_ODD) * len(slope)):
            return nothing
        missing, bent = _missing(middle, slope, length, sound)
        short = sound & (missing > 0.5) & _is_peak(missing)
        if not short.any():
            break
        sound &= ~short
    else:
        return nothing
    blurred = spacing_of(rate)[:-1] > _BLURRED * np.median(slope[sound])
    whole = np.rint(missing)
    exact = (
        (np.abs(missing - whole) < _WHOLE) & (whole >= 0) & (whole <= length) & ~(bent | blurred)
    )
    clean = exact & (whole == 0)
    known = exact & (clean | ((whole > 0) & ~sound)) & _amid(clean, sound)
    return np.where(known, whole, 0).astype(np.int64), known


def _missing(
    middle: FloatArray, slope: FloatArray, length: FloatArray, sound: BoolArray
) -> tuple[FloatArray, BoolArray]:
    """Steps that each stretch lacks by the two sound ones on each side; where those disagree."""
    good = np.flatnonzero(sound)
    after = np.searchsorted(good, np.arange(len(slope)), side="right")
    before = np.searchsorted(good, np.arange(len(slope)), side="left")
    edge = (before < 2) | (after > len(good) - 2)
    picks = np.clip(np.stack([before - 2, before - 1, after, after + 1]), 0, len(good) - 1)
    x, y = middle[good[picks]], slope[good[picks]]
    foretold = _through(x, y, middle)
    with np.errstate(divide="ignore", invalid="ignore"):
        missing = length * (1 - slope / foretold)
        bent = edge | (np.abs(y[1] - y[2]) > _BEND * np.minimum(y[1], y[2])) | (foretold <= 0)
    missing[edge | ~np.isfinite(missing)] = 0.0
    return missing, bent


def _through(x: FloatArray, y: FloatArray, at: FloatArray) -> FloatArray:
    """The cubic through four points each, shape (4, n), at one place each, shape (n,)."""
    total = np.zeros_like(at)
    for i in range(4):
        weight = np.ones_like(at)
        for j in range(4):
            if j != i:
                gap = np.where(x[i] == x[j], 1.0, x[i] - x[j])
                weight *= (at - x[j]) / gap
        total += weight * y[i]
    return total


def _is_peak(values: FloatArray) -> BoolArray:
    """Where a value is at least those beside it: its neighbours may be blamed for it."""
    padded = np.concatenate(([-np.inf], values, [-np.inf]))
    return np.asarray((values >= padded[:-2]) & (values >= padded[2:]))


def _amid(clean: BoolArray, sound: BoolArray) -> BoolArray:
    """Where all sound stretches among the nearest on both sides are clean, and some are there."""
    count = len(clean)
    doubt = np.concatenate(([0], np.cumsum(sound & ~clean)))
    fine = np.concatenate(([0], np.cumsum(clean)))
    low = np.maximum(np.arange(count) - _NEAR, 0)
    high = np.minimum(np.arange(count) + _NEAR + 1, count)
    own = (sound & ~clean).astype(int)
    left, right = fine[np.arange(count)] - fine[low], fine[high] - fine[np.arange(count) + 1]
    return np.asarray((doubt[high] - doubt[low] - own == 0) & (left >= 2) & (right >= 2))
