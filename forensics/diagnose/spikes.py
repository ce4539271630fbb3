"""The spike detector that the loss and the gradient norm share.

It works in log space on the finite values alone, against two measures of what was normal: the
level of the past 128 values, and the median of the last three (so that a fast decay at the start
hides nothing). A level shift is one episode, since both measures adapt. It looks backwards only,
but for what became of a spike in the 200 values after it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from forensics.diagnose.baseline import MIN_PAST, Baseline, baseline
from forensics.diagnose.finite import FiniteSeries, KeptRows
from forensics.diagnose.series import MAD_TO_SIGMA, row_medians
from forensics.diagnose.spike_candidates import FLOOR, SETTLED, Large, candidates, groups, peaks
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

AFTERMATH = 200
"""Values after a spike that tell whether it recovered: the second half of them is compared."""
NEAR = 8
"""Values that make the level just before a spike."""
LOCAL = 33
"""Values before and after a spike whose differences tell the noise there."""
FLAT_TOP = 0.65
"""Share of the height that the first 20 values of a level shift keep; a spike falls faster."""
OVERSHOOT = 0.15
"""Share of the height that the peak of a level shift may stand above the new level, besides 4
standard deviations of noise; a spike stands higher."""
TAIL = 0.45
"""Share of the height at which a tail is counted: below it Gaussian noise reaches too."""
CONTEXT = 4000
"""Values before a crowd of spikes that show the tail of the noise."""
LEFT = 0.1
"""Height in log space (a tenth of the level before) up to which a value is back at that level,
besides 3 standard deviations of noise; half of a height of three decades is no recovery."""
SHORT = 2.0
"""Times the level before at which the level after a spike is no recovery, however high it was."""
GROWTH, LEAST_GROWTH = 10, 6
"""Values from a rise on that tell a jump from growth that goes on, and the fewest steps of them."""
EVEN = 4.0
"""Times the median rise that one value may rise by in growth that goes on."""
_SAMPLES = 25


@dataclass(frozen=True, eq=False)
class Spikes:
    """Spikes in order; arrays of shape (spikes,), levels and heights in the detector's space.

    Attributes:
        line: the finite values that the detector saw, shape (F,), and their baseline.
        first: index (into ``rows``) of the first value of each spike.
        last: index of its last value.
        peak: index of its highest value.
        before: level just before.
        height: peak above that level.
        after: level 100 to 200 values after the peak; NaN where the log ends too soon.
        flat: the first 20 values keep the height: a level shift, if it stays.
        lost: nearly every row after the spike is non-finite.
    """

    line: Baseline
    first: IntArray
    last: IntArray
    peak: IntArray
    before: FloatArray
    height: FloatArray
    after: FloatArray
    flat: BoolArray
    lost: BoolArray

    def __len__(self) -> int:
        return len(self.first)

    @property
    def rows(self) -> KeptRows:
        """Rows of the table of the finite values, F of them."""
        return self.line.rows

    @property
    def values(self) -> FloatArray:
        """The finite values, shape (F,)."""
        return self.line.values

    @cached_property
    def stays(self) -> BoolArray:
        """The level after is still more than half the height up, or nothing finite is left.

        Held against the level of 128 values where that is higher: 8 can be low by chance.
        """
        level = np.fmax(self.before, self.line.center(self.first))
        return (self.after - level > SETTLED * (self.values[self.peak] - level)) | self.lost

    @cached_property
    def is_shift(self) -> BoolArray:
        """Stays, without a peak above the new level."""
        return self.stays & self.flat & ~self.lost

    @cached_property
    def unknown(self) -> BoolArray:
        """The log ends before anything can be said about recovery."""
        return np.isnan(self.after) & ~self.lost

    def after_window(self, spike: int) -> str:
        """When ``after`` was measured: ``100 to 200 rows later``; less where the log ends."""
        peak = int(self.peak[spike])
        left = min(len(self.values) - peak - 1, AFTERMATH)
        return f"{min(AFTERMATH // 2, left // 2):,} to {left:,} rows later"

    def rows_to_recover(self, spike: int) -> int | None:
        """Rows from the peak until the value is back, or None within the next 400 values."""
        peak = int(self.peak[spike])
        noise = float(_steps(_around(self.values, self.first[spike : spike + 1] - LOCAL, LOCAL))[0])
        left = min(SETTLED * float(self.height[spike]), max(LEFT, 3 * noise))
        back = max(float(self.before[spike]), float(self.line.center(self.first)[spike])) + left
        below = np.flatnonzero(self.values[peak + 1 : peak + 401] <= back)
        return int(self.rows[peak + 1 + below[0]] - self.rows[peak]) if len(below) else None

    def falls_short(self, spike: int, back: Callable[[FloatArray], FloatArray]) -> bool:
        """Is the level after, though far below the peak, still far above the one before?

        Args:
            spike: which one.
            back: from the space of the values to the series' own.
        """
        near = _around(self.values, self.first[spike : spike + 1] - LOCAL, LOCAL)
        level = max(float(self.before[spike]), float(row_medians(near)[0]))
        before, after = (float(value) for value in back(np.array([level, self.after[spike]])))
        above = self.after[spike] - level > 2 * float(_steps(near)[0])
        return bool(above and self.before[spike] > 0 and after > SHORT * before)

    def crowded(self, many: int, window: int) -> BoolArray:
        """Which spikes lie in some window of ``window`` rows that holds at least ``many``."""
        starts = self.rows[self.first]
        inside = np.zeros(len(starts), dtype=bool)
        if len(starts) >= many:
            dense = np.flatnonzero(starts[many - 1 :] - starts[: len(starts) - many + 1] < window)
            counts = np.zeros(len(starts) + 1, dtype=np.int64)
            np.add.at(counts, dense, 1)
            np.add.at(counts, dense + many, -1)
            inside = np.cumsum(counts)[:-1] > 0
        return inside

    def stand_apart(self, start: int, end: int) -> bool:
        """Do spikes ``start`` … ``end`` tower over the values up to them, or are they a tail?

        In a heavy tail (Student's t with 2 or 3 degrees of freedom) 5 to 11 times as many values
        reach 0.45 of the height; apart from real spikes hardly any do. The 4,000 values before the
        spikes count too: by chance alone some 500 values have many spikes and little between.
        """
        inside = slice(max(0, int(self.first[start]) - CONTEXT), int(self.last[end]) + 1)
        part = TAIL * float(np.min(self.height[start : end + 1]))
        level = self.line.center(np.arange(inside.start, inside.stop))
        tall = (self.values[inside] - level > part) & ~self.member[inside]
        return bool(tall.sum() <= 0.2 * (end - start + 1))

    @cached_property
    def member(self) -> BoolArray:
        """Which values lie in a spike, shape (F,)."""
        edges = np.zeros(len(self.values) + 1, dtype=np.int64)
        np.add.at(edges, self.first, 1)
        np.add.at(edges, self.last + 1, -1)
        return np.asarray(np.cumsum(edges)[:-1] > 0, dtype=bool)


def find_spikes(series: FiniteSeries, bad: BoolArray, large: Large, z: float) -> Spikes:
    """All spikes of a series.

    Args:
        series: what there is to judge, in log space.
        bad: shape (rows,): loss or norm was written as NaN or Inf.
        large: which rises are large enough to matter.
        z: robust standard deviations that make a spike.
    """
    line = baseline(series, FLOOR)
    found = candidates(line, large, z)
    if len(found) == 0:  # as in most runs: what follows takes as long as all until here
        return _no_spikes(line)
    first, last = groups(found)
    peak = peaks(line.values, first, last)
    near = row_medians(_around(line.values, first - NEAR, NEAR))
    level = np.fmin(line.center(first), near)
    kept = _abrupt(line.values, first, level, near) & large(line.values[peak], level)
    kept &= ~_geometric(line.values, first)
    first, last, peak, level = first[kept], last[kept], peak[kept], level[kept]
    height = line.values[peak] - level
    after, flat = _aftermath(line, first, peak, level, height)
    recovered = ~(after - level > SETTLED * height)
    kept = height > z * _noise(line.values, first, last, recovered)
    return Spikes(
        line=line,
        first=first[kept],
        last=last[kept],
        peak=peak[kept],
        before=level[kept],
        height=height[kept],
        after=after[kept],
        flat=flat[kept],
        lost=_lost(bad, line.rows[peak[kept]]),
    )


def _no_spikes(line: Baseline) -> Spikes:
    """A series without any."""
    index, number, flag = np.empty(0, np.int64), np.empty(0), np.empty(0, np.bool_)
    return Spikes(
        line=line,
        first=index,
        last=index,
        peak=index,
        before=number,
        height=number,
        after=number,
        flat=flag,
        lost=flag,
    )


def _noise(values: FloatArray, first: IntArray, last: IntArray, recovered: BoolArray) -> FloatArray:
    """Standard deviation from value to value just before each spike, and after one that recovered.

    Noise grows as a loss falls from its start, and the baseline is up to 190 values old: what goes
    on as before after a spike was none. Where the level stays up, what follows is no yardstick.
    """
    before = _steps(_around(values, first - LOCAL, LOCAL))
    after = _steps(_around(values, last + 1, LOCAL))
    return np.fmax(np.fmax(before, np.where(recovered, after, 0.0)), 0.0)


def _steps(windows: FloatArray) -> FloatArray:
    """Robust standard deviation of each window's values, from their differences; 0 for under 8."""
    steps = np.abs(np.diff(windows, axis=1))
    enough = np.isfinite(steps).sum(axis=1) >= MIN_PAST
    return np.where(enough, MAD_TO_SIGMA * row_medians(steps) / np.sqrt(2), 0.0)


def _around(values: FloatArray, start: IntArray, count: int) -> FloatArray:
    """The ``count`` values from each start on; NaN outside the series."""
    index = start[:, None] + np.arange(count)
    inside = (index >= 0) & (index < len(values))
    if len(values) == 0:
        return np.full(index.shape, np.nan)
    return np.where(inside, values[np.clip(index, 0, len(values) - 1)], np.nan)


def _abrupt(values: FloatArray, first: IntArray, level: FloatArray, near: FloatArray) -> BoolArray:
    """Did it rise within about 16 values? Slower growth is an explosion or a divergence."""
    earlier = row_medians(_around(values, first - 3 * NEAR, 2 * NEAR))
    earlier = np.minimum(earlier, near)  # in a decay the values before are the lower ones
    index = np.minimum(first[:, None] + np.arange(NEAR), len(values) - 1)
    top = values[index].max(axis=1, initial=-np.inf) if len(first) else level
    return np.isnan(earlier) | (top - earlier >= SETTLED * (top - level))


def _geometric(values: FloatArray, first: IntArray) -> BoolArray:
    """Does it go on growing by about the same factor a value from there on?"""
    steps = np.diff(_around(values, first - 1, GROWTH), axis=1)
    known = np.isfinite(steps).sum(axis=1) >= LEAST_GROWTH
    rising = ~(steps <= 0).any(axis=1)
    even = np.fmax.reduce(steps, axis=1) <= EVEN * row_medians(steps)
    return np.asarray(known & rising & even, dtype=bool)


def _aftermath(
    line: Baseline, first: IntArray, peak: IntArray, level: FloatArray, height: FloatArray
) -> tuple[FloatArray, BoolArray]:
    """The level after each spike, and whether its first 20 values stay up."""
    count = len(line.values)
    end = np.minimum(count, peak + 1 + AFTERMATH)
    left = end - peak - 1
    start = peak + 1 + np.minimum(AFTERMATH // 2, left // 2)
    share = np.arange(_SAMPLES) / _SAMPLES
    index = (start[:, None] + share * (end - start)[:, None]).astype(np.int64)
    index = np.minimum(index, max(count - 1, 0))
    close = line.rows[index] - line.rows[peak][:, None] <= 2 * AFTERMATH
    values = np.where(close & (left >= MIN_PAST)[:, None], line.values[index], np.nan)
    after = row_medians(values)
    top = np.minimum(first[:, None] + np.arange(20), max(count - 1, 0))
    early = row_medians(line.values[top])
    flat = (early - level > FLAT_TOP * height) & (
        line.values[peak] - after <= OVERSHOOT * height + 4 * np.nan_to_num(line.spread(first))
    )
    return after, flat


def _lost(bad: BoolArray, peak_rows: IntArray) -> BoolArray:
    """Is nearly every one of the next 100 rows non-finite?"""
    bad_rows = np.flatnonzero(bad)
    end = np.minimum(len(bad), peak_rows + 1 + AFTERMATH // 2)
    left = end - peak_rows - 1
    count = np.searchsorted(bad_rows, end) - np.searchsorted(bad_rows, peak_rows + 1)
    return np.asarray((left > 0) & (count >= 0.9 * left), dtype=bool)
