"""A non-finite gradient went into the weights.

What it detects
    Steps with a gradient norm of NaN or Inf that the log says were taken. Where the next steps are
    non-finite too the weights are poisoned; where they are not, the optimizer skipped in silence.
    One finding an episode; episodes closer than 100 rows are one.

Why it matters
    This is the step that killed the run: every weight that took the update is NaN, and no later
    step brings it back. A guard, or the skip of a loss scaler, would have cost one step.

Evidence
    The norm, the loss and whether it was skipped, around that step.

Silent when
    No skips are logged, the loss scale fell in that step (then the scaler did skip it), or only
    the norm overflowed and the clip made the update 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from forensics.diagnose.bad_parameters import culprit_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.onset import applied
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number, steps
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """Where the aftermath is looked for."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")
    after: int = threshold(3, "a NaN weight shows in the next loss; 3 rows allow for accumulation")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip", "skipped"))
def nonfinite_step_applied(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of steps that were taken with a bad gradient."""
    rows = np.flatnonzero(_taken(signals))
    bad = signals.loss_bad | signals.norm_bad
    for episode in told_episodes(rows, thresholds.gap):
        inside = rows[(rows >= episode.first) & (rows <= episode.last)]
        poisoned = _poisoned(signals, bad, inside, thresholds.after)
        yield _finding(signals, episode, poisoned)


def _taken(signals: Signals) -> BoolArray:
    """Rows with a bad norm that were taken and may have changed a weight, shape (rows,)."""
    taken = applied(signals, slice(None)) & ~signals.norm_overflowed
    taken[signals.scaling.falls.rows] = False
    emptied = np.isposinf(signals.norm) & (signals.post_norm == 0.0)
    return np.asarray(taken & ~emptied, dtype=bool)


def _poisoned(signals: Signals, bad: BoolArray, rows: np.ndarray, after: int) -> int | None:
    """The first of the rows after which nothing stays finite, or which ends the log; or None."""
    following = rows[:, None] + np.arange(1, after + 1)
    inside = following < len(signals)
    hit = (bad[np.minimum(following, len(signals) - 1)] & inside).any(axis=1) | ~inside.any(axis=1)
    return int(rows[np.argmax(hit)]) if hit.any() else None


def _finding(signals: Signals, episode: Episode, poisoned: int | None) -> Finding:
    row = episode.first if poisoned is None else poisoned
    first = signals.step_at(row)
    culprit = culprit_of(signals, first)
    kind = number(float(signals.norm[row]))
    count = "" if episode.rows == 1 else f"; {steps(episode.rows)} like it until {{}}"
    more = count.format(f"{signals.step_at(episode.last):,}")
    near = [row - 1, row, row + 1, row + 2]
    return Finding(
        rule="nonfinite-step-applied",
        severity=Severity.INFO if poisoned is None else Severity.CRITICAL,
        message=_message(kind, first, poisoned is not None) + more,
        first_step=first,
        last_step=signals.step_at(episode.last),
        subject=culprit.name if culprit is not None else "",
        evidence=(
            signals.evidence("grad_l2_pre_clip", signals.norm, near),
            signals.evidence("loss", signals.loss, near),
            signals.evidence("skipped", signals.column("skipped"), near),
        ),
        cause=_cause(signals, poisoned is not None),
        remedy=_remedy(signals, first, poisoned is not None),
    )


def _message(kind: str, step: int, poisoned: bool) -> str:
    if poisoned:
        return f"step {step:,} was taken with a gradient norm of {kind}"
    return (
        f"step {step:,} is logged as taken with a gradient norm of {kind}, yet the run stays finite"
    )


def _cause(signals: Signals, poisoned: bool) -> str:
    if not poisoned:
        return (
            "The log says too little: a fused optimizer skips inside its kernel, a scaler skips "
            "where optimizer.step() is not reached, or only unused weights were hit."
        )
    if signals.scaling.active:
        return (
            "The step went past the scaler: optimizer.step() instead of scaler.step(optimizer), or "
            "gradients that were changed after unscale_()."
        )
    return "Nothing checks the gradients before the optimizer steps."


def _remedy(signals: Signals, step: int, poisoned: bool) -> str:
    if not poisoned:
        return "Log skips from what the scaler found (its scale falls), not from calls to step()."
    call = (
        "step through scaler.step(optimizer) and scaler.update() on every path"
        if signals.scaling.active
        else "skip the step where the norm before the clip is not finite"
    )
    return f"Resume from a checkpoint before step {step:,}; {call}."
