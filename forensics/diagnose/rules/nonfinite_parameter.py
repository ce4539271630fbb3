"""The first parameter whose gradient or weight went bad.

What it detects
    In the first bad step of an episode, the parameter nearest the origin: of non-finite gradients
    the one that arrives first in backward, of non-finite weights the first in the network; with the
    still-finite ones around it. It reads the snapshots, else the name in the log's skip reason,
    else what checkpoints say about their tensors. One finding an episode.

Why it matters
    It says where to look. The order of arrival matters: everything below the origin is bad too,
    and after the clip every parameter is.

Evidence
    How many elements of it are non-finite, at that snapshot and the one before.

Silent when
    Nothing is non-finite, or a loss scaler dealt with the overflow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.bad_parameters import (
    Culprit,
    bad_in_checkpoint,
    culprit_of,
    elements,
    loss_at,
    nonfinite_evidence,
    origin,
    steps_named_in_log,
    steps_with_bad,
)
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.onset import FEW, went_on_after
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, merged, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import earliest_start
from forensics.diagnose.whence import whence
from forensics.frozen import dataclass
from forensics.runlog.steps import IntArray

_PARTS = ("params.grad_nonfinite|params.value_nonfinite|skip_reason|checkpoints",)


@dataclass(frozen=True)
class Thresholds:
    """When two bad stretches are one."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")


@rule(thresholds=Thresholds, parts=_PARTS)
def nonfinite_parameter(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode; where no step tells, one for the first bad checkpoint."""
    weights = steps_with_bad(signals, "value_nonfinite")
    gradients = steps_with_bad(signals, "grad_nonfinite")
    bad = merged(weights, gradients, steps_named_in_log(signals))
    for episode in told_episodes(bad, thresholds.gap):
        culprit = culprit_of(signals, episode.first)
        if culprit is not None:
            yield _finding(signals, episode, culprit, weights)
    if len(bad) == 0:
        yield from _in_checkpoints(signals)


def _finding(signals: Signals, episode: Episode, culprit: Culprit, weights: IntArray) -> Finding:
    poisoned = bool(((weights >= episode.first) & (weights <= episode.last)).any())
    over = not went_on_after(signals, episode.last)
    return Finding(
        rule="nonfinite-parameter",
        severity=_severity(episode, poisoned, over),
        message=_message(episode, culprit),
        first_step=episode.first,
        last_step=max(episode.last, signals.last_step) if over else episode.last,
        earliest_step=_earliest(signals, episode, culprit),
        subject=culprit.name,
        evidence=nonfinite_evidence(signals, culprit, episode.first),
        cause=_cause(culprit, loss_at(signals, episode.first)),
        remedy=_remedy(signals, culprit, episode.first, poisoned),
    )


def _earliest(signals: Signals, episode: Episode, culprit: Culprit) -> int | None:
    """The update that may have spoilt a weight first; every bad gradient has its own snapshot."""
    matrix = signals.param_matrix("value_nonfinite")
    if culprit.what != "weight" or matrix is None:
        return None
    taken = matrix.steps[matrix.present.any(axis=1)]
    return earliest_start(taken, int(np.searchsorted(taken, episode.first)), in_update=True)


def _severity(episode: Episode, poisoned: bool, over: bool) -> Severity:
    """Bad weights, or a run that never came back: dead. A few bad gradients: a warning."""
    if poisoned or (over and episode.rows > 1):
        return Severity.CRITICAL
    return Severity.WARNING if episode.rows <= FEW and episode.folded == 1 else Severity.ERROR


def _message(episode: Episode, culprit: Culprit) -> str:
    what = f"{culprit.what} of {culprit.name}" if culprit.what == "gradient" else culprit.name
    count = f" ({elements(culprit.elements)})" if culprit.elements else ""
    text = f"{what} is the first non-finite one at step {episode.first:,}{count}"
    if culprit.everywhere:
        return f"{text}; all {culprit.total:,} parameters are bad in that step"
    others = len(culprit.bad) - 1
    more = f", with {others:,} more of {culprit.total:,}" if others else ""
    beside = [
        f"{name} {where}"
        for name, where in (
            (culprit.finite_before, "before it"),
            (culprit.finite_after, "after it"),
        )
        if name
    ]
    finite = f"; still finite: {', '.join(beside)}" if beside else ""
    return text + more + finite


def _cause(culprit: Culprit, loss: float) -> str:
    if culprit.what == "weight":
        if culprit.everywhere:
            return "The update before wrote it into every weight: its gradient or learning rate."
        return (
            "A weight that was never initialised, loaded bad, or hit by an update or a hardware "
            "fault of its own: the other weights are finite."
        )
    return origin(culprit, loss)


def _remedy(signals: Signals, culprit: Culprit, step: int, poisoned: bool) -> str:
    if culprit.what == "weight" and not culprit.everywhere:
        return f"Look at how {culprit.name} is initialised, loaded and updated; resume from before."
    again = f"{whence(signals.run, step)}: the weights are bad. " if poisoned else ""
    return (
        f"{again}Look at the operations that use {culprit.name}: log, sqrt, division or exp near "
        f"the ends of their domain; anomaly mode on step {step:,} names the one."
    )


def _in_checkpoints(signals: Signals) -> Iterator[Finding]:
    """The first checkpoint that holds a bad parameter."""
    before = None
    for checkpoint in signals.run.checkpoints:
        names = bad_in_checkpoint(checkpoint, ("param",))
        if not names:
            before = checkpoint.step if checkpoint.healthy else before
            continue
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        since = f"; the one before step {before:,} is finite" if before is not None else ""
        yield Finding(
            rule="nonfinite-parameter",
            severity=Severity.CRITICAL,
            message=f"{names[0]}{more} non-finite in the checkpoint before step "
            f"{checkpoint.step:,}{since}",
            first_step=min(checkpoint.step, signals.last_step),
            last_step=signals.last_step,
            earliest_step=before,
            subject=names[0],
            cause="A non-finite update went into the weights after the last finite checkpoint.",
            remedy="Resume from the last finite checkpoint: the first bad step lies between the "
            "two, and a replay from there finds it.",
        )
        return
