"""Where the gradient norm grows exponentially: windows of many lengths, then episodes.

A smooth blow-up of thirty steps and one that takes a tenth of a run look alike in log space: block
medians that rise steadily over four blocks. So the same test runs with blocks of 5, 10, 30, 100 …
values. Blocks are aligned at the start, so that appending rows changes nothing that was found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from forensics.diagnose.finite import KeptRows
from forensics.diagnose.schedule import dated
from forensics.diagnose.series import (
    block_medians,
    episodes,
    median,
    medians_of_five,
    row_medians,
    sigma,
)
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import spike_near
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray

GRAIN = 5
"""Values in the smallest block; all larger blocks are medians of these medians."""
BLOCKS = 4
"""Blocks a window has: three rises in a row."""
EVEN = 0.08
"""Least share of a window's rise that each of its three steps must have (a step has one)."""
GROWTH = (10.0, 30.0, 8.0)
"""Least growth over 300 rows, over any other window, and least t, that the rules start from."""
STEP = 0.1
"""Least rise from block to block that still belongs to a growth."""
MOST = 12
"""Episodes told at each length of blocks."""
_POINTS = 64
_TWELFTHS, _RISING, _EIGHTFOLD = 12, 0.8, 8.0
"""Blocks of a whole run, Kendall's tau of their medians and the growth that spikes do not make."""


@dataclass(frozen=True)
class Growth:
    """One episode of exponential growth; rows of the table.

    Attributes:
        first: where it sets in.
        top: where the norm is highest.
        last: last row: of the table, where the norm never came back.
        level: log of the norm before.
        rise: how far it grew by then, natural log.
        slope: natural log a row, over the middle of the rise.
        returned: it came back below half of its rise.
    """

    first: int
    top: int
    last: int
    level: float
    rise: float
    slope: float
    returned: bool


def find_growth(signals: Signals, factor: float, short: float, t: float) -> tuple[Growth, ...]:
    """Episodes of growth, in order.

    Args:
        signals: the run.
        factor: least growth over 300 rows.
        short: least growth over a window of another length, where chance has more to offer.
        t: least t statistic of the trend.
    """
    rows, values = signals.log_norm.rows, signals.log_norm.values
    grains = medians_of_five(values)
    taken = np.zeros(len(grains), dtype=bool)
    found: list[Growth] = []
    for size, blocks in _levels(grains):
        least = np.log(factor if size * GRAIN == 100 else short)
        for a, b in _stretches(_windows(grains, blocks, size, least, t), size):
            if taken[a:b].any():  # part of a growth that shorter blocks have seen
                continue
            growth, end = _episode(rows, values, grains, _foot(blocks, a, size), b - 1)
            taken[a:end] = True
            first = dated(signals, growth.first, spike_near(signals, growth.first))
            first = min(first, growth.top)
            found.append(replace(growth, first=first))
    return tuple(sorted(found, key=lambda growth: growth.first))


def grows_all_along(signals: Signals) -> tuple[float, float] | None:
    """The norm of the first and of the last twelfth, where it grows eightfold and nearly always.

    So grow gradients that no ``zero_grad()`` clears, and those of a learning rate that is too high.
    """
    values = signals.log_norm.values
    if len(values) < GRAIN * _TWELFTHS:
        return None
    blocks = block_medians(values, _TWELFTHS)
    first, second = np.triu_indices(len(blocks), 1)
    rising = float(np.sign(blocks[second] - blocks[first]).mean())
    if rising < _RISING or blocks[-1] - blocks[0] < np.log(_EIGHTFOLD):
        return None
    return float(np.exp(blocks[0])), float(np.exp(blocks[-1]))


def _stretches(windows: IntArray, size: int) -> list[tuple[int, int]]:
    """First grain, and the one after the last, of each stretch of overlapping windows."""
    length = BLOCKS * size
    return [(a, b + length) for a, b in episodes(windows, length)[:MOST]]


def _foot(blocks: FloatArray, grain: int, size: int) -> int:
    """The grain where the rise begins that is seen to be under way at ``grain``.

    Back in whole blocks as long as each is lower than the next by more than a little.
    """
    block = grain // size
    while block > 0 and blocks[block] - blocks[block - 1] > STEP:
        block -= 1
    return block * size


def _levels(grains: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Blocks of 5, 10, 20, 30, 60, 100, 180 … values: their size in grains and their medians.

    Medians of medians, in ascending order of size, as long as four blocks fit.
    """
    pairs = _means_of_two(grains)
    fours = _means_of_two(pairs)
    yield from ((1, grains), (2, pairs), (4, fours), (6, _medians_of_three(pairs)))
    one, two = _medians_of_three(fours), row_medians(_whole(pairs, 10))
    size = 12
    while len(one) >= BLOCKS:
        yield size, one
        yield size // 3 * 5, two
        size, one, two = 3 * size, _medians_of_three(one), _medians_of_three(two)


def _whole(values: FloatArray, size: int) -> FloatArray:
    """The whole blocks of ``size`` values, shape (blocks, size)."""
    return values[: len(values) // size * size].reshape(-1, size)


def _means_of_two(values: FloatArray) -> FloatArray:
    a, b = _whole(values, 2).T
    return np.asarray((a + b) / 2)


def _medians_of_three(values: FloatArray) -> FloatArray:
    a, b, c = _whole(values, 3).T
    return np.asarray(np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c)))


def _windows(grains: FloatArray, blocks: FloatArray, size: int, least: float, t: float) -> IntArray:
    """First grain of each window of four blocks that rises steadily, far and significantly."""
    if len(blocks) < BLOCKS:
        return np.empty(0, dtype=np.int64)
    total = blocks[BLOCKS - 1 :] - blocks[: 1 - BLOCKS]
    steps = np.diff(blocks)
    weakest = np.minimum(np.minimum(steps[:-2], steps[1:-1]), steps[2:])
    found = np.flatnonzero((total > least) & (weakest > EVEN * total)) * size
    if size > 1 and len(found):
        spacing = max(1, BLOCKS * size // _POINTS)
        points = grains[found[:, None] + np.arange(0, BLOCKS * size, spacing)]
        found = found[_t_statistic(points) > t]
    return found


def _t_statistic(points: FloatArray) -> FloatArray:
    """The t statistic of the slope of each row of points (ordinary least squares)."""
    count = points.shape[1]
    at = np.arange(count) - (count - 1) / 2
    centred = points - points.mean(axis=1, keepdims=True)
    r = centred @ at / np.sqrt((at @ at) * np.maximum((centred**2).sum(axis=1), 1e-300))
    return np.asarray(r * np.sqrt((count - 2) / np.maximum(1 - r * r, 1e-12)))


def _episode(
    rows: KeptRows, values: FloatArray, grains: FloatArray, a: int, b: int
) -> tuple[Growth, int]:
    """The growth that the grains ``a`` … ``b`` belong to, and the grain after its last."""
    past = grains[max(0, a - max(4, b - a + 1)) : a]
    level = median(past) if len(past) >= 4 else float(np.min(grains[a : a + BLOCKS]))
    half = (level + float(np.max(grains[a : b + 1]))) / 2
    back = np.flatnonzero(grains[b + 1 :] < half)
    end = b + 1 + int(back[0]) if len(back) else len(grains)
    returned = bool(len(back))
    top = a + int(np.argmax(grains[a:end]))
    rise = float(grains[top]) - level
    noise = sigma(np.diff(values[max(0, (a - 40) * GRAIN) : (a + 1) * GRAIN])) / np.sqrt(2)
    start, slope = _onset(grains[a : top + 1], level, rise, float(noise) / 2)
    tail = values[top * GRAIN : end * GRAIN if returned else len(values)]
    peak = top * GRAIN + int(np.argmax(tail))
    first = min(max(0, round((a + start) * GRAIN)), peak)
    if len(past) >= 4:  # the first value that is above the noise there
        first += int(np.argmax(values[first : peak + 1] > level + noise))
    last = rows[min(end * GRAIN, len(rows)) - 1] if returned else rows[-1]
    highest = float(values[peak]) - level
    where = (int(rows[first]), int(rows[peak]), int(last))
    return Growth(*where, level, highest, slope, returned), end


def _onset(path: FloatArray, level: float, rise: float, noise: float) -> tuple[float, float]:
    """Where the rise sets in (in grains from the path's start), and its slope a value.

    The line through its middle, from 20 to 60 % of the height, is followed down to the level;
    but the path was not yet above the noise there at most since it last touched the level.
    """

    def last_below(share: float) -> int:
        below = np.flatnonzero(path <= level + share * rise)
        return int(below[-1]) if len(below) else 0

    low, high = last_below(0.2), last_below(0.6)
    slope = 0.4 * rise / max(high - low, 1)
    start = low + 0.5 - (0.2 * rise) / slope
    quiet = np.flatnonzero(path <= level + 2 * noise)
    floor = int(quiet[-1]) if len(quiet) else 0
    return max(float(start), float(min(floor, low))), slope / GRAIN


def is_harmful(signals: Signals, growth: Growth) -> bool:
    """Did the loss rise while the norm grew, or is nothing finite left after it?"""
    after = slice(growth.top + 1, growth.top + 21)
    bad = signals.loss_bad[after] | signals.norm_bad[after]
    if len(bad) and bad.mean() >= 0.5:
        return True
    before = signals.loss[max(0, growth.first - 50) : growth.first + 5]
    at_top = median(signals.loss[max(growth.first, growth.top - 9) : growth.top + 10])
    noise = sigma(np.diff(before[np.isfinite(before)])) if len(before) > 8 else 0.0
    usual = median(before)
    return bool(at_top - usual > max(0.02 * abs(usual), 3 * np.nan_to_num(noise)))
