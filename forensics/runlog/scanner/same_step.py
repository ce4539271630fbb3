"""Lines that follow each other and tell of one step: ranks, or a trainer and its evaluation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.steps import Column, IntArray


def merge_same_step(columns: Mapping[str, Column], log: RepairLog) -> Mapping[str, Column]:
    """One row for each stretch of rows of the same step.

    Of a column that several of them hold, the first value is kept, but a non-finite one of any
    rank goes before: a rank that is bad must not hide behind one that is not.

    Args:
        columns: in the order of the file.
        log: where it is noted that ranks were put together.
    """
    step: IntArray = columns["step"].values
    if len(step) == 0 or (step[1:] != step[:-1]).all():
        return columns
    starts = np.flatnonzero(np.concatenate(([True], step[1:] != step[:-1])))
    sizes = np.diff(starts, append=len(step))
    told = [
        np.add.reduceat(column.present.astype(np.int64), starts)
        for name, column in columns.items()
        if name in ("loss", "grad_l2_pre_clip")
    ]
    ranks = max((int((count > 1).sum()) for count in told), default=0)
    if ranks:
        at = next(int(starts[count > 1][0]) for count in told if (count > 1).any())
        log.note("merged-ranks", step=int(step[at]), count=ranks, detail=f"{int(sizes.max())}")
    return {name: _first(column, starts) for name, column in columns.items()}


def _first(column: Column, starts: IntArray) -> Column:
    """Of each group the first cell that is there, a non-finite one before the others."""
    count = len(column.values)
    index = np.arange(count)
    rows = np.minimum.reduceat(np.where(column.present, index, count), starts)
    if column.values.dtype.kind == "f":
        bad = column.present & ~np.isfinite(column.values)
        worst = np.minimum.reduceat(np.where(bad, index, count), starts)
        rows = np.where(worst < count, worst, rows)
    return column.take(np.where(rows < count, rows, starts))
