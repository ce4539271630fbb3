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
    Fewer than 5 validation losses are finite, or fewer than 3 come after the best. Where single
    ones are too noisy to tell, the medians of 5 must rise by 25 % and not come back, and the
    training loss must halve.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import MAD_TO_SIGMA, median, row_medians, theil_sen
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent
from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray, IntArray

_WINDOW = 5
"""Validations whose median is looked at where single ones are too noisy to tell."""
_WORTHWHILE = 5
"""Windows that there must be."""
_OF_MEDIAN = 1.25
"""Standard error of a median, in those of a mean, for Gaussian noise."""


@dataclass(frozen=True)
class Thresholds:
    """How far and how surely the validation loss must rise."""

    points: int = threshold(5, "fewer do not tell a trend from noise")
    sigmas: float = threshold(4.0, "the best of many is 2 to 3 standard deviations low by luck")
    share: float = threshold(0.03, "validation losses of converged runs wander by 1 to 2 %")
    serious: float = threshold(0.10, "a model that is worse by this much is not the one to keep")
    noisy: float = threshold(0.25, "rise of medians of 5; correlated noise of 10 % wanders by 20 %")
    halved: float = threshold(
        0.5, "training loss beside it: what is learned by heart keeps falling"
    )
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
    plain = _rising(validation, 1, thresholds)
    rising = plain or _rising(validation, _WINDOW, thresholds)
    if rising is None:
        return
    best, rise, end = rising
    before, now = _training(signals, rows, best), _training(signals, rows, len(rows) - 1)
    if not before - now > (thresholds.fall if plain else thresholds.halved) * abs(before):
        return
    told = (float(validation[best]), end)
    yield _finding(signals, rows, best, told, (before, now), rise, thresholds.serious)


def _rising(
    validation: FloatArray, window: int, thresholds: Thresholds
) -> tuple[int, float, float] | None:
    """Index of the best, rise since then as a share, and the level at the end; None if no rise.

    Args:
        validation: finite losses, shape (validations,).
        window: validations whose median is looked at: 1 is the losses themselves.
        thresholds: of the rule.
    """
    if len(validation) < _WORTHWHILE * window and window > 1:
        return None
    values = row_medians(sliding_window_view(validation, window))
    best = _last_lowest(values)
    after = values[best:]
    if len(after) <= 3 * window:
        return None
    around = values[max(0, best - 1) : best + 2]  # the best of many is low by luck
    level, last = median(around), after[-3 * window :: window]
    size = max(abs(level), 1e-300)
    spread = _noise(validation) * (1 if window == 1 else _OF_MEDIAN / float(np.sqrt(window)))
    least = max(thresholds.share * size, thresholds.sigmas * spread)
    if float(last.min()) - level <= least or not theil_sen(_thinned(after)) > 0:
        return None
    end = median(last)
    if window > 1 and not _stays_up(after, level, end - level, thresholds.noisy * size):
        return None
    return best + _last_lowest(validation[best : best + window]), (end - level) / size, end


def _last_lowest(values: FloatArray) -> int:
    """Index of the lowest, the last of equal ones: until there nothing had become worse."""
    return len(values) - 1 - int(np.argmin(values[::-1]))


def _stays_up(after: FloatArray, level: float, rise: float, least: float) -> bool:
    """Has it risen far, and not once come halfway back in the later half? Noise wanders back."""
    return rise > least and float(after[len(after) // 2 :].min()) > level + 0.5 * rise


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
