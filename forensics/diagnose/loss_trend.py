"""The long course of the loss, in 40 block medians: rising for good, a new level, or flat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forensics.diagnose.schedule import dated
from forensics.diagnose.series import (
    MAD_TO_SIGMA,
    block_bounds,
    block_medians,
    median,
    row_medians,
    sigma,
)
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import loss_level, spike_near
from forensics.runlog.steps import FloatArray, IntArray

BLOCKS = 40
"""Blocks of the run: enough to see a trend, few enough that each median is precise."""
LEAST = 12
"""Finite losses below which no course is judged."""
LATEST = 3
"""Blocks at the end that must agree."""
RISE = (6.0, 0.05)
"""Least rise in standard deviations of a block, and as a share, that the rules start from."""
NO_GAIN = (0.012, 1.5, 1000)
"""Share, standard errors and latest first step for a loss that never fell (loss-plateau)."""
WANDER = 1.25
"""Times the most that the loss rose before and came back from: it wanders as far by itself."""
DROP = 0.25
"""Share of what the loss had fallen by that a rise is measured against where the loss is near 0."""

DROWNED = 20.0
"""Times the noise that a change is measured against where the level is lost in it (the policy
losses of reinforcement learning wander about 0 by 2 to 3 times their noise)."""

FINAL = 1.5
"""Factor that a rise in the last rows must reach: less time, so more is asked for."""
JUMP = 1.6
"""Factor from which a new level in the last rows is no change of the data."""
_POINTS = 200


@dataclass(frozen=True, eq=False)
class Course:
    """The finite losses in blocks.

    Attributes:
        rows: rows of the finite losses, shape (F,).
        loss: those losses, shape (F,).
        bounds: where the blocks begin and end in them, shape (blocks + 1,).
        medians: shape (blocks,).
        noise: standard deviation of a block's median, robust.
        row_noise: standard deviation of one loss about its block, robust.
    """

    rows: IntArray
    loss: FloatArray
    bounds: IntArray
    medians: FloatArray
    noise: float
    row_noise: float

    def __len__(self) -> int:
        return len(self.medians)

    @property
    def best(self) -> int:
        """The lowest block before the last three, by medians of three (no outlier is a best)."""
        a, b, c = self.medians[:-2], self.medians[1:-1], self.medians[2:]
        smooth = np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))
        return 1 + int(np.argmin(smooth[: 1 - LATEST]))

    def size_of(self, level: float) -> float:
        """What a change is measured against: the level, or near 0 the fall so far or the noise."""
        fall = float(np.max(self.medians[: self.best + 1])) - float(self.medians[self.best])
        blurred = DROWNED * self.row_noise if self.drowned(level) else 0.0
        return max(abs(level), DROP * fall, blurred, 1e-300)

    def drowned(self, level: float) -> bool:
        """Is this level, or that of the start, lost in the noise of single losses about 0?

        So are the surrogate losses of policy gradients: they measure no error, and one that comes
        back to 0 from below is no worse than before.
        """
        lowest = min(abs(level), abs(median(self.loss[:8])))
        return lowest < 2 * self.row_noise and bool(self.medians.min() < 0)


def course(signals: Signals) -> Course:
    """The run's losses in 40 blocks (fewer where there are fewer losses)."""
    return signals.derived(_course)


def _course(signals: Signals) -> Course:
    rows = np.flatnonzero(np.isfinite(signals.loss))
    loss = signals.loss[rows]
    bounds = block_bounds(len(rows), BLOCKS)
    medians = block_medians(loss, BLOCKS)
    size = len(rows) / max(len(medians), 1)
    within = (
        MAD_TO_SIGMA * median(np.abs(np.diff(_thinned(loss)))) / np.sqrt(2) if size > 1 else 0.0
    )
    bends = np.abs(np.diff(medians, 2))  # second differences: a steady fall or rise is no noise
    between = MAD_TO_SIGMA * median(bends) / np.sqrt(6) if len(bends) else 0.0
    noise = max(1.25 * within / np.sqrt(size), between)
    return Course(rows, loss, bounds, medians, noise, max(within, between))


def _row_noise(values: FloatArray) -> float:
    """Standard deviation from row to row, robust; 0 for fewer than 2 values."""
    spread = MAD_TO_SIGMA * median(np.abs(np.diff(_thinned(values)))) / np.sqrt(2)
    return spread if np.isfinite(spread) else 0.0


def _thinned(loss: FloatArray, most: int = 8192) -> FloatArray:
    """Pairs of neighbours spread over the series: enough for the noise from row to row."""
    if len(loss) <= most:
        return loss
    start = np.linspace(0, len(loss) - 64, most // 64).astype(np.int64)
    picked = loss[start[:, None] + np.arange(64)]
    return np.asarray(np.concatenate((picked, np.full((len(start), 1), np.nan)), axis=1).ravel())


@dataclass(frozen=True)
class Rise:
    """The loss ends above its best.

    Attributes:
        first: row from which on it is above.
        level: the best level before.
        end: the level at the end.
        share: the rise as a share of that level.
        sudden: most of it happened between two neighbouring blocks.
        steady: the blocks after the best rise nearly all the way.
        falling: it is on its way down again.
        final: it happened in the last rows before the end, or before nothing finite is left.
    """

    first: int
    level: float
    end: float
    share: float
    sudden: bool
    steady: bool
    falling: bool
    final: bool


def find_rise(signals: Signals, sigmas: float, share: float) -> Rise | None:
    """The rise at the end of the run, if its last three blocks are above the best.

    Args:
        signals: the run.
        sigmas: least rise, in standard deviations of a block.
        share: least rise, as a share of the level.
    """
    path = course(signals)
    if len(path) < LEAST:
        return None
    best = path.best
    level = median(path.medians[best - 1 : best + 2])
    size = path.size_of(level)
    least = max(sigmas * path.noise, share * size, WANDER * _climb(path.medians[: best + 1]))
    if float(path.medians[-LATEST:].min()) - level <= least:
        return _final_rise(signals, path)
    end = median(path.medians[-LATEST:])
    after = path.medians[best:]
    top = int(np.argmax(after))
    low = level + 0.6 * (float(after[top]) - level)
    rise = end - level
    return Rise(
        first=_onset(signals, path, level, end),
        level=level,
        end=end,
        share=rise / size,
        sudden=bool(np.max(np.diff(after)) >= 0.6 * rise),
        steady=_kendall(after) >= 0.6 and not path.drowned(level),
        falling=top < len(after) - LATEST and float(path.medians[-1]) < low,
        final=False,
    )


def _climb(medians: FloatArray) -> float:
    """The most that these medians rose above an earlier one: what the loss came back from."""
    return float(np.max(medians - np.minimum.accumulate(medians)))


def _kendall(values: FloatArray) -> float:
    """Kendall's tau against time: 1 where each value is above all before it."""
    first, second = np.triu_indices(len(values), 1)
    return float(np.sign(values[second] - values[first]).mean()) if len(first) else 0.0


def _onset(signals: Signals, path: Course, level: float, end: float) -> int:
    """The row from which on the loss is above the level (in log space: growth may be geometric).

    First the split that puts most high losses after it and most low ones before; then back, in
    blocks as fine as the noise allows, to where the loss last was at the level. A jump is dated
    to its row.
    """
    space = loss_level(signals)
    start = int(path.bounds[path.best])
    tail = space.values[path.rows[start:]]
    base, top = (float(np.arcsinh(value / space.unit)) for value in (level, end))
    noise = _row_noise(space.values[path.rows[: max(start, 64)]])
    high = tail > 0.5 * (base + top)
    wrong = np.cumsum(np.append(0, high)) + np.append(np.cumsum((~high)[::-1])[::-1], 0)
    split = int(np.argmin(wrong))
    enough = int(np.ceil((10 * noise / max(top - base, 1e-300)) ** 2))
    size = max(1, min(max(enough, split // 100), split // 4))
    blocks = row_medians(tail[split % size : split].reshape(-1, size))
    place, reached = _hinge(blocks, base)
    on_ramp = max(1, len(blocks) - place)  # the more blocks, the surer its height
    sure = reached > max(0.25 * (top - base), 7 * noise / np.sqrt(size * on_ramp))
    gradual = sure and on_ramp > 2
    at = split % size + place * size if gradual else split
    row = int(path.rows[min(start + at, len(path.rows) - 1)])
    return dated(signals, row, spike_near(signals, row))


def _hinge(values: FloatArray, level: float) -> tuple[int, float]:
    """Where a line leaves the level to fit what follows best, and how far above it ends."""
    if len(values) < 3:
        return len(values), 0.0
    at = np.arange(len(values), dtype=np.float64)
    ramp = np.maximum(at - at[:-1, None], 0.0)  # one row for each place it may leave
    above = values - level
    slope = np.maximum(ramp @ above, 0.0) / (ramp * ramp).sum(axis=1)
    misfit = ((above - slope[:, None] * ramp) ** 2).sum(axis=1)
    place = int(np.argmin(misfit))
    return place, float(slope[place] * ramp[place, -1])


def _final_rise(signals: Signals, path: Course) -> Rise | None:
    """A rise in the last rows, too short for the blocks to see."""
    space = loss_level(signals)
    latest = int(path.bounds[-LATEST - 2])
    for start in (latest, max(latest, len(path.rows) - _POINTS)):
        size = max(1, (len(path.rows) - start) // _POINTS)
        rows = path.rows[(len(path.rows) - start) % size + start :]
        values = row_medians(space.values[rows].reshape(-1, size))
        point = _rise_at_end(values, float(np.arcsinh(median(path.medians[-8:-2]) / space.unit)))
        if point is not None:
            level = median(path.medians[-8:-2])
            end = float(space.back(values[-3:]).mean())
            share = (end - level) / path.size_of(level)
            first = int(rows[point * size])
            return Rise(first, level, end, share, False, True, False, True)
    return None


def _rise_at_end(values: FloatArray, level: float) -> int | None:
    """Where a steady rise to the last of these values sets in, if it goes far enough."""
    noise = max(sigma(np.diff(values[:-20])) if len(values) > 40 else 0.0, 0.02)
    high = values - level > 4 * noise
    quiet = np.flatnonzero(~high)
    start = int(quiet[-1]) + 1 if len(quiet) else 0
    last = values[start:]
    if start == 0 or len(last) < 10 or median(last[-3:]) - level < np.log(FINAL):
        return None
    thirds = [median(part) - level for part in np.array_split(last, 3)]
    if last[0] - level > 0.5 * thirds[2]:  # sudden: a new level for long, not a spike under way
        stays = len(last) >= _POINTS // 4 and thirds[2] > max(0.8 * thirds[0], np.log(JUMP))
        return start if stays else None
    return start if thirds[0] < thirds[1] < thirds[2] else None


def never_learned(signals: Signals, gain: float, errors: float, fresh: int) -> bool:
    """Did the loss of a fresh run gain nothing, beyond doubt?

    Args:
        signals: the run.
        gain: gain as a share of the loss that counts as none.
        errors: standard errors that are added to what was gained.
        fresh: a log that begins after this step is the middle of a run.
    """
    path = course(signals)
    if signals.step_at(0) > fresh or len(path) < BLOCKS or path.medians.min() <= 0:
        return False
    logs = np.log(path.medians)
    fifth = len(logs) // 5
    gained = median(logs[:fifth]) - median(logs[-fifth:])
    error = 1.25 * np.sqrt(2 / fifth) * max(sigma(logs), path.noise / median(path.medians))
    start = path.loss[:10]
    quick = float(np.log(median(start) / median(path.medians[-fifth:]))) if start.min() > 0 else 1.0
    fell_at_once = quick > 0.02 + 1.25 * path.row_noise / median(path.medians)
    dipped = float(logs.max() - logs.min()) > 0.05 + 6 * error
    flat = abs(gained) + errors * error < gain
    return bool(flat and not fell_at_once and not dipped)
