"""What a row of a sparse log covers: the steps since the row before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.runlog.log_facts import LogFacts
from forensics.runlog.steps import BoolArray, Column, IntArray, StepTable

TRAINING = ("loss", "grad_l2_pre_clip", "lr", "scaler_scale", "skipped_steps")
"""Columns of which one is in every row that tells of training (and not of validation alone)."""


def with_interval(table: StepTable, facts: LogFacts) -> StepTable:
    """The table with a ``covered_steps`` column where its rows cover more than one step.

    A row covers the steps since the training row before it, but no more than rows usually do: a
    wider gap is a hole in the log. Rows of validation alone cover none.
    """
    if "covered_steps" in table or facts.interval == 1 or len(table) == 0:
        return table
    training = training_rows(table)
    step: IntArray = table.step if training.all() else table.step[training]  # which copies it
    usual = facts.interval or usual_distance(step)
    if usual <= 1:
        return table
    covered = np.minimum(np.diff(step, prepend=step[0] - usual), usual)
    base = facts.step_base or 0  # a row of step 0 covers no step before it
    covered = np.where(step >= base, np.minimum(covered, step - base + 1), 1)
    values = np.zeros(len(table), dtype=np.int64)
    values[training] = covered
    columns = dict(table.columns)
    columns["covered_steps"] = Column(values, values > 0)
    return replace(table, columns=columns)


def training_rows(table: StepTable) -> BoolArray:
    """Rows that tell of training, shape (rows,); all where none does."""
    rows = np.zeros(len(table), dtype=bool)
    for name in TRAINING:
        rows |= table.present(name)
    return rows if rows.any() else np.ones(len(table), dtype=bool)


def usual_distance(step: IntArray) -> int:
    """The median distance between rows, in steps; 1 for fewer than two rows."""
    # As Python's integers: the distance of two damaged steps may not fit 64 bits.
    if len(step) < 2 or int(step[-1]) - int(step[0]) + 1 == len(step):
        return 1
    return max(int(np.median(np.diff(step))), 1)
