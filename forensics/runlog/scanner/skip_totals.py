"""Skips of each row from a counter of all skips so far, as DeepSpeed prints it now and then."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from forensics.runlog.scanner.coverage import usual_distance
from forensics.runlog.steps import Column, IntArray, StepTable

TOTAL = "skipped_total"
_CALLED = re.compile(
    r"(?:total|cumulative|cum)_(?:skip(?:ped|s)?|overflows?)(?:_(?:steps?|iterations?|updates?))?"
    r"|(?:skip(?:ped|s)?|overflows?)(?:_(?:steps?|iterations?|updates?))?_(?:total|cumulative|cum)"
)
"""What loops call a counter of all skips so far; ``skipped_steps`` alone may be of one row."""


def with_sampled_flags(table: StepTable) -> StepTable:
    """The table with ``skipped_steps`` where a flag is logged every so many steps.

    It is the last step's: one step of the row. Rows next to each other that bear it are skipped
    whole: a loss scaler at work is met at two such steps in a row once in a million.
    """
    if "skipped" not in table or "skipped_steps" in table or "covered_steps" not in table:
        return table
    told = table.present("skipped")
    flag = np.asarray(table["skipped"], dtype=bool) & told
    if not flag.any():
        return table
    beside = np.concatenate(([False], flag[:-1])) | np.concatenate((flag[1:], [False]))
    covered = np.maximum(_covered(table), 1)
    lost = np.where(flag & beside, covered, flag.astype(np.int64))
    return replace(table, columns={**table.columns, "skipped_steps": Column(lost, told)})


def with_named_total(table: StepTable) -> StepTable:
    """``with_skip_totals`` for a column that is called a total, and never falls."""
    for name, column in table.columns.items():
        if _CALLED.fullmatch(re.sub(r"[\W_]+", "_", name.rpartition("/")[2].lower())) is None:
            continue
        values = np.asarray(column.values, dtype=np.float64)[column.present]
        if len(values) and (values % 1 == 0).all() and (np.diff(values, prepend=0) >= 0).all():
            columns = {TOTAL if one == name else one: cells for one, cells in table.columns.items()}
            return with_skip_totals(replace(table, columns=columns))
    return table


def with_skip_totals(table: StepTable) -> StepTable:
    """The table with ``skipped_steps`` as the counter tells them, and without the counter.

    What the counter has grown by between two rows that bear it is more than the rows between them
    tell where the log has a hole: the rest belongs to the row after the widest one. The first
    counter is believed from 0 on only where the log begins at the first steps of the run.
    """
    if TOTAL not in table:
        return table
    total, told = table.columns[TOTAL], table.present(TOTAL)
    rows = np.flatnonzero(told)
    columns = {name: column for name, column in table.columns.items() if name != TOTAL}
    table = replace(table, columns=columns)
    if not len(rows):
        return table
    distance = np.diff(table.step, prepend=0)
    if table.step[0] <= max(2 * usual_distance(table.step), 10):
        rows = np.concatenate(([-1], rows))
        values = np.concatenate(([0], total.values[rows[1:]]))
    else:
        values = total.values[rows]
    skipped = _known(table)
    covered = _covered(table)
    sums = np.concatenate(([0], np.cumsum(skipped)))
    missing = np.diff(values).astype(np.int64) - np.diff(sums[rows + 1])
    for at in np.flatnonzero(missing):
        first, last = int(rows[at]) + 1, int(rows[at + 1])
        row = first + int(np.argmax(distance[first : last + 1]))
        if last == first or missing[at] > 0:
            skipped[row] = max(int(skipped[row] + missing[at]), 0)
            covered[row] = max(int(covered[row]), min(int(distance[row]), int(skipped[row])))
            if skipped[row] > 1 and distance[row] > covered[row]:
                covered[row] = distance[row]
    columns["skipped_steps"] = Column(skipped, table.present("step"))
    if "covered_steps" in columns or (covered > 1).any():
        columns["covered_steps"] = Column(covered, covered > 0)
    return replace(table, columns=columns)


def _known(table: StepTable) -> IntArray:
    if "skipped_steps" not in table:
        return np.zeros(len(table), dtype=np.int64)
    return np.array(table["skipped_steps"], dtype=np.int64)


def _covered(table: StepTable) -> IntArray:
    if "covered_steps" not in table:
        return np.ones(len(table), dtype=np.int64)
    return np.array(table["covered_steps"], dtype=np.int64)
