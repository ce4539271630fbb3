"""What is new in the diagnosis of a run that goes on."""

from __future__ import annotations

from forensics.diagnose.finding import Diagnosis, Finding, Severity
from forensics.frozen import dataclass


@dataclass(frozen=True)
class _Told:
    """How far one rule's episodes on one subject are told."""

    last_step: int
    severity: Severity


class News:
    """Tells findings once each: again only where a new episode begins, or one gets worse.

    An episode is known by its rule and subject, and by where it ends: its first step may still
    move while the run goes on.
    """

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], _Told] = {}

    def forget(self) -> None:
        """Another run has begun: everything is new."""
        self._told.clear()

    def of(self, diagnosis: Diagnosis) -> list[Finding]:
        """The findings that were not told before, in order of their first step."""
        new: list[Finding] = []
        for finding in sorted(diagnosis.findings, key=lambda f: (f.first_step, -f.severity)):
            key = (finding.rule, finding.subject)
            told = self._told.get(key)
            if told is None or _is_new(finding, told):
                new.append(finding)
            last = max(finding.last_step, told.last_step if told else finding.last_step)
            worst = max(finding.severity, told.severity if told else finding.severity)
            self._told[key] = _Told(last, worst)
        return new


def _is_new(finding: Finding, told: _Told) -> bool:
    worse = finding.severity > told.severity and finding.last_step >= told.last_step
    return worse or finding.first_step > told.last_step
