"""The loss falls below zero, and on without end.

What it detects
    A loss that ends below 0 at its lowest, and whose fall does not slow down: the last quarter of
    the run has a fifth of it or more. Where it has also passed ten times its size at the start (and
    10), and the gradient norm has grown tenfold, that is a warning; else an info, and an open
    question beside the verdict.

Why it matters
    Training that succeeds slows down, and so does every loss that has a lowest value. One that
    falls faster and faster has none, so the optimizer goes where the numbers are large: cross-
    entropy with the wrong sign makes a model surely wrong, and looks like quick progress.

Evidence
    Medians of the loss over the run, and of the gradient norm where it is logged.

Silent when
    The loss ends above 0 or slows down, as likelihoods, distances in decibels and contrastive
    losses do; it fell by less than 1, by less than half of its size at the start or by less than 20
    times its noise; there are fewer than 100 losses; or the log holds rewards.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from forensics.diagnose.endless_fall import LEAST, SHAPE, EndlessFall, endless_fall
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.loss_course import course
from forensics.diagnose.reward_driven import no_measure
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import factor, number, percent
from forensics.frozen import dataclass

CLASSES = (math.log(2), math.log(1e6))
"""Sizes of a first loss that an untrained classifier's cross-entropy can have."""


@dataclass(frozen=True)
class Thresholds:
    """When a fall has no end, and when that is no success."""

    late: float = threshold(
        SHAPE,
        "share of the fall in the last quarter; a line has 25 %, a fit that settles under 5 %",
    )
    times: float = threshold(
        10.0, "times its size at the start; likelihoods in nats a dimension stay below"
    )
    norm: float = threshold(10.0, "growth of the norm; near a minimum it shrinks")


def _too_little(signals: Signals, thresholds: Thresholds) -> str:
    del thresholds
    if why := no_measure(signals):
        return why
    count = len(signals.finite_loss.values)
    return f"too few losses ({LEAST} needed)" if count < LEAST else ""


@rule(thresholds=Thresholds, needs=("loss",), too_little=_too_little)
def unbounded_loss(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    fall = signals.derived(endless_fall, thresholds.late)
    if fall is None:
        return
    far = -fall.end >= thresholds.times * max(1.0, abs(fall.start))
    serious = far and fall.norm >= thresholds.norm
    path = course(signals)
    rows = [fall.first, *path.rows[path.bounds[[0, len(path) // 2, len(path) - 1]]].tolist()]
    yield Finding(
        rule="unbounded-loss",
        severity=Severity.WARNING if serious else Severity.INFO,
        message=_message(fall),
        first_step=signals.step_at(fall.first),
        last_step=signals.last_step,
        evidence=(
            signals.evidence("loss", signals.loss, [*rows, len(signals) - 1], 0.0),
            signals.evidence("grad_l2_pre_clip", signals.norm, [*rows, len(signals) - 1]),
        ),
        cause=_CAUSE if serious else _PERHAPS,
        remedy=_remedy(fall),
    )


_CAUSE = (
    "What is minimised has no lowest value. A cross-entropy or a squared error cannot be below 0: "
    "its sign is wrong (a minus too many, or a term subtracted that should be added). What can be "
    "negative is here without a bound: a likelihood whose width may shrink to 0, a critic without "
    "a Lipschitz constraint, a distance that may grow for ever."
)
_PERHAPS = (
    "Sound where a reward or a likelihood is maximised that is still far from its best. A "
    "cross-entropy or a squared error cannot be below 0: its sign is wrong."
)


def _message(fall: EndlessFall) -> str:
    grown = f", while the gradient norm grew {factor(fall.norm)}" if fall.norm > 1.5 else ""
    return (
        f"the loss falls without end below 0: from {number(fall.start)} to {number(fall.end)}, "
        f"{percent(fall.late)} of it in the last quarter of the run{grown}"
    )


def _remedy(fall: EndlessFall) -> str:
    size = -fall.start
    alike = ""
    if CLASSES[0] <= size <= CLASSES[1]:
        alike = (
            f" An untrained classifier begins at the logarithm of the number of classes, and "
            f"{number(size)} is that of about {round(math.exp(size)):,}."
        )
    return (
        f"Look at the sign of the loss that backward() is called on: compute it for one batch and "
        f"compare it with its formula.{alike} If it may be negative, bound it: a least width, a "
        f"gradient penalty, a margin."
    )
