"""Where a log was interrupted and taken up again, and what did not go on as it was."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.blocks import moved, rows_where
from forensics.diagnose.finite import FiniteSeries
from forensics.diagnose.series import median, sigma
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import factor, number, power_of_two
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray

REGULAR = 0.95
"""Share of equal step differences from which a larger one is a hole and not the log's habit."""
PAST = 64
"""Rows before a seam that tell the noise."""
NEAR = 16
"""Rows before a seam that tell the level."""
AFTER = 8
"""Rows after a seam that are compared with it: the spike after a lost optimizer state is short."""
TREND = 128
"""Rows before a seam that tell the trend, in four blocks; rows after it that must be below."""

SHORTEST_INTERVAL = 500
"""Steps in which a scale may double once: half the shortest growth interval in wide use."""


@dataclass(frozen=True)
class Seam:
    """The first row after an interruption.

    Attributes:
        row: that row.
        known: the run itself says that it was resumed here (or its clock was set back).
        missing: log rows missing before it.
        repeated: rows of an earlier time line that it replaced.
    """

    row: int
    known: bool
    missing: int = 0
    repeated: int = 0


@dataclass(frozen=True)
class Break:
    """Something that did not go on at a seam.

    Attributes:
        signal: ``lr``, ``scaler_scale`` or ``loss``.
        text: what happened, as a clause.
        harmless: worth a note only.
    """

    signal: str
    text: str
    harmless: bool = False


def _stride(step: IntArray) -> tuple[int, IntArray]:
    """Steps between rows where at least 95 % of them agree, else 0; the rows before odd ones."""
    count = len(step) - 1
    if count < 2:
        return 0, np.empty(0, dtype=np.int64)
    usual = int(step[1] - step[0])
    odd = rows_where(count, lambda at: step[moved(at, 1)] - step[at] != usual)
    if len(odd) >= count // 2:  # then the first may not be the median
        difference = np.diff(step)
        usual = int(np.partition(difference, len(difference) // 2)[len(difference) // 2])
        odd = np.flatnonzero(difference != usual)
    return usual if (count - len(odd)) / count >= REGULAR else 0, odd


def find_seams(signals: Signals) -> list[Seam]:
    """All seams in order of row: resumes, clocks set back, steps done again, and holes."""
    rows = len(signals)
    known = {row for row in _stated(signals) | _clock_resets(signals) if 0 < row < rows}
    missing = dict(_holes(signals.step))
    repeated = {row: count for row, count in _overlaps(signals).items() if 0 < row < rows}
    return [
        Seam(row, row in known, missing.get(row, 0), repeated.get(row, 0))
        for row in sorted({*known, *missing, *repeated})
    ]


def _stated(signals: Signals) -> set[int]:
    manifest = signals.run.manifest
    segments = manifest.segments if manifest is not None else ()
    starts = [segment.start_step for segment in segments if segment.reason == "resume"]
    return {int(row) for row in np.searchsorted(signals.step, starts)}


def _clock_resets(signals: Signals) -> set[int]:
    """Rows whose elapsed time is below that of the row before."""
    if not signals.has("time_s"):
        return set()
    clock = FiniteSeries.of(signals.column("time_s"))
    back = np.flatnonzero(clock.values[1:] < clock.values[:-1]) + 1
    return set(clock.rows[back].tolist())


def _holes(step: IntArray) -> list[tuple[int, int]]:
    """Rows after a hole with the number of rows missing; none where holes come at a fixed pace."""
    usual, odd = _stride(step)
    if not usual:
        return []
    at = odd[step[odd + 1] - step[odd] > usual]
    difference = step[at + 1] - step[at]
    if len(at) >= 3 and len(set(np.diff(step[at]).tolist())) == 1:
        return []  # a row left out every so many steps is how this logger works
    return [
        (int(i) + 1, int(gap) // usual - (gap % usual == 0))
        for i, gap in zip(at, difference, strict=True)
    ]


def _overlaps(signals: Signals) -> dict[int, int]:
    """Rows at which the file goes back to an earlier step, and how many rows that replaces."""
    found: dict[int, int] = {}
    for table in signals.table.earlier:
        if len(table) and len(signals) and table.step[0] > signals.step[0]:
            row = int(np.searchsorted(signals.step, table.step[0]))
            found[row] = found.get(row, 0) + len(table)
    return found


def breaks_at(signals: Signals, seam: Seam) -> list[Break]:
    """What did not go on at a seam."""
    found = [_rate_break(signals, seam), _scale_break(signals, seam), _loss_break(signals, seam)]
    return [one for one in found if one is not None]


def _rate_break(signals: Signals, seam: Seam) -> Break | None:
    """A rate that moves further than the schedule around the seam does."""
    lr, row = signals.lr, seam.row
    before, after = lr[row - 1], lr[row]
    if not (np.isfinite([before, after]).all() and before > 0 and after > 0):
        return None
    near = np.concatenate((lr[max(0, row - 10) : row], [np.nan], lr[row : row + 10]))
    moves = np.abs(np.diff(np.log(np.where(near > 0, near, np.nan))))
    pace = float(np.nanmax(moves)) if np.isfinite(moves).any() else 0.0
    if abs(np.log(after / before)) <= max(np.log(1.5), 3 * pace * (1 + seam.missing)):
        return None
    first = lr[np.flatnonzero(np.isfinite(lr))[0]]
    again = abs(after - first) <= 0.01 * first
    text = f"the learning rate jumps {factor(after / before)} to {number(after)}"
    return Break("lr", text + (", where the schedule began" if again else ""))


def _scale_break(signals: Signals, seam: Seam) -> Break | None:
    """A loss scale that moves by more than an octave a row."""
    row = seam.row
    before, after = signals.scale_log2(slice(row - 1, row + 1))
    jump = after - before
    gap = int(signals.step[row] - signals.step[row - 1])
    fell = jump < 0 and (gap > 1 or signals.skipped[max(0, row - 3) : row].any())
    if not abs(jump) > 1.0 + gap / SHORTEST_INTERVAL or fell:
        return None
    scales = signals.scale[row - 1], signals.scale[row]
    scale = signals.scale_log2(slice(None))
    first = scale[np.flatnonzero(np.isfinite(scale))[0]]
    text = f"the loss scale jumps from {power_of_two(scales[0])} to {power_of_two(scales[1])}"
    return Break("scaler_scale", text + (", its initial value" if after == first else ""))


def _loss_break(signals: Signals, seam: Seam) -> Break | None:
    """A loss that is higher after the seam than noise explains, or lower than its trend."""
    loss, row = signals.loss, seam.row
    past, near = loss[max(0, row - PAST) : row], loss[max(0, row - NEAR) : row]
    after = loss[row : row + AFTER]
    if np.isfinite(near).sum() < 8 or np.isfinite(after).sum() < 3:
        return None
    level = median(near)
    rise = median(after) - level
    noise = sigma(np.diff(past[np.isfinite(past)])) / np.sqrt(2)
    if rise > max(8 * noise, 0.1 * abs(level)):
        return Break("loss", f"the loss rises from {number(level)} to {number(median(after))}")
    return None if seam.missing else _below_trend(loss, row)


def _below_trend(loss: FloatArray, row: int) -> Break | None:
    """A loss that stays below the trend after the seam: data it has seen before."""
    past, after = loss[max(0, row - TREND) : row], loss[row : row + TREND]
    if np.isfinite(past).sum() < TREND or np.isfinite(after).sum() < TREND // 2:
        return None
    blocks = np.array([median(block) for block in past.reshape(4, -1)])
    slope, start = np.polyfit(np.arange(4), blocks, 1)
    spread = max(sigma(past) / np.sqrt(TREND / 4), float(np.abs(blocks - blocks.mean()).max()) / 3)
    expected = start + slope * 4.5
    drop = expected - median(after)
    if drop <= max(6 * spread, 0.05 * abs(expected)):
        return None
    text = f"the loss is {number(median(after))} where its trend says {number(float(expected))}"
    return Break("loss", text, harmless=True)
