"""The log is damaged: lines cut, bytes lost, cells that are no numbers.

What it detects
    What the reader had to mend: a torn last line, NUL bytes, rows glued together, cells that do
    not parse, headers in the middle, rows out of order; parts of the run that cannot be read; rows
    that the recorder could not write; an end that run.json says the run went beyond; and a loss or
    gradient norm that never changes. One finding a kind of damage.

Why it matters
    Every other rule reads this log. Damage shows where a machine went down or a disk was full,
    and a hole in the data must not be taken for a change in the training.

Evidence
    The lines and steps that were mended, by the reader's word.

Silent when
    The format alone is unusual and nothing was lost (line ends, byte-order mark, separators,
    another spelling of NaN). A torn last line is an info: that is how a killed run ends; so are
    one or two odd cells or lines.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from forensics.diagnose.blocks import blocks
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.lost_rows import FILE, LostRows, explains_hole, lost_rows
from forensics.diagnose.rule import rule, threshold
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import number
from forensics.frozen import dataclass
from forensics.runlog.steps import Repair

DAMAGE = frozenset({"nul-bytes", "glued-rows", "torn-rows", "broken-manifest", "broken-part"})
"""Kinds that are damage however few they are."""
HABITS = frozenset(
    {"torn-last-line", "doubtful-last-cell", "torn-gzip", "torn-snapshots", "short-rows"}
    | {"bad-encoding", "unordered-steps", "repeated-header"}
)
"""Kinds that a killed run or its logger leaves behind now and then, at next to no cost."""
ELSEWHERE = frozenset({"repeated-steps", "abandoned-steps", "second-run"})
"""Kinds that resume-seam tells."""
_ADVICE = {
    "torn-last-line": (
        "The process was killed while it wrote the line.",
        "Nothing; only that row is lost.",
    ),
    "nul-bytes": (
        "The machine went down, or the disk was full, before the file's last blocks were written.",
        "Take the state from the last checkpoint whose file is whole, and check the disk.",
    ),
    "glued-rows": (
        "A restarted run appended to a line that had been cut.",
        "End the file with a line break before appending to it.",
    ),
    "unparsable-cells": (
        "Something else wrote into the log, or a value was formatted as text.",
        "Look at the lines named; log plain numbers, one row a line, from one process.",
    ),
    "unordered-steps": (
        "Several processes or buffers write to one log.",
        "Let one process write the log, flushed a row at a time.",
    ),
    "repeated-header": (
        "The log was opened again, by a restart or when its columns changed.",
        "Nothing was lost; write the header only where the file is empty.",
    ),
}


@dataclass(frozen=True)
class Thresholds:
    """How much must be lost, and when a column that stands still is noted."""

    lost: int = threshold(3, "rows or cells; one or two odd ones hide nothing")
    constant_rows: int = threshold(50, "rows; shorter logs can repeat a rounded value")


@rule(thresholds=Thresholds, needs=("step",))
def broken_log(signals: Signals, thresholds: Thresholds) -> Iterator[Finding]:
    """Yield one finding for each kind of damage, then one for each column that stands still."""
    if len(signals) == 0:
        return
    kinds: dict[str, list[Repair]] = {}
    for repair in signals.run.repairs:
        if repair.kind not in ELSEWHERE and (repair.lossy or repair.kind in DAMAGE | HABITS):
            kinds.setdefault(repair.kind, []).append(repair)
    for kind, repairs in kinds.items():
        yield _finding(signals, kind, repairs, thresholds)
    for lost in lost_rows(signals):
        yield _not_written(lost)
    yield from _lost_end(signals)
    for name in ("loss", "grad_l2_pre_clip"):
        yield from _constant(signals, name, thresholds)


def _severity(kind: str, repairs: list[Repair], thresholds: Thresholds) -> Severity:
    count = sum(repair.count for repair in repairs)
    lost = kind not in HABITS and count >= thresholds.lost
    return Severity.WARNING if kind in DAMAGE or lost else Severity.INFO


def _finding(signals: Signals, kind: str, repairs: list[Repair], thresholds: Thresholds) -> Finding:
    first, last = _extent(signals, kind, repairs)
    cause, remedy = _ADVICE.get(
        kind, ("A part of the run was cut or overwritten.", "Compare with a copy of the run.")
    )
    more = len(repairs) - 1
    lines = [repair.line for repair in repairs if repair.line is not None]
    at = f" (line {lines[0]:,})" if lines and f"line {lines[0]}" not in repairs[0].message else ""
    return Finding(
        rule="broken-log",
        severity=_severity(kind, repairs, thresholds),
        message=f"{repairs[0].message}{at}" + (f", and {more} more of this kind" if more else ""),
        first_step=first,
        last_step=last,
        cause=cause,
        remedy=remedy,
    )


def _extent(signals: Signals, kind: str, repairs: list[Repair]) -> tuple[int, int]:
    """The steps the damage concerns, within the table; all of it where nothing tells."""
    begin, end = signals.step_at(0), signals.last_step
    known = [repair.step for repair in repairs if repair.step is not None]
    if known:
        inside = [min(max(step, begin), end) for step in known]
        return min(inside), max(inside)
    return (end, end) if kind == "torn-last-line" else (begin, end)


def _not_written(lost: LostRows) -> Finding:
    """Nothing of the training: the disk took no more rows, and it went on."""
    return Finding(
        rule="broken-log",
        severity=Severity.WARNING,
        message=lost.told(),
        first_step=lost.first,
        last_step=lost.last,
        subject=FILE,
        cause="The training went on without its record; what happened in those steps is not known.",
        remedy=(
            "Make room, or allow the writing, before the next run. A resume from a checkpoint "
            f"before step {lost.first:,} does those steps again and writes their rows."
        ),
    )


def _lost_end(signals: Signals) -> Iterator[Finding]:
    """The recorder told how far the run came, and the log does not reach it."""
    manifest, last = signals.run.manifest, signals.last_step
    ended = manifest.ended if manifest is not None else None
    if ended is None or ended.step is None or signals.counts_steps:
        return
    # A step that raised, or was interrupted, may be named and have no row.
    rows = (ended.step - last) // max(signals.interval, 1) - (ended.how != "finished")
    if rows < 2 or explains_hole(signals, last, ended.step + 1):
        return
    yield Finding(
        rule="broken-log",
        severity=Severity.WARNING,
        message=(
            f"the log ends at step {last:,} and the run at {ended.step:,}, as run.json says: "
            f"{rows:,} rows are missing"
        ),
        first_step=last,
        last_step=last,
        cause="The file was cut, is an older copy, or its last part was lost with the disk.",
        remedy="Take the whole steps.csv from where the run wrote it; what it lacks is not judged.",
    )


def _constant(signals: Signals, name: str, thresholds: Thresholds) -> Iterator[Finding]:
    """A column with one finite value in every row."""
    values, present = signals.column(name), signals.present(name)
    count = int(np.count_nonzero(present))
    usual = values[int(np.argmax(present))]
    if count < thresholds.constant_rows or not np.isfinite(usual):
        return
    if any((present[at] & (values[at] != usual)).any() for at in blocks(len(values))):
        return
    yield Finding(
        rule="broken-log",
        severity=Severity.INFO,
        message=f"{name} is {number(float(usual))} in all {count:,} rows",
        first_step=signals.step_at(0),
        last_step=signals.last_step,
        evidence=(signals.evidence(name, values, [0, len(signals) - 1]),),
        cause="The logger writes a fixed or rounded value, or nothing is being computed.",
        remedy="Log the value itself with all its digits; if it is right, look at what feeds it.",
    )
