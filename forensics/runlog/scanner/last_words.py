"""A loss that no record tells: the one that a trainer names as it stops because of it.

MetricLogger's trainers, detectron2, mmcv, Megatron, Lightning, Keras and YOLO look at the loss
before they log it. The log then ends in finite values and in a line such as ``Loss is nan, stopping
training``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner.coverage import training_rows, usual_distance
from forensics.runlog.steps import Column, StepTable

_BAD = (
    rb"(?:non-?finite|not finite|(?:nan|inf(?:inite|inity)?)(?: or (?:nan|inf(?:inite|inity)?))?)"
)
_SAID = re.compile(
    rb"(?i)\bloss (?:is|was|became|become|becomes|turned|=) ?%(bad)b(?![a-z])"
    rb"|\b(?:%(bad)b|invalid) (?:train(?:ing)? )?loss(?:es)?\b"
    rb"|\bfound (?:nan|inf) in local forward loss"
    rb"|\bloss returned in .training_step. is (?:nan|inf)" % {b"bad": _BAD}
)
_STOPS = re.compile(rb"(?i)stop|terminat|ending|exit|abort|diverged|error|exception")
_OTHERWISE = re.compile(rb"(?i)skip|ignor|continu|\bval(?!ue)|\beval|\btest")
"""A line that says so goes on, or is about a validation."""
_AT = re.compile(rb"(?i)\b(?:step|iter(?:ation)?)[ :=#]{1,4}(\d{1,12})\b")


def with_fatal_loss(table: StepTable, tail: bytes, is_record: Callable[[bytes], bool]) -> StepTable:
    """The table with a row of a NaN loss behind its last, where the log ends in the word of one.

    The row bears the step that the line names, else it covers the steps until the next record.

    Args:
        table: as read; rows of a loss that is bad already say enough.
        tail: the last part of the clean text.
        is_record: does a text hold records of the training? What comes before one was survived.
    """
    said = _last_said(tail)
    if said is None or not len(table) or _ends_bad(table) or is_record(tail[said[1] :]):
        return table
    line = tail[said[0] : said[1]]
    last = int(table.step[training_rows(table)][-1])
    usual = max(usual_distance(table.step[training_rows(table)]), 1)
    told = _AT.search(line)
    step, covered = last + usual, usual
    if told is not None and last < int(told.group(1)) <= last + 2 * usual:
        step, covered = int(told.group(1)), 1
    step = max(step, int(table.step[-1]) + 1)
    text = " ".join(line.decode("utf-8", errors="replace").split())[:120]
    facts = table.facts or LogFacts()
    note = f"the log ends with “{text}”: a NaN loss that no record shows"
    return replace(
        _with_row(table, step, covered), facts=replace(facts, notes=(*facts.notes, note))
    )


def _last_said(tail: bytes) -> tuple[int, int] | None:
    """Start and end of the last line that says it; None where there is none."""
    found = None
    for match in _SAID.finditer(tail):
        start = tail.rfind(b"\n", 0, match.start()) + 1
        end = tail.find(b"\n", match.end())
        line = tail[start : end if end >= 0 else len(tail)]
        if _STOPS.search(line) and not _OTHERWISE.search(line):
            found = start, start + len(line)
    return found


def _ends_bad(table: StepTable) -> bool:
    if "loss" not in table:
        return False
    there = np.flatnonzero(table.present("loss"))
    return bool(len(there)) and not np.isfinite(table["loss"][there[-1]])


def _with_row(table: StepTable, step: int, covered: int) -> StepTable:
    """The table and one row more, of which the loss alone is known: NaN."""
    given = {"step": step, "loss": np.nan}
    columns = dict(table.columns)
    if "loss" not in columns:
        absent = np.zeros(len(table), dtype=bool)
        columns["loss"] = Column(np.full(len(table), np.nan), absent)
    if "covered_steps" in columns:
        given["covered_steps"] = covered
    return replace(
        table, columns={name: _longer(column, given.get(name)) for name, column in columns.items()}
    )


def _longer(column: Column, value: float | None) -> Column:
    empty = np.nan if column.values.dtype.kind == "f" else 0
    end = np.array([empty if value is None else value], dtype=column.values.dtype)
    return Column(
        np.concatenate((column.values, end)),
        np.concatenate((column.present, [value is not None])),
        column.categories,
    )
