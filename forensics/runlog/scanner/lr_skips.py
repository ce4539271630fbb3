"""Steps that the optimizer did not take, as the learning rate tells them.

A trainer that counts attempted steps but moves its schedule only with the optimizer (Hugging Face
with fp16) leaves the schedule standing still on a skip. Where the schedule is linear, the learning
rate is the number of steps taken times a constant, so that each record tells exactly how many were
skipped until then: in a warm-up ``lr = slope · taken``, in a linear decay to 0 at step N
``lr = slope · (N - taken)``. The slope is the steepest one seen: a skip can only flatten it. So it
is with a cosine whose end is known (``cosine_rate``); of other smooth decays each stretch is judged
by those around it (``smooth_rate``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.frozen import dataclass
from forensics.runlog.scanner.cosine_rate import lost_in_cosine
from forensics.runlog.scanner.smooth_rate import skips_in_fall
from forensics.runlog.steps import BoolArray, Column, FloatArray, IntArray, StepTable

_WHOLE = 0.05
"""Steps by which a count of steps may miss a whole number: digits printed, and rounding."""
_SAME_SLOPE = 1e-3
"""Relative difference up to which two slopes are the same."""
_FEWEST = 3
"""Records of a straight stretch; with fewer any two records make one."""
_COMMON_SLOPE = 0.5
"""Share of a decay's stretches that must have its slope: a cosine has hardly two alike."""


@dataclass(frozen=True)
class LrSkips:
    """What the learning rate of a log tells.

    Attributes:
        skipped: steps not taken between the record before and this one, shape (rows,).
        known: where the learning rate tells it, shape (rows,).
        lag: 1 where the rate is logged before the schedule moves, which is no skip; else 0.
    """

    skipped: IntArray
    known: BoolArray
    lag: int


def skips_by_rate(
    step: IntArray,
    lr: FloatArray,
    *,
    planned: int | None = None,
    may_lag: bool | None = None,
) -> LrSkips | None:
    """Read skips from the learning rates of a log.

    Args:
        step: step of each record, 1-based (steps attempted until then), ascending, shape (rows,).
        lr: learning rate at each, NaN where not logged, shape (rows,).
        planned: steps after which a linear decay or a cosine reaches 0, where known.
        may_lag: can the rate be logged before the schedule moves? None where unknown: then one
            step that is missing from the first record on is taken for that, which is no fault.

    Returns:
        None where no stretch of the schedule is straight or smooth, or its steps do not come out
        whole.
    """
    rows = np.flatnonzero(np.isfinite(lr))
    if len(rows) < _FEWEST:
        return None
    at, rate = step[rows], lr[rows]
    peak = int(np.argmax(rate))
    lost = np.full(len(rows), np.nan)
    rising = _lost_in_warmup(at[: peak + 1], rate[: peak + 1])
    if rising is not None:
        lost[: peak + 1] = rising
    falling = _falling(at, rate, peak, planned, rising)
    if falling is not None:
        start = peak + 1 if rising is not None else peak
        lost[start:] = falling[start - peak :]
    counted = _brackets(rows, lost, len(step), may_lag)
    return (
        counted if falling is not None else _with_smooth(counted, at, rate, rows, peak, len(step))
    )


def _falling(
    at: IntArray, rate: FloatArray, peak: int, planned: int | None, rising: FloatArray | None
) -> FloatArray | None:
    """Steps lost until each record from the peak on, of a linear decay or a cosine; else None."""
    straight = _lost_in_decay(at[peak:], rate[peak:], planned)
    if straight is not None:
        return straight
    straight = _lost_in_decay(at[peak:], rate[peak:], None)
    if straight is not None:
        if rising is not None:  # none is known to be lost in between
            straight += rising[np.isfinite(rising)][-1]
        return straight
    if planned is None:
        return None
    slope, after = None, 0
    if rising is not None:
        seen = np.flatnonzero(np.isfinite(rising) & (rate[: peak + 1] > 0))
        last = int(seen[-1])
        after = int(at[last] - rising[last])
        slope = float(rate[last] / after)
    return lost_in_cosine(at[peak:], rate[peak:], planned, slope=slope, after=max(after - 1, 0))


def _with_smooth(
    counted: LrSkips | None, at: IntArray, rate: FloatArray, rows: IntArray, peak: int, count: int
) -> LrSkips | None:
    """What is known of the warm-up, and of a decay that is smooth."""
    skips, known = skips_in_fall(at[peak:], rate[peak:])
    if not known.any():
        return counted
    base = counted or LrSkips(np.zeros(count, dtype=np.int64), np.zeros(count, dtype=bool), 0)
    skipped, told = base.skipped.copy(), base.known.copy()
    skipped[rows[peak:][known]] = skips[known]
    told[rows[peak:][known]] = True
    return LrSkips(skipped, told, base.lag)


def _lost_in_warmup(at: IntArray, rate: FloatArray) -> FloatArray | None:
    """Steps lost until each record of a rising stretch; None where it is not straight."""
    if len(at) < _FEWEST or (np.diff(rate) < 0).any():
        return None
    # The last interval may hold the end of the warm-up, where the slope is no longer its own.
    slopes = np.diff(rate) / np.diff(at)
    slope = float(slopes.max(initial=0.0))
    alike = slopes > slope * (1 - _SAME_SLOPE)
    if slope <= 0 or alike.sum() < 2:
        return None
    slope = float(slopes[alike].mean())
    taken = rate / slope
    within = np.abs(taken - np.round(taken)) < _WHOLE
    if not within[:-1].all() or len(within) - 1 < _FEWEST - 1:
        return None
    lost = at - np.round(taken)
    lost[~within] = np.nan
    if (lost[np.isfinite(lost)] < 0).any():
        return None
    flat_end = slopes[-1] < slope * (1 - _SAME_SLOPE)
    if flat_end and _is_peak_alone(lost):
        lost[-1] = np.nan
    return lost


def _is_peak_alone(lost: FloatArray) -> bool:
    """Does only the last record, at the top, seem to lose steps? Then the schedule has turned."""
    return len(lost) >= 2 and lost[-1] > lost[-2]


def _lost_in_decay(at: IntArray, rate: FloatArray, planned: int | None) -> FloatArray | None:
    """Steps lost until each record of a falling stretch; None where it is not straight.

    Counted from the start of the run where ``planned`` says where the decay ends, else from the
    second record of the stretch.
    """
    if len(at) < _FEWEST + 1 or (np.diff(rate) > 0).any():
        return None
    slopes = -np.diff(rate) / np.diff(at)
    # The first stretch may hold the end of the warm-up.
    inner = slopes[1:]
    slope = float(inner.max(initial=0.0))
    alike = inner > slope * (1 - _SAME_SLOPE)
    if slope <= 0 or alike.sum() < max(2.0, _COMMON_SLOPE * len(inner)):
        return None
    slope = float(np.median(inner[alike]))
    left = rate / slope
    if planned is not None:
        lost = _whole(at - (planned - left))
        if lost is None or (lost[1:] < 0).any():
            return None
        if not 0 <= lost[0] <= lost[1]:  # the first record lies in the warm-up yet
            lost[0] = np.nan
        return lost
    lost = _whole((at[1:] - at[1]) - (left[1] - left[1:]))
    if lost is None or (lost < 0).any():
        return None
    return np.concatenate(([np.nan], lost))


def _whole(counts: FloatArray) -> FloatArray | None:
    """Counts as whole numbers; None where one is none (the first may lie before the decay)."""
    rounded = np.round(counts)
    if (np.abs(counts - rounded)[1:] > 2 * _WHOLE).any():
        return None
    if abs(counts[0] - rounded[0]) > 2 * _WHOLE:
        rounded[0] = np.nan
    return np.asarray(rounded)


def _brackets(rows: IntArray, lost: FloatArray, count: int, may_lag: bool | None) -> LrSkips | None:
    known = np.isfinite(lost)
    if known.sum() < _FEWEST:
        return None
    total, at = lost[known], rows[known]
    grown = np.diff(total)
    if (grown < 0).any():
        return None  # the schedule was moved by hand, or is not what it seemed to be
    lag = int(total[0] >= 1 and may_lag is not False)
    skipped = np.zeros(count, dtype=np.int64)
    skipped[at] = np.concatenate(([total[0] - lag], grown)).astype(np.int64)
    told = np.zeros(count, dtype=bool)
    told[at] = True
    return LrSkips(skipped, told, lag)


def with_lr_skips(
    table: StepTable, *, planned: int | None = None, may_lag: bool | None = None
) -> tuple[StepTable, str]:
    """The table with ``skipped_steps`` where its learning rate tells them, and a note of it.

    Args:
        table: steps 1-based, as the trainer counts them.
        planned: steps after which the decay reaches 0, where known.
        may_lag: as for ``skips_by_rate``.
    """
    if "lr" not in table or len(table) == 0:
        return table, ""
    lr = np.where(table.present("lr"), table["lr"], np.nan)
    found = skips_by_rate(table.step, lr, planned=planned, may_lag=may_lag)
    if found is None:
        return table, ""
    columns = dict(table.columns)
    columns["skipped_steps"] = Column(found.skipped, found.known)
    table = replace(table, columns=columns)
    if not found.skipped.any():
        return table, ""
    return table, "skipped steps are read from the learning rate, which stood still for them"
