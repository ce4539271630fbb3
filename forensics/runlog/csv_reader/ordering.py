"""What it means that steps repeat or go back: a resume, a second run, halves of a row, disorder."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from forensics.runlog.csv_reader.epoch_numbering import numbered_through
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.schema import is_group_lr
from forensics.runlog.steps import BoolArray, Column, IntArray, StepTable

Rows = NDArray[np.intp]

FEWEST_ROWS = 3
"""Rows that go back together and repeat steps are a restart; fewer are only out of order."""
MOST_STRIDES = 16
"""Strides of the rows after it that a restart's own rows lie apart at most."""
MOST_SEGMENTS = 256
"""A log that goes back more often is not told apart restart by restart, but sorted."""
_NEUTRAL = frozenset(("step", "epoch", "time_s", "lr"))
"""Columns that both halves of a row carry."""


def in_order(
    columns: Mapping[str, Column], line_of: Callable[[int], int], log: RepairLog
) -> StepTable:
    """The table with its steps strictly ascending.

    A stretch that goes back and writes steps anew is a restart: what it replaces is set aside as
    an earlier table. One that goes back to the very first step is a second run, and the last run
    is the one that is read. Rows of one step whose cells complete each other are put together;
    of other repeated ones the last is kept. Rows that are merely out of order are sorted. Steps
    that count anew in each epoch are numbered through first.

    Args:
        columns: all columns, in file order.
        line_of: line in the file of a row.
        log: where it is noted.
    """
    columns = numbered_through(columns, log)
    step: IntArray = columns["step"].values
    below = int((step < 0).sum()) if len(step) and step.min() < 0 else 0
    if below:
        log.note("negative-steps", step=int(step.min()), count=below)
    if (step[1:] > step[:-1]).all():
        return StepTable(columns)
    alive, aside = _time_line(columns, line_of, log)
    earlier = tuple(StepTable(_settled(columns, rows, RepairLog())) for rows in aside)
    return StepTable(_settled(columns, alive, log), earlier=earlier)


def _time_line(
    columns: Mapping[str, Column], line_of: Callable[[int], int], log: RepairLog
) -> tuple[Rows, list[Rows]]:
    """Rows of the time line that lasts, in order of step, and what restarts left behind."""
    step: IntArray = columns["step"].values
    starts = np.flatnonzero(step[1:] < step[:-1]) + 1
    aside: list[Rows] = []
    if len(starts) == 0 or len(starts) >= min(MOST_SEGMENTS, len(step) / FEWEST_ROWS):
        if len(starts):
            at = int(starts[0])
            log.note("unordered-steps", line=line_of(at), step=int(step[at]), count=len(starts))
        return np.argsort(step, kind="stable"), aside
    alive = np.arange(starts[0])
    for start, end in zip(starts, (*starts[1:], len(step)), strict=True):
        rows = np.arange(start, end)
        first, line = int(step[start]), line_of(int(start))
        cut = int(np.searchsorted(step[alive], first))
        replaced = alive[cut:]
        if not _is_restart(columns, replaced, rows):
            log.note("unordered-steps", line=line, step=first)
            alive = np.concatenate((alive, rows))
            alive = alive[np.argsort(step[alive], kind="stable")]
            continue
        if cut == 0:
            log.note("second-run", line=line, step=first, count=len(replaced), detail=f"{first:,}")
        else:
            _note_resume(step, replaced, rows, line, log)
        aside.append(replaced)
        alive = np.concatenate((alive[:cut], rows))
    return alive, aside


def _is_restart(columns: Mapping[str, Column], replaced: Rows, rows: Rows) -> bool:
    """Do these rows write a stretch of steps anew, as densely as it was?

    Rows that complete the earlier ones (validation written after the epoch) do not, nor do a few
    strays, nor rows that fill a hole.
    """
    step: IntArray = columns["step"].values
    within = replaced[step[replaced] <= step[rows[-1]]]
    _, old, new = np.intersect1d(step[within], step[rows], return_indices=True)
    if len(rows) < FEWEST_ROWS or len(old) == 0 or len(rows) * 2 < len(within):
        return False
    if _is_stray(step, replaced, rows):
        return False
    return not _complete_each_other(columns, within[old], rows[new])


def _is_stray(step: IntArray, replaced: Rows, rows: Rows) -> bool:
    """Does only a damaged row or two go back, and the rest go on where the log had been?

    A restart repeats at the stride it goes on with; a step that has lost its first digits is
    followed by a leap.
    """
    back = int(np.searchsorted(step[rows], step[replaced[-1]], side="right"))
    if back >= min(FEWEST_ROWS, len(rows)):
        return False
    leap = int(step[rows[back]]) - int(step[rows[back - 1]])
    usual = float(np.median(np.diff(step[rows[back:]]))) if len(rows) > back + 1 else leap
    return leap > MOST_STRIDES * usual


def _note_resume(step: IntArray, replaced: Rows, rows: Rows, line: int, log: RepairLog) -> None:
    first, last = int(step[rows[0]]), int(step[rows[-1]])
    beyond = int((step[replaced] > last).sum())
    repeated = len(replaced) - beyond
    if repeated:
        log.note("repeated-steps", line=line, step=first, count=repeated, detail=f"{first:,}")
    if beyond:
        log.note("abandoned-steps", line=line, step=last, count=beyond, detail=f"{last:,}")


def _complete_each_other(columns: Mapping[str, Column], one: Rows, other: Rows) -> bool:
    """Have two lists of rows no cell in common but those that every row carries?"""
    return not any(
        (column.present[one] & column.present[other]).any()
        for name, column in columns.items()
        if name not in _NEUTRAL and not is_group_lr(name)
    )


def _settled(columns: Mapping[str, Column], rows: Rows, log: RepairLog) -> dict[str, Column]:
    """The columns at rows in order of step, with one row for each step."""
    step: IntArray = columns["step"].values
    ordered = step[rows]
    last = np.append(ordered[1:] != ordered[:-1], True)
    if last.all():
        return {name: column.take(rows) for name, column in columns.items()}
    again = np.flatnonzero(~last)
    first = int(ordered[again[0]])
    if _complete_each_other(columns, rows[again], rows[again + 1]):
        log.note("merged-rows", step=first, count=len(again))
        return {name: _merged(column.take(rows), last) for name, column in columns.items()}
    log.note("repeated-steps", step=first, count=len(again), detail=f"{first:,}")
    return {name: column.take(rows[last]) for name, column in columns.items()}


def _merged(column: Column, last: BoolArray) -> Column:
    """Of each group of rows (ending where ``last``) the last cell that was written."""
    index = np.arange(len(last))
    written = np.maximum.accumulate(np.where(column.present, index, -1))[last]
    group_start = np.concatenate(([0], index[last][:-1] + 1))
    return column.take(np.where(written >= group_start, written, index[last]))
