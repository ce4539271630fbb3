"""A loss that ends above its best: rising for good, or at a new level; and since when."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.loss_course import LATEST, Course, course, row_noise
from forensics.diagnose.schedule import dated
from forensics.diagnose.series import median, row_medians, sigma, theil_sen
from forensics.diagnose.signals import Signals
from forensics.diagnose.spike_groups import loss_level, spike_near
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray

LEAST = 12
"""Finite losses below which no course is judged."""
RISE = (6.0, 0.05)
"""Least rise in standard deviations of a block, and as a share, that the rules start from."""
WANDER = 1.25
"""Times the most that the loss rose before and came back from: it wanders as far by itself."""
FINAL = 1.5
"""Factor that a rise in the last rows must reach: less time, so more is asked for."""
JUMP = 1.6
"""Factor from which a new level in the last rows is no change of the data."""
CLEAR = 6.0
"""Standard deviations from row to row above the best level at which a row is part of the rise."""
STUCK = 1.0
"""Share of the level from which a rise that fell from a peak and then stands is for good."""
_SETTLED = 8
"""Blocks after such a peak that tell whether the loss stands or is still on its way down."""
_LEADS_BACK = 0.15
"""Share of the way back that a loss may fall in half the time since its peak and yet stand."""
_POINTS = 200


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
        falling: it is on its way down again, or was up before and came back.
        final: it happened in the last rows before the end, or before nothing finite is left.
        stuck: it fell from a peak and then stood, far above the best, to the end.
    """

    first: int
    level: float
    end: float
    share: float
    sudden: bool
    steady: bool
    falling: bool
    final: bool
    stuck: bool = False


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
    back = top < len(after) - LATEST and float(path.medians[-1]) < low
    stuck = back and _stands(after[top + 1 :], level, STUCK * size, path.noise)
    return Rise(
        first=_onset(signals, path, level, end),
        level=level,
        end=end,
        share=rise / size,
        sudden=bool(np.max(np.diff(after)) >= 0.6 * rise),
        steady=_kendall(after) >= 0.6 and not path.drowned(level),
        falling=(back and not stuck) or _went_back(after, level, rise),
        final=False,
        stuck=stuck,
    )


def _stands(blocks: FloatArray, level: float, least: float, noise: float) -> bool:
    """Is the later half of the blocks after a peak far above a level, and not falling any further?

    A fall within the noise is none, unless it would lead back: then more has to be seen first.
    """
    late = blocks[len(blocks) // 2 :]
    if len(blocks) < _SETTLED or float(late.min()) - level <= least:
        return False
    slack = min(3 * noise, _LEADS_BACK * (median(late) - level))
    return theil_sen(late) * len(late) > -slack


def _went_back(after: FloatArray, level: float, rise: float) -> bool:
    """Were the blocks after the best near the end's level long before they last left the best's?"""
    high = np.flatnonzero(after >= level + 0.65 * rise)
    low = np.flatnonzero(after <= level + 0.35 * rise)
    slack = max(3, len(after) // 4)
    return len(high) > 0 and len(low) > 0 and int(low[-1]) - int(high[0]) > slack


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
    values = space.along(path.rows)
    tail = values[start:]
    base, top = (float(np.arcsinh(value / space.unit)) for value in (level, end))
    noise = row_noise(values[: max(start, 64)])
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
    date = dated(signals, row, spike_near(signals, row))
    if date > row:  # a jump that only ends what had begun before is no date
        limit = base + CLEAR * (row_noise(values[: start + 1]) or noise)
        first, last = path.rows.before(row), path.rows.before(date)
        date = int(path.rows[last - _rows_above(values[first:last], limit)])
    return date


def _rows_above(values: FloatArray, limit: float) -> int:
    """How many of the last values, without a gap, are above the limit: a blow-up has no ramp."""
    below = np.flatnonzero(values <= limit)
    return len(values) - 1 - int(below[-1]) if len(below) else len(values)


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
        begin = (len(path.rows) - start) % size + start
        values = row_medians(space.along(path.rows)[begin:].reshape(-1, size))
        point = _rise_at_end(values, float(np.arcsinh(median(path.medians[-8:-2]) / space.unit)))
        if point is not None:
            level = median(path.medians[-8:-2])
            end = float(space.back(values[-3:]).mean())
            share = (end - level) / path.size_of(level)
            first = path.rows[begin + point * size]
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
