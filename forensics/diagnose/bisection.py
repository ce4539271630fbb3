"""A replay of the training has located the fault.

What it detects
    The first bad step, and where in it: what ``forensics bisect`` has found by training the run
    again, and left in ``bisect.json``. Where the log shows a fault of that step, the finding of the
    log is told with it; where the log shows nothing, it is a finding of its own, and the root.

Why it matters
    A log says that and when a run went bad. Only a replay names the operator, the module, the
    source line and the samples, and proves them: it goes bad again, and it does not with one thing
    changed.

Evidence
    ``bisect.json``: the operator and its inputs in numbers, the replays of the step, the changes
    that were tried. ``forensics bisect`` prints it in full; docs/bisecting.md says how it is made.

Silent when
    There is no ``bisect.json``, it located nothing, or the log has changed since: then the report
    says so and does not use it.
"""

from __future__ import annotations

from collections.abc import Iterator

from forensics.diagnose.bisection_file import bisection_of
from forensics.diagnose.finding import Finding
from forensics.diagnose.located import finding_of
from forensics.diagnose.rule import rule
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass


@dataclass(frozen=True)
class Thresholds:
    """None: a replay went bad, or it did not."""


@rule(thresholds=Thresholds)
def bisection(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield what was located, if anything was.

    It is not one of ``RULES``: the engine weighs it after them, as it may become their root.
    """
    del thresholds
    if signals.run.bisection is None:
        return
    result, _ = bisection_of(signals.run)
    found = None if result is None else finding_of(result)
    if found is not None:
        yield found
