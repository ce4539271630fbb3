"""Where a spike may be: values far above the level before them, or above the three before them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from forensics.diagnose.baseline import MIN_PAST, WINDOW, Baseline, above_blocks, levels
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

APART = 8
"""Quiet values that end an episode of spikes."""
SETTLED = 0.5
"""Share of a spike's height (in log space) at which the run counts as back, or not."""
EARLY_FACTOR = 100.0
"""How far one of the first 8 values must exceed all before it: no noise is known there yet."""
FLOOR = 1e-3
"""Least spread in log space, so that rounding in a flat past is no spike."""

Large = Callable[[FloatArray, FloatArray], BoolArray]
"""``(values, levels) → is the value far enough above the level to matter?``, in that log space."""


def candidates(line: Baseline, large: Large, z: float) -> IntArray:
    """Indices of values that are too high for the level before, or for the three before."""
    values = line.values
    high = line.above(z)
    high = high[large(values[high], line.center(high))]
    jumped = _jumped(values, large, z)
    found = np.zeros(len(values), dtype=bool)
    found[high] = True
    found[jumped] = True
    found[:MIN_PAST] = _early(values[: 2 * MIN_PAST])
    return np.flatnonzero(found)


def _jumped(values: FloatArray, large: Large, z: float) -> IntArray:
    """Indices of values far above the median of the three before them.

    How far is far: ``z`` times the spread of such steps in the 128 (at first up to 128) before.
    """
    if len(values) <= MIN_PAST + 3:
        return np.empty(0, dtype=np.int64)
    a, b, c = values[:-3], values[1:-2], values[2:-1]
    local = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
    jump = values[3:] - local
    found = _far(jump, z)
    return found[large(values[found + 3], local[found])] + 3


def _far(jump: FloatArray, z: float) -> IntArray:
    """Indices of jumps that are ``z`` times as large as those before them spread."""
    padded = np.concatenate((np.full(WINDOW, np.nan), jump[: WINDOW - 1]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[MIN_PAST:]
    counts = np.arange(MIN_PAST, MIN_PAST + len(windows))
    head = jump[: MIN_PAST + len(windows)][MIN_PAST:]
    usual = np.maximum(levels(windows, counts)[1], FLOOR)
    found = MIN_PAST + np.flatnonzero(head > z * usual[: len(head)])
    if len(jump) <= WINDOW:
        return found
    blocks = jump[: len(jump) // WINDOW * WINDOW].reshape(-1, WINDOW).astype(np.float32)
    usual = np.maximum(levels(blocks, np.full(len(blocks), WINDOW))[1], FLOOR)
    return np.concatenate((found, above_blocks(jump, WINDOW, WINDOW, z * usual)))


def _early(values: FloatArray) -> BoolArray:
    """Which of the first 8 values tower over all before them and over what follows."""
    count = min(MIN_PAST, len(values))
    found = np.zeros(count, dtype=bool)
    for i in range(3, count):
        above = values[i] - np.max(values[:i])
        after = values[i + 1 : i + 9]
        back = len(after) >= 3 and values[i] - np.median(after) > SETTLED * above
        found[i] = above > np.log(EARLY_FACTOR) and back
    return found


def groups(found: IntArray) -> tuple[IntArray, IntArray]:
    """First and last index of each group of candidates."""
    if len(found) == 0:
        return found, found
    cuts = np.flatnonzero(np.diff(found) > APART)
    return found[np.append(0, cuts + 1)], found[np.append(cuts, len(found) - 1)]


def peaks(values: FloatArray, first: IntArray, last: IntArray) -> IntArray:
    """Index of the highest value of each group."""
    if len(first) == 0:
        return first
    bounds = np.stack((first, last + 1), axis=1).ravel()
    padded = np.append(values, -np.inf)
    highest = np.maximum.reduceat(padded, bounds)[::2]
    inside = np.repeat(np.arange(len(first)), last - first + 1)
    index = np.arange(len(inside)) + np.repeat(
        first - np.append(0, np.cumsum(last - first + 1)[:-1]), last - first + 1
    )
    top = values[index] == highest[inside]
    owners, where = np.unique(inside[top], return_index=True)
    peaks = first.copy()
    peaks[owners] = index[top][where]
    return peaks
