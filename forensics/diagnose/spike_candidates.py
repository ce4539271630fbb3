"""Where a spike may be: values far above the level before them, or above the three before them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from forensics.diagnose.baseline import MIN_PAST, WINDOW, Baseline, above_blocks, levels
from forensics.diagnose.blocks import blocks, moved
from forensics.diagnose.series import median
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

APART = 8
"""Quiet values that end an episode of spikes."""
SETTLED = 0.5
"""Share of a spike's height (in log space) at which the run counts as back, or not."""
EARLY_FACTOR = 100.0
"""How far one of the first 8 values must exceed all before it: no noise is known there yet."""
_EARLY_RISE = math.log(EARLY_FACTOR)
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
    count = len(values) - 3
    if count <= MIN_PAST:
        return np.empty(0, dtype=np.int64)
    far = np.concatenate((_far_at_first(values, count, z), _far_later(values, count, z)))
    local = _middle(values[far], values[far + 1], values[far + 2])
    return far[large(values[far + 3], local)] + 3


def _jumps(values: FloatArray, at: slice) -> FloatArray:
    """How far values are above the median of the three before; ``at`` is where those begin."""
    three = (values[moved(at, i)] for i in range(3))
    return np.asarray(values[moved(at, 3)] - _middle(*three))


def _middle(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    return np.asarray(np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)))


def _far_at_first(values: FloatArray, count: int, z: float) -> IntArray:
    """Which of the first 128 jumps are ``z`` times as large as those before them spread."""
    jump = _jumps(values, slice(0, min(count, WINDOW)))
    padded = np.concatenate((np.full(WINDOW, np.nan), jump[: WINDOW - 1]))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[MIN_PAST:]
    counts = np.arange(MIN_PAST, MIN_PAST + len(windows))
    usual = np.maximum(levels(np.array(windows), counts)[1], FLOOR)
    return MIN_PAST + np.flatnonzero(jump[MIN_PAST:] > z * usual[: len(jump) - MIN_PAST])


def _far_later(values: FloatArray, count: int, z: float) -> IntArray:
    """The same of the others; each 128 are held against the 128 before them."""
    found, usual = [np.empty(0, dtype=np.int64)], np.empty(0)
    for at in blocks(count):
        jump = _jumps(values, at)
        whole = jump[: len(jump) // WINDOW * WINDOW].reshape(-1, WINDOW).astype(np.float32)
        spread = levels(whole, WINDOW)[1]
        usual = np.concatenate((usual[-1:], np.maximum(spread, FLOOR)))
        first = 0 if at.start else WINDOW
        if len(jump) > first:
            found.append(above_blocks(jump, first, WINDOW, z * usual) + at.start)
    return np.concatenate(found)


def _early(values: FloatArray) -> BoolArray:
    """Which of the first 8 values tower over all before them and over what follows."""
    count = min(MIN_PAST, len(values))
    found = np.zeros(count, dtype=bool)
    numbers = values.tolist()
    for i in range(3, count):
        above = numbers[i] - max(numbers[:i])
        if above > _EARLY_RISE:
            after = values[i + 1 : i + 9]
            found[i] = len(after) >= 3 and numbers[i] - median(after) > SETTLED * above
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
    lengths = last - first + 1
    begins = np.cumsum(lengths) - lengths
    inside = np.repeat(np.arange(len(first)), lengths)
    index = np.arange(len(inside)) + np.repeat(first - begins, lengths)
    highest = np.maximum.reduceat(values[index], begins)
    top = values[index] == highest[inside]
    owners = inside[top]
    new = np.flatnonzero(np.append(True, owners[1:] != owners[:-1]))
    peaks = first.copy()
    peaks[owners[new]] = index[top][new]
    return peaks
