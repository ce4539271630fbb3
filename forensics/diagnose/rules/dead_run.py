"""From some step on nothing was learned.

What it detects
    Every step from one on until the end of the log has a non-finite loss or norm, or was skipped,
    and how much of the run that is.

Why it matters
    It is the damage itself: what the run cost after it was lost, and where to resume before.

Evidence
    Loss, norm and loss scale at the last step that was taken and after it.

Silent when
    Fewer than 5 steps are dead, or the skips are no more in a row than a loss scaler may need to
    find its scale (17 from 2^16, and those of its calibration).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.optimizer_facts import NEVER_STEPPED, STEP_IT, never_stepped
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.series import last_true
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import percent
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray


@dataclass(frozen=True)
class Thresholds:
    """How many steps make a dead end."""

    least: int = threshold(5, "one bad batch and what a logger averages with it span up to 4 rows")


@rule(thresholds=Thresholds, needs=("loss|grad_l2_pre_clip|skipped",))
def dead_run(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for the dead end of the log."""
    written = (
        signals.present("loss") | signals.present("grad_l2_pre_clip") | signals.present("skipped")
    )
    bad = signals.loss_bad | signals.norm_bad
    dead = bad | signals.skipped
    start = last_true(written & ~dead) + 1
    tail = start + np.flatnonzero(dead[start:])
    if len(tail) < thresholds.least or _is_routine(signals, start, bad, len(tail)):
        return
    first = int(tail[0])
    share = percent(len(tail) / max(int(written.sum()), 1))
    lost = signals.told_rows(len(tail))
    forgotten = never_stepped(signals)
    yield Finding(
        rule="dead-run",
        severity=Severity.CRITICAL,
        message=f"nothing was learned from step {signals.step_at(first):,} on: all "
        f"{lost} until the end {_fate(signals, tail)} ({share} of the run)"
        f"{', with finite loss and norm: the optimizer never stepped' if forgotten else ''}",
        first_step=signals.step_at(first),
        last_step=signals.last_step,
        evidence=tuple(
            signals.evidence(name, values, [first - 1, first, int(tail[-1])])
            for name, values in (
                ("loss", signals.loss),
                ("grad_l2_pre_clip", signals.norm),
                ("scaler_scale", signals.scale),
            )
        ),
        cause=NEVER_STEPPED if forgotten else "A consequence: what went bad first says why.",
        remedy=STEP_IT if forgotten else _remedy(signals, first),
    )


def _is_routine(signals: Signals, start: int, bad: BoolArray, length: int) -> bool:
    """Can the tail be a scaler at work? Its steps are all skips, and no more than it may need."""
    if signals.loss_bad[start:].any():
        return False
    scaling = signals.scaling
    if scaling.active is False and bad[start:].any():
        return False
    runs = scaling.runs
    if signals.has("skipped") and len(runs.first) and runs.last[-1] >= start:
        return bool(runs.length[-1] < runs.limit[-1])
    if not signals.has("skipped") and scaling.active is not False:
        return bool(scaling.routine[start:][bad[start:]].all())
    return False


def _fate(signals: Signals, tail: np.ndarray) -> str:
    skipped = signals.skipped[tail]
    bad = signals.loss_bad[tail] | signals.norm_bad[tail]
    if skipped.all():
        return "were skipped"
    return "are non-finite" if bad.all() else "are non-finite or were skipped"


def _remedy(signals: Signals, first: int) -> str:
    healthy = [
        c.step for c in signals.run.checkpoints if c.healthy and c.step <= signals.step_at(first)
    ]
    if healthy:
        return (
            f"Resume from the checkpoint before step {healthy[-1]:,}, the last healthy one, after "
            f"mending what went bad first."
        )
    return "Mend what went bad first and start before it; an alarm on skips would stop such a run."
