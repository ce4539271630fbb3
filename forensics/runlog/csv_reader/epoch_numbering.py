"""Steps that count anew in each epoch, numbered through."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.steps import BoolArray, Column, FloatArray, IntArray

_MOST = 2**53
_FALLS_WITHIN = 0.05
"""Share of steps within an epoch that may go back: a resume, a damaged row."""


def numbered_through(columns: Mapping[str, Column], log: RepairLog) -> Mapping[str, Column]:
    """The columns with steps that go on from epoch to epoch, where they began anew in each.

    A log of ``epoch,iteration,loss`` is one run, not one for each epoch. Its epochs tell it from a
    run that was started again: whenever they rise the step falls, and within one it rises.
    The length of an epoch is not in the log and is taken to be the largest one seen; where each
    epoch has one row, whose step says nothing, rows are counted.

    Args:
        columns: all columns, in file order.
        log: where it is noted.
    """
    step: IntArray = columns["step"].values
    if "epoch" not in columns or len(step) < 2 or not (step[1:] <= step[:-1]).any():
        return columns
    epoch = np.asarray(columns["epoch"].values, dtype=np.float64)
    if not columns["epoch"].present.all() or not _are_whole(epoch):
        return columns
    moves, rises = np.diff(step), np.diff(epoch)
    if (rises > 0).all() and (moves == 0).all():
        log.note("missing-step-column", detail="it is the same in each epoch")
        counted = np.arange(len(step), dtype=np.int64)
        return {**columns, "step": Column(counted, columns["step"].present)}
    if not _begin_anew(moves, rises):
        return columns
    usual = int(np.median(moves[(rises == 0) & (moves > 0)]))
    length = int(step.max()) - int(step.min()) + usual
    if length * (epoch.max() - epoch.min() + 1) >= _MOST:
        return columns
    log.note("epoch-steps", detail=f"{length:,}")
    through = (epoch - epoch.min()).astype(np.int64) * length + step
    return {**columns, "step": Column(through, columns["step"].present)}


def _are_whole(epoch: FloatArray) -> bool:
    return bool(np.isfinite(epoch).all() and (epoch % 1 == 0).all() and np.abs(epoch).max() < _MOST)


def _begin_anew(moves: IntArray, rises: FloatArray) -> bool:
    """Do steps fall whenever the epoch rises, and rise (or stay) while it lasts?"""
    within: BoolArray = rises == 0
    return bool(
        (rises > 0).any()
        and (moves[rises > 0] < 0).all()
        and (moves[within] > 0).any()
        and (moves[within] < 0).sum() <= _FALLS_WITHIN * within.sum()
    )
