"""Every step seems to see the same data.

What it detects
    A loss that falls to a hundredth of its start without any noise: it is lower than in the step
    before in 98 % of the steps until then, and those are 50 or more.

Why it matters
    A data loader that returns one batch again and again makes the best-looking curve there is.
    Nothing but these samples was learned. (It is sound where the batch is the whole data set, or to
    show that a model can overfit one batch.)

Evidence
    The loss at the start, half-way down and at the end.

Silent when
    Dropout, other batches or any other noise makes the loss go up now and then; the loss has not
    fallen so far; rows stand for several steps or for running means; or it is not positive.
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.noiseless_fall import LEAST, SHAPE, noiseless_fall
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, percent, steps
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """How smooth, how far and how long."""

    down: float = threshold(SHAPE[0], "other batches bring noise, however large they are")
    left: float = threshold(SHAPE[1], "share of the start; what is known so well is known by heart")
    rows: int = threshold(LEAST, "a large model may know a batch by heart after fewer steps")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    count = len(signals.finite_loss.values)
    if signals.interval > 1:
        return "rows that cover several steps"
    return f"too few losses ({thresholds.rows} needed)" if count < thresholds.rows else ""


@rule(thresholds=Thresholds, needs=("loss",), too_little=_too_little)
def repeated_batch(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    fall = signals.derived(noiseless_fall, thresholds.down, thresholds.left, thresholds.rows)
    if fall is None:
        return
    loss = signals.finite_loss
    rows = [int(loss.rows[at]) for at in (0, fall.rows // 2, fall.rows - 1, len(loss.values) - 1)]
    yield Finding(
        rule="repeated-batch",
        severity=Severity.INFO,
        message=(
            f"the loss falls without noise, from {number(float(loss.values[0]))} to "
            f"{number(float(loss.values[fall.rows - 1]))} in {steps(fall.rows)}, and went down in "
            f"{percent(fall.down)} of them: each seems to see the same data"
        ),
        first_step=signals.step_at(0),
        last_step=signals.last_step,
        evidence=(signals.evidence("loss", signals.loss, rows),),
        cause=(
            "The batch is the whole data set, or one batch comes again and again: an iterator made "
            "anew in each step, an index that does not move, a seed that is set each time."
        ),
        remedy=(
            "Nothing to do if one batch is meant. Else compare the first samples of three "
            "successive batches, and log a validation loss: it does not fall with this one."
        ),
    )
