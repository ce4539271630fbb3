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
    No skips are logged, the loss scale fell in that step or the next ones are finite beside a
    scaler (then it did skip), or only the norm overflowed and the clip made the update 0.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.bad_parameters import born, culprit_of
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.onset import applied
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import Episode, told_episodes
from forensics.diagnose.signals import Signals
from forensics.diagnose.unguarded import guard
from forensics.diagnose.whence import whence
from forensics.diagnose.wording import number, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, IntArray


@dataclass(frozen=True)
class Thresholds:
    """Where the aftermath is looked for."""

    gap: int = threshold(100, "recovery window of the spike rules, so that episodes agree")
    after: int = threshold(3, "a NaN weight shows in the next loss; 3 rows allow for accumulation")
    recovers: int = threshold(40, "rows; a calibration from 2^32 takes up to 34 overflows in a row")


@rule(thresholds=Thresholds, needs=("grad_l2_pre_clip", "skipped"))
def nonfinite_step_applied(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding an episode of steps that were taken with a bad gradient."""
    rows = np.flatnonzero(_taken(signals))
    for episode in told_episodes(rows, thresholds.gap):
        inside = rows[(rows >= episode.first) & (rows <= episode.last)]
        yield _finding(signals, episode, inside, _poisoned(signals, inside, thresholds))


def _taken(signals: Signals) -> BoolArray:
    """Rows with a bad norm that were taken and may have changed a weight, shape (rows,)."""
    taken = applied(signals, slice(None)) & ~signals.norm_overflowed
    taken[signals.scaling.falls.rows] = False
    taken &= ~signals.scaling.routine  # over soon, so a scaler skipped what the log says was taken
    emptied = (signals.norm == np.inf) & (signals.post_norm == 0.0)
    return np.asarray(taken & ~emptied, dtype=bool)


def _poisoned(signals: Signals, rows: IntArray, thresholds: Thresholds) -> int | None:
    """The first of the rows after which nothing is finite for a while; None where the run goes on.

    Where the log ends soon after, a scaler may have skipped the step; without one it was taken.
    """
    finite = np.flatnonzero(np.isfinite(signals.norm) & ~signals.loss_bad)
    at = np.searchsorted(finite, rows, side="right")
    following = np.append(finite, len(signals) + thresholds.recovers)[at]
    dead = following - rows > thresholds.recovers
    rest = len(signals) - 1 - rows
    sure = (rest >= thresholds.after) | (signals.scaling.active is False)
    hit = rows[dead & sure]
    return int(hit[0]) if len(hit) else None


def _finding(signals: Signals, episode: Episode, rows: IntArray, poisoned: int | None) -> Finding:
    row = episode.first if poisoned is None else poisoned
    first = signals.step_at(row)
    culprit = culprit_of(signals, first)
    kind = number(float(signals.norm[row]))
    later = int((rows > row).sum())
    more = f"; {steps(later)} more until {signals.step_at(episode.last):,}" if later else ""
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
        cause=_cause(signals, first, poisoned is not None),
        remedy=_remedy(signals, first, poisoned is not None),
    )


def _message(kind: str, step: int, poisoned: bool) -> str:
    if poisoned:
        return f"step {step:,} was taken with a gradient norm of {kind}"
    return (
        f"step {step:,} is logged as taken with a gradient norm of {kind}, yet the run stays finite"
    )


def _cause(signals: Signals, step: int, poisoned: bool) -> str:
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
    return (
        f"Nothing checks the gradients before the optimizer steps. {born(signals, step)}".rstrip()
    )


def _remedy(signals: Signals, step: int, poisoned: bool) -> str:
    if not poisoned:
        return "Log skips from what the scaler found (its scale falls), not from calls to step()."
    call = guard(scaling=bool(signals.scaling.active))
    return f"{whence(signals.run, step)}; {call}."
