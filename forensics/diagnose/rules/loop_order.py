"""The training loop does things in another order than it should.

What it detects
    What the recorder's hooks saw a loop of one's own do, a finding each: the clip comes after the
    step; the optimizer is stepped without the scaler that scaled the loss; the scaler is not
    updated, or updated again, and the run ended on that; the recorder is called at another place
    than its rows mean, so that norms are of the wrong gradients, or rows of the wrong steps.

Why it matters
    A clip after the step limits nothing. A step without the scaler applies gradients that are
    65,536 times too large, and nothing is ever skipped. Rows of wrong steps mislead every other
    rule.

Evidence
    ``loop`` in run.json: in how many steps it was seen, and in which first.

Silent when
    It was seen in fewer than 3 steps (but for what ended the run), gradients() is never called at
    all, steps without an optimizer's are no regular part of all, or the log is of the reference
    loop or of another program: only the recorder's hooks see this. A step that is repeated with
    the same gradients is repeated-update's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import steps
from forensics.frozen import dataclass

MANY_MICRO = 5
"""Taken steps, equally far apart, that make micro-batches of the rows between them."""


@dataclass(frozen=True)
class Thresholds:
    """How often makes a habit of it."""

    least: int = threshold(3, "steps; once or twice may be a retry by hand, or the last step")


@dataclass(frozen=True)
class _Fault:
    """One way to go wrong: ``told`` goes on after "in N steps from M on "."""

    severity: Severity
    told: str
    cause: str
    remedy: str
    once: bool = False


_FAULTS: Mapping[str, _Fault] = {
    "late_clip": _Fault(
        Severity.ERROR,
        "the gradients were clipped after the optimizer had used them: the clip limited nothing",
        "clip_grad_norm_ stands below optimizer.step().",
        "Clip between backward (with a scaler: unscale_) and the step.",
    ),
    "bypassed": _Fault(
        Severity.ERROR,
        "the optimizer was stepped without the scaler that had scaled the loss: updates are too "
        "large by the loss scale (Adam hides that), and non-finite gradients are applied",
        "The loop calls optimizer.step() where it should call scaler.step(optimizer).",
        "Call scaler.step(optimizer), then scaler.update(): it unscales, and skips what is not "
        "finite.",
    ),
    "unupdated": _Fault(
        Severity.ERROR,
        "scaler.update() was not called after scaler.step(): the next use of the scaler raised",
        "scaler.update() is missing, or a branch of the loop leaves it out.",
        "Call scaler.update() once after the step of every iteration, also where it was skipped.",
        once=True,
    ),
    "updated_twice": _Fault(
        Severity.ERROR,
        "scaler.update() was called again without a step in between, which raises",
        "scaler.update() stands in two places, or in an iteration without unscale_ and step.",
        "Call scaler.update() once for the steps of an iteration, and only after one.",
        once=True,
    ),
    "late_gradients": _Fault(
        Severity.WARNING,
        "gradients() was called after the optimizer's step: the norms before the clip in this log "
        "are those after it",
        "recorder.gradients() stands below optimizer.step().",
        "Call recorder.gradients(loss) before the clip, with a scaler right after unscale_.",
    ),
    "unstepped": _Fault(
        Severity.WARNING,
        "end_step() was called though no optimizer had stepped: each micro-batch has a row, and "
        "most rows look skipped",
        "recorder.end_step() stands inside the accumulation over micro-batches.",
        "Call gradients() and end_step() once an optimizer step, where the optimizer steps.",
    ),
    "unended": _Fault(
        Severity.INFO,
        "a second update began before end_step(): the row holds both",
        "An iteration ends without recorder.end_step(), such as by continue.",
        "Call recorder.end_step() at the end of every step, whichever way it takes.",
    ),
    "remeasured": _Fault(
        Severity.INFO,
        "gradients() was called more than once before the step: the last call counts, and each "
        "waits for the device",
        "recorder.gradients() stands inside the accumulation over micro-batches.",
        "Call it once, after the last backward.",
    ),
    "unmeasured": _Fault(
        Severity.INFO,
        "the optimizer stepped and gradients() was not called: norms and non-finite gradients "
        "are missing there",
        "A branch of the loop steps without recorder.gradients().",
        "Call recorder.gradients(loss) before every clip and step.",
    ),
}


@rule(thresholds=Thresholds, parts=("manifest",))
def loop_order(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each kind that was seen often enough."""
    manifest = signals.run.manifest
    seen = {} if manifest is None else manifest.loop
    for kind, fault in _FAULTS.items():
        count = seen.get(f"{kind}_steps", 0)
        if count < (1 if fault.once else thresholds.least) or _is_meant(signals, kind, count):
            continue
        first = seen.get(f"first_{kind}", 0)
        often = fault.told if fault.once else f"in {steps(count)} from {first:,} on {fault.told}"
        yield Finding(
            rule="loop-order",
            severity=fault.severity,
            message=often,
            first_step=first,
            last_step=first if fault.once else max(first, signals.last_step),
            evidence=(Evidence(signal=f"loop.{kind}", steps=(first,), values=(float(count),)),),
            cause=fault.cause,
            remedy=fault.remedy,
        )


def _is_meant(signals: Signals, kind: str, count: int) -> bool:
    """Is it how this loop is, rather than a slip?"""
    if kind == "unmeasured":
        return count >= len(signals)  # it does without gradients() altogether
    if kind == "unstepped":
        return not _every_so_many(signals)
    return False


def _every_so_many(signals: Signals) -> bool:
    """Is one row in so many a step that was taken, the same number throughout?"""
    gaps = np.diff(np.flatnonzero(~signals.skipped))
    return len(gaps) >= MANY_MICRO and gaps[0] > 1 and bool(np.mean(gaps == gaps[0]) >= 0.9)
