"""Rows that the recorder could not write, and the training went on: a full disk, as a rule."""

from __future__ import annotations

import re

from forensics.diagnose.finding import Finding
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass

FILE = "steps.csv"
"""What ``run.json`` calls the log in its list of what is missing."""
_CLAUSE = re.compile(
    re.escape(FILE)
    + r": ([\d,]+) writes? failed (?:at step (\d+)|between steps (\d+) and (\d+)) \((.*)\)\Z"
)


@dataclass(frozen=True)
class LostRows:
    """Rows of one stretch of steps that were not written.

    Attributes:
        first: first step whose row failed.
        last: last one; some rows in between may have been written.
        count: how many failed.
        reason: the system's words.
        clause: as ``run.json`` says it.
    """

    first: int
    last: int
    count: int
    reason: str
    clause: str

    def told(self) -> str:
        """Which rows, and why they are not there, as a clause."""
        rows = "1 row" if self.count == 1 else f"{self.count:,} rows"
        where = f"between steps {self.first:,} and {self.last:,}"
        if self.first == self.last:
            where = f"of step {self.first:,}"
        return f"{rows} {where} could not be written ({self.reason})"


def lost_rows(signals: Signals) -> tuple[LostRows, ...]:
    """What ``run.json`` says of rows that failed, in its order."""
    manifest = signals.run.manifest
    clauses = () if manifest is None else manifest.missing
    found = ((clause, _CLAUSE.match(clause)) for clause in clauses)
    return tuple(_lost(clause, match) for clause, match in found if match is not None)


def _lost(clause: str, match: re.Match[str]) -> LostRows:
    count, alone, first, last, reason = match.groups()
    begin = int(first if alone is None else alone)
    end = begin if last is None else int(last)
    return LostRows(begin, end, int(count.replace(",", "")), reason, clause)


def explains_hole(signals: Signals, before: int, after: int) -> bool:
    """Are rows between two steps missing because they could not be written?"""
    return any(one.first < after and one.last > before for one in lost_rows(signals))


def tells_lost_rows(finding: Finding) -> bool:
    """Is it the finding about rows that could not be written? It says nothing of the training."""
    return finding.rule == "broken-log" and finding.subject == FILE
