"""Validation is NaN or Inf while training is finite.

What it detects
    A validation loss written as NaN or Inf at a step where the last training loss is finite. One
    finding an episode of validations in a row.

Why it matters
    Evaluation uses what training does not: running statistics of BatchNorm, an EMA of the
    weights, other data, no autocast. The training curve looks sound, and every model that is
    selected by this number is selected by nothing.

Evidence
    The validation losses around the first bad one, and the training loss beside them.

Silent when
    The training loss is non-finite too: then validation only shows it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import runs_of
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, span
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """When it is more than one bad metric."""

    lasting: int = threshold(2, "validations in a row; one alone may be one bad batch of its data")
    told: int = threshold(12, "a reader at night reads no more")


@rule(thresholds=Thresholds, needs=("val_loss", "loss"))
def nonfinite_validation(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode."""
    rows = np.flatnonzero(signals.present("val_loss"))
    bad = ~np.isfinite(signals.column("val_loss")[rows]) & _training_is_finite(signals)[rows]
    first, last = runs_of(bad)
    for a, b in list(zip(first.tolist(), last.tolist(), strict=True))[: thresholds.told]:
        yield _finding(signals, rows, a, b, thresholds.lasting)


def _training_is_finite(signals: Signals) -> BoolArray:
    """Is the last training loss written at or before each row finite?"""
    written = np.flatnonzero(signals.present("loss"))
    if len(written) == 0:
        return np.zeros(len(signals), dtype=bool)
    at = np.searchsorted(written, np.arange(len(signals)), side="right") - 1
    return np.where(at >= 0, np.isfinite(signals.loss[written[np.maximum(at, 0)]]), False)


def _finding(signals: Signals, rows: IntArray, a: int, b: int, lasting: int) -> Finding:
    first, last = signals.step_at(int(rows[a])), signals.step_at(int(rows[b]))
    validation = signals.column("val_loss")
    value = number(float(validation[rows[a]]))
    to_end = b == len(rows) - 1
    changed = a > 0 and to_end and b - a + 1 >= lasting
    loss = signals.loss[: int(rows[a]) + 1]
    training = number(float(loss[np.isfinite(loss)][-1]))
    when = f"from step {first:,} on" if to_end and b > a else f"at {span(first, last)}"
    count = f", {b - a + 1:,} validations" if b > a else ""
    return Finding(
        rule="nonfinite-validation",
        severity=Severity.ERROR if changed else Severity.WARNING,
        message=(
            f"validation loss is {value} {when}{count}, while training loss is finite ({training})"
        ),
        first_step=first,
        last_step=signals.last_step if to_end else last,
        evidence=(
            signals.evidence("val_loss", validation, rows[max(0, a - 2) : a + 3]),
            signals.evidence("loss", signals.loss, rows[max(0, a - 2) : a + 3]),
        ),
        cause=_cause(signals, a == 0),
        remedy=_remedy(a == 0, first),
    )


def _cause(signals: Signals, always: bool) -> str:
    if always:
        return (
            "Non-finite from the first validation: the metric itself (a division by 0, classes "
            "without samples, a log of 0), or evaluation in another precision."
        )
    ema = " or the EMA of the weights" if signals.has("ema_l2_distance") else ""
    return (
        f"Something only evaluation uses has become non-finite: running statistics of BatchNorm"
        f"{ema}, after one extreme batch that training itself survived."
    )


def _remedy(always: bool, first: int) -> str:
    if always:
        return "Evaluate one batch by hand in fp32 and look at what the metric divides by."
    return (
        f"Look for non-finite buffers in the checkpoints around step {first:,}; reset the running "
        f"statistics or the EMA from the weights, which are sound, and check that batch."
    )
