"""The optimizer was stepped twice with the same gradients.

What it detects
    Steps in which the recorder saw one optimizer's ``step()`` called again while none of its
    gradients had been written since its last call. One finding for the run.

Why it matters
    Every update is applied twice: the learning rate is twice what it says, weight decay too, and
    Adam's moments and step count run ahead of the schedule. Nothing in the log looks wrong.

Evidence
    ``loop`` in run.json: how many steps, and the first of them.

Silent when
    Another backward came in between (several losses or players, one optimizer), the gradients were
    cleared, or the log is of the reference loop or of another program: only the recorder's hooks
    see this.
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import steps
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """How often makes an error of it."""

    least: int = threshold(3, "once or twice may be a retry after a failure, by hand")


@rule(thresholds=Thresholds, parts=("manifest",))
def repeated_update(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield at most one finding."""
    manifest = signals.run.manifest
    count = 0 if manifest is None else manifest.loop.get("reapplied_steps", 0)
    if manifest is None or count < 1:
        return
    first = manifest.loop.get("first_reapplied", 0)
    often = count >= thresholds.least
    yield Finding(
        rule="repeated-update",
        severity=Severity.ERROR if often else Severity.WARNING,
        message=f"in {steps(count)} from {first:,} on the optimizer was stepped again with the "
        "very same gradients: each update was applied more than once",
        first_step=first,
        last_step=max(first, signals.last_step) if count > 1 else first,
        evidence=(
            Evidence(signal="steps with a repeated update", steps=(first,), values=(float(count),)),
        ),
        cause="optimizer.step() is called in two places of the loop (a callback, a helper, both "
        "scaler.step(optimizer) and optimizer.step()).",
        remedy="Call optimizer.step() once for each backward().",
    )
