"""The verdict: which finding is the root, and which are its consequences."""

from __future__ import annotations

from forensics.diagnose.finding import Finding, RuleOutcome, Severity, Status, Verdict
from forensics.diagnose.signals import Signals


def weigh(
    signals: Signals, findings: tuple[Finding, ...], outcomes: tuple[RuleOutcome, ...]
) -> Verdict:
    """Weigh the findings, most severe first, into one verdict."""
    del outcomes
    if len(signals) == 0:
        return Verdict(status=Status.INSUFFICIENT_DATA, summary="the log has no rows")
    if not findings or findings[0].severity < Severity.WARNING:
        return Verdict(status=Status.HEALTHY, summary="healthy")
    return Verdict(status=Status.FAULTY, summary=findings[0].message, root=0)
