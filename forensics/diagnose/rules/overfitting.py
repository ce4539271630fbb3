"""The validation loss rises while the training loss falls.

What it detects
    The last three validation losses are above the best by 3 % and by 4 standard deviations of
    their noise, the trend since the best is upwards, and the training loss is lower at the end
    than it was at the best. A rise of 10 % and more is a warning.

Why it matters
    What was learned after the best validation is memory of the training data; the checkpoint at
    the best is the one to keep.

Evidence
    Validation and training loss at the start, at the best and at the end.

Silent when
    Fewer than 5 validation losses are finite, or fewer than 3 come after the best.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import MAD_TO_SIGMA, median, theil_sen
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """How far and how surely the validation loss must rise."""

    points: int = threshold(5, "fewer do not tell a trend from noise")
    sigmas: float = threshold(4.0, "the best of many is 2 to 3 standard deviations low by luck")
    share: float = threshold(0.03, "validation losses of converged runs wander by 1 to 2 %")
    serious: float = threshold(0.10, "a model that is worse by this much is not the one to keep")
    fall: float = threshold(0.02, "training loss, as a share: it must still be learning")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    count = int(np.isfinite(signals.column("val_loss")).sum())
    return (
        f"too few validation losses ({thresholds.points} needed)"
        if count < thresholds.points
        else ""
    )


@rule(thresholds=Thresholds, needs=("val_loss", "loss"), too_little=_too_little)
def overfitting(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    values = signals.column("val_loss")
    rows = np.flatnonzero(np.isfinite(values))
    validation = values[rows]
    if len(rows) < thresholds.points:
        return
    best = int(np.argmin(validation))
    after = validation[best:]
    if len(after) <= 3:
        return
    around = validation[max(0, best - 1) : best + 2]  # the best of many is low by luck
    level, end = median(around), median(after[-3:])
    size = max(abs(level), 1e-300)
    least = max(thresholds.share * size, thresholds.sigmas * _noise(validation))
    if float(after[-3:].min()) - level <= least or not theil_sen(_thinned(after)) > 0:
        return
    before, now = _training(signals, rows, best), _training(signals, rows, len(rows) - 1)
    if not before - now > thresholds.fall * abs(before):
        return
    rise = (end - level) / size
    told = (float(after[0]), end)
    yield _finding(signals, rows, best, told, (before, now), rise, thresholds.serious)


def _noise(values: FloatArray) -> float:
    """Standard deviation of one value about a smooth course, from second differences."""
    bends = np.abs(np.diff(values, 2))
    return MAD_TO_SIGMA * median(bends) / float(np.sqrt(6)) if len(bends) else 0.0


def _thinned(values: FloatArray, most: int = 200) -> FloatArray:
    return values[np.linspace(0, len(values) - 1, min(len(values), most)).astype(np.int64)]


def _training(signals: Signals, rows: IntArray, index: int) -> float:
    """Median training loss from the validation before to this one."""
    start = int(rows[index - 1]) + 1 if index else 0
    inside = median(signals.loss[start : int(rows[index]) + 1])
    return inside if np.isfinite(inside) else median(signals.loss[: int(rows[index]) + 1][-1:])


def _finding(
    signals: Signals,
    rows: IntArray,
    best: int,
    validation: tuple[float, float],
    training: tuple[float, float],
    rise: float,
    serious: float,
) -> Finding:
    at = signals.step_at(int(rows[best]))
    around = rows[np.unique([0, best, (best + len(rows) - 1) // 2, len(rows) - 1])]
    return Finding(
        rule="overfitting",
        severity=Severity.WARNING if rise >= serious else Severity.INFO,
        message=(
            f"validation loss rises since its best of {number(validation[0])} at step {at:,} to "
            f"{number(validation[1])} (+{percent(rise)}), while training loss falls from "
            f"{number(training[0])} to {number(training[1])}"
        ),
        first_step=at,
        last_step=signals.last_step,
        evidence=(
            signals.evidence("val_loss", signals.column("val_loss"), around, validation[0]),
            signals.evidence("loss", signals.loss, around),
        ),
        cause="The model learns its training data by heart: too many passes over too little.",
        remedy=(
            f"Keep the checkpoint nearest step {at:,}. For the next run: fewer passes, more or "
            f"augmented data, weight decay or dropout."
        ),
    )
