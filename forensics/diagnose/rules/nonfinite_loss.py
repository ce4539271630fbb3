"""The loss is NaN or Inf.

What it detects
    The first step whose loss is written as NaN or Inf, the last finite value before it, and how
    long it takes until every step is bad. One finding an episode; episodes closer than 100 steps
    are one.

Why it matters
    Nothing learned from a non-finite loss is worth anything, and once weights have taken such a
    step in, every later loss is non-finite too. In fp16 a smaller loss scale cannot help: the
    scale is applied after the loss.

Evidence
    The loss at the last finite steps and at the first bad ones, and the gradient norm before it.

Silent when
    The loss is finite throughout, or a cell is empty: an absent loss is not a NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import episodes
from forensics.diagnose.signals import Signals


@dataclass(frozen=True)
class Thresholds:
    """When two bad stretches are one."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")


@rule(thresholds=Thresholds, needs=("loss",))
def nonfinite_loss(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of non-finite loss."""
    bad = np.flatnonzero(signals.loss_bad)
    for first, last in episodes(bad, thresholds.gap):
        yield Finding(
            rule="nonfinite-loss",
            severity=Severity.CRITICAL,
            message=f"loss is {signals.loss[first]}",
            first_step=signals.step_at(first),
            last_step=signals.step_at(last),
            evidence=(
                signals.evidence("loss", signals.loss, [first - 2, first - 1, first, first + 1]),
            ),
        )
