"""A resume that did not go on where the run had stopped.

What it detects
    Where a run was resumed (run.json says so, its clock goes back, steps repeat, or rows are
    missing): steps missing or repeated, a counter that starts again, and a learning rate, loss
    scale or loss that jumps. A loss that stays below its trend afterwards is noted: the data may
    be repeated. One finding a seam.

Why it matters
    State that was not restored shows only here: without the optimizer's moments the loss spikes,
    without the scheduler's the rate starts again, without the scaler's a run of steps is skipped.
    Rows that are missing may be the very ones that explain what follows.

Evidence
    The signal that jumps, on both sides of the seam.

Silent when
    Everything goes on as it was; the log has no regular stride, or leaves out a row at a fixed
    pace; run.json says that the missing rows could not be written (broken-log tells it). Steps that
    were done again after a resume, without a jump, are an info.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.lost_rows import explains_hole
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.seams import NEAR, Break, Seam, breaks_at, find_seams
from forensics.diagnose.series import MOST_EPISODES, median
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.steps import StepTable

_LOST_STATE = {
    "lr": "the scheduler's state, or another schedule was set",
    "scaler_scale": "the scaler's state",
    "loss": "the optimizer's moments, or the weights of a later checkpoint",
}


@dataclass(frozen=True)
class Thresholds:
    """What a hole must be to matter."""

    missing: int = threshold(2, "rows; a single one is a lost line and not a lost stretch")


@rule(thresholds=Thresholds, needs=("step",))
def resume_seam(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each seam at which something did not go on."""
    if len(signals) == 0:
        return
    yield from _restarted_counter(signals)
    found = [
        _finding(signals, seam, broken, thresholds)
        for seam in find_seams(signals)
        if (broken := breaks_at(signals, seam)) or seam.repeated or _interrupts(signals, seam)
    ]
    found.sort(key=lambda finding: (-finding.severity, finding.first_step))
    told, more = found[:MOST_EPISODES], len(found) - MOST_EPISODES
    if more > 0:
        told[-1] = replace(told[-1], message=f"{told[-1].message} (and {more} more such seams)")
    yield from sorted(told, key=lambda finding: finding.first_step)


def _interrupts(signals: Signals, seam: Seam) -> bool:
    """Are rows missing that were not merely lost on a full disk, while the run went on?"""
    before, step = signals.step_at(seam.row - 1), signals.step_at(seam.row)
    return seam.missing > 0 and not explains_hole(signals, before, step)


def _finding(signals: Signals, seam: Seam, broken: list[Break], thresholds: Thresholds) -> Finding:
    step, before = signals.step_at(seam.row), signals.step_at(seam.row - 1)
    texts = [one.text for one in broken]
    if seam.missing:
        texts.insert(0, f"no rows between steps {before:,} and {step:,}")
    if seam.repeated:
        again = "rows were" if seam.repeated > 1 else "row was"
        texts.insert(0, f"{seam.repeated:,} {again} done again from here")
    serious = any(not one.harmless for one in broken) or seam.missing >= thresholds.missing
    what = "resumed" if seam.known or seam.repeated else "interrupted"
    return Finding(
        rule="resume-seam",
        severity=Severity.WARNING if serious else Severity.INFO,
        message=f"{what} at step {step:,}: {'; '.join(texts)}",
        first_step=step,
        last_step=step,
        evidence=_evidence(signals, seam, broken),
        cause=_cause(seam, broken),
        remedy=_remedy(seam, broken, before),
    )


def _evidence(signals: Signals, seam: Seam, broken: list[Break]) -> tuple[Evidence, ...]:
    rows = [seam.row + offset for offset in (-2, -1, 0, 1, 2)]
    series = {"lr": signals.lr, "scaler_scale": signals.scale, "loss": signals.loss}
    names = list(dict.fromkeys(one.signal for one in broken)) or ["loss"] * signals.has("loss")
    return tuple(signals.evidence(name, series[name], rows) for name in names)


def _cause(seam: Seam, broken: list[Break]) -> str:
    lost = [_LOST_STATE[one.signal] for one in broken if not one.harmless]
    if lost:
        return f"Not restored: {'; '.join(lost)}."
    if any(one.harmless for one in broken):
        return "The data position was not restored, so samples come again that were learned."
    if seam.missing:
        return (
            "The rows were lost (a buffer not flushed, a file cut), or the counter went on alone."
        )
    return "The run was killed after its last checkpoint; what lay between was done again."


def _remedy(seam: Seam, broken: list[Break], before: int) -> str:
    if any(not one.harmless for one in broken):
        return (
            "Resume again from the checkpoint used and load the state of optimizer, scheduler and "
            "scaler with the weights; a checkpoint without them has to warm up anew."
        )
    if any(one.harmless for one in broken):
        return "Save the position in the data with the checkpoint and skip to it on resuming."
    if seam.missing:
        return (
            f"Look for the rows after step {before:,} in another file or in the job's output "
            "before trusting what is said about the steps around; flush the log at each row."
        )
    return "Nothing, as long as the second time line is the one that counts."


def _restarted_counter(signals: Signals) -> Iterator[Finding]:
    """The step counter began again in the same file; the rows before are another table."""
    first = signals.step_at(0)
    earlier = [t for t in signals.table.earlier if len(t) and t.step[0] <= first]
    if not earlier:
        return
    goes_on = _goes_on(earlier[-1], signals)
    yield Finding(
        rule="resume-seam",
        severity=Severity.WARNING if goes_on else Severity.INFO,
        message=f"the step counter starts again at {first:,} in the same file"
        + (
            f", but the loss goes on from {number(_last_loss(earlier[-1]))}: the run was resumed"
            if goes_on
            else ": an earlier run is in it, and only the last one is judged"
        ),
        first_step=first,
        last_step=first,
        evidence=(signals.evidence("loss", signals.loss, [0, 1, 2]),)
        if signals.has("loss")
        else (),
        cause="The counter is not part of the checkpoint."
        if goes_on
        else "A second run appended to the log of the first.",
        remedy="Save the step with the checkpoint, so that schedule and log go on from it."
        if goes_on
        else "Give each run a log of its own.",
    )


def _goes_on(earlier: StepTable, signals: Signals) -> bool:
    """Does the loss begin near where the earlier rows ended, and far from where they began?"""
    if not earlier.has("loss") or not signals.has("loss"):
        return False
    start = median(np.asarray(earlier["loss"], dtype=np.float64)[:NEAR])
    end, now = _last_loss(earlier), median(signals.loss[:NEAR])
    return bool(abs(now - end) < 0.25 * abs(start - end) and end < 0.9 * start)


def _last_loss(table: StepTable) -> float:
    return median(np.asarray(table["loss"], dtype=np.float64)[-NEAR:])
