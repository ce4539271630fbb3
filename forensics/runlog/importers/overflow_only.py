"""Logs in which nothing but a loss scaler's notes tells of the training: DeepSpeed, Apex.

The notes bear no step. Between the states of a progress bar they are bracketed by its count;
without one they are numbered as they come, and only the loss scale they tell is kept: how many
steps lie between two of them nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np

from forensics.runlog.importers.print_lines import read_lines, tells_of_training
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner.head import LONG_HEAD
from forensics.runlog.scanner.near import matches_near
from forensics.runlog.scanner.numbers import number
from forensics.runlog.scanner.overflow_notes import NEEDLES, NOTE, OverflowNotes, hints_of
from forensics.runlog.scanner.rows import Cell, Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import IntArray, StepTable

_BAR = rb"/(?P<planned>%b)[ \t]*\[\d+:"
"""A bar from its total on: to look for its count first would try every number of a log."""
_BARS = re.compile(_BAR % rb"\d{1,12}")
_LONGEST = 12
"""Digits of a count."""
_COUNT = re.compile(rb"[^\0]*?((?<![/\d])\d{0,%d}|)(?:\0|\Z)" % _LONGEST)
"""The digits that a piece of text ends in, if they are all of a number; pieces end with NUL."""
_NOTES = re.compile(NOTE)
_FEWEST = 3
"""States of a bar: fewer may be a download's or a tokenizer's."""
UNKNOWN = ("losses", "gradient norms", "learning rates")


def read_notes(source: LogSource, name: str) -> StepTable:
    """Read a log of overflow notes, with or without a progress bar around them.

    Where the loop prints losses of its own, those are the rows (``print_lines``).

    Raises:
        InputError: there is no note, and no bar.
    """
    if tells_of_training(source.head()):
        return read_lines(source, name)
    head = source.head(LONG_HEAD).text
    total = _longest_bar(head)
    facts = LogFacts(
        step_base=1, precision="fp16", scaler=hints_of(head), unknown=UNKNOWN, planned_steps=total
    )
    if total is None:
        return _numbered(source, name, facts)
    return _by_bar(source, name, facts, total)


def _longest_bar(head: bytes) -> int | None:
    """What the bar of the training counts to: of those with several states, the largest."""
    states: dict[int, set[bytes]] = {}
    bars = list(_BARS.finditer(head))
    starts = [bar.start() for bar in bars]
    for match, done in zip(bars, _counts_before(head, starts), strict=True):
        if done:
            states.setdefault(int(match["planned"]), set()).add(done)
    return max((total for total, seen in states.items() if len(seen) >= _FEWEST), default=None)


def _counts_before(text: bytes, starts: Sequence[int]) -> list[bytes]:
    """The count before the total of each bar; empty where there is none."""
    before = [text[max(start - _LONGEST - 1, 0) : start] for start in starts]
    return _COUNT.findall(b"\0".join(before))[: len(before)]


def _by_bar(source: LogSource, name: str, facts: LogFacts, total: int) -> StepTable:
    rows, notes = Rows(source.log, size=source.size), OverflowNotes()
    bar = re.compile(_BAR % b"%d" % total)
    last, waits = 0, False
    for block in source.blocks():
        starts = [match.start() for match in bar.finditer(block)]
        step, at = _moves(_counts_before(block, starts), starts, last)
        noted: dict[int, dict[str, Cell]] = {}
        row = 0 if waits else -1
        for match in matches_near(_NOTES, block, NEEDLES):
            behind = int(np.searchsorted(at, match.start()))
            if 0 <= row < behind:
                noted[row] = notes.cells()
            row = behind
            notes.take(match)
        waits = row >= len(step)
        if 0 <= row < len(step):
            noted[row] = notes.cells()
        if len(step):
            last = int(step[-1])
            rows.extend(_columns(step, noted))
    if notes.count:
        rows.add(last + notes.count, notes.cells())
    count = f"{notes.total:,} overflow{'s' * (notes.total != 1)}"
    facts = replace(facts, notes=(f"{count}, dated by the progress bar around the notes",))
    return rows.table(name, facts, where=source.path)


def _moves(done: Sequence[bytes], starts: Sequence[int], last: int) -> tuple[IntArray, IntArray]:
    """Where a bar moves on: its count, and where in the text it stands; each of shape (moves,)."""
    count = np.array([int(digits) if digits else 0 for digits in done], dtype=np.int64)
    there = np.flatnonzero(count)
    moved = there[np.diff(count[there], prepend=last) != 0]
    return count[moved], np.array(starts, dtype=np.int64)[moved]


def _columns(step: IntArray, noted: Mapping[int, Mapping[str, Cell]]) -> dict[str, Any]:
    """Steps, with the skips and the loss scale that notes tell of some."""
    skipped, scale = np.zeros(len(step), dtype=np.int64), np.full(len(step), np.nan)
    for row, cells in noted.items():
        skipped[row] = int(cells.get("skipped_steps") or 0)
        told = cells.get("scaler_scale")
        scale[row] = np.nan if told is None else float(told)
    columns: dict[str, Any] = {"step": step, "skipped_steps": skipped}
    there = ~np.isnan(scale)
    return columns | {"scaler_scale": (scale, there)} if there.any() else columns


def _numbered(source: LogSource, name: str, facts: LogFacts) -> StepTable:
    rows, notes = Rows(source.log), OverflowNotes()
    after: float | None = None
    first_writer: object = None
    ranks, seen = _ranks(source.head(LONG_HEAD).text), 0
    for block in source.blocks():
        for match in matches_near(_NOTES, block, NEEDLES):
            seen += 1
            if (seen - 1) % ranks:
                continue
            writer = (match["rank"], match["logged"], match["scaler"])
            first_writer = first_writer or writer
            if writer != first_writer:
                continue  # another rank tells of the same step
            notes.take(match)
            if notes.count:
                was, after = _scales(match, after)
                rows.add(len(rows) + 1, {"scaler_scale": was})
                notes.cells()
    if after is not None:
        rows.add(len(rows) + 1, {"scaler_scale": after})
    said = "no line tells a step: the rows are the overflow notes, numbered as they come"
    total = f"{notes.total:,} overflow{'s' * (notes.total != 1)}"
    held = f", of which {notes.unreduced:,} left the loss scale alone" if notes.unreduced else ""
    facts = replace(
        facts,
        notes=(said, f"{total}{held}"),
        unknown=("at which steps it overflowed", *UNKNOWN),
        planned_steps=None,
    )
    return rows.table(name, facts, where=source.path)


def _ranks(head: bytes) -> int:
    """How many processes tell of each overflow without a name: so often each scale is told.

    The last scale may be a floor, at which steps overflow again and again.
    """
    told = [match["apex"] for match in _NOTES.finditer(head) if match["apex"]]
    runs = [len(list(same)) for _, same in groupby(told)]
    often = set(runs[:-1])
    return often.pop() if len(often) == 1 else 1


def _scales(match: re.Match[bytes], before: float | None) -> tuple[Cell, float | None]:
    """The loss scale of the step that overflowed, and the one after it."""
    found = match.groupdict()
    if found["apex"]:
        after = number(found["apex"])
        return (None if after is None else 2 * after), after
    was = number(found["was"] or found["tried"] or b"")
    reduced = found["now"] or found["next"]
    return (before if was is None else was), (number(reduced) if reduced else was)
