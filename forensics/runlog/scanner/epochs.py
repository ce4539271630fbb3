"""Logs without a step in which each row is an epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.errors import InputError
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import PER_EPOCH, LogFacts
from forensics.runlog.scanner.rows import TELLING, finished
from forensics.runlog.scanner.same_step import merge_same_step
from forensics.runlog.steps import BoolArray, Column, FloatArray, StepTable

_UNNUMBERED = "missing-step-column"


def by_epoch(table: StepTable) -> StepTable:
    """The table numbered by its epochs, where rows were counted and each row is one; else as is.

    Rows of one epoch are put together if no two of them hold a loss; epochs that begin anew are a
    second run. A row without an epoch, where the others have one, sums the run up and is left out.
    Without any epoch, rows that all hold a loss and its validation are taken to be epochs.
    """
    if not any(repair.kind == _UNNUMBERED for repair in table.repairs):
        return table
    if "epoch" not in table:
        return _validated_each_time(table)
    told = table.present("epoch") & np.isfinite(np.asarray(table["epoch"], dtype=np.float64))
    rows = np.flatnonzero(told)
    if len(rows) < 2 or (len(rows) < len(table) and table.present("loss")[~told].any()):
        return table
    columns = {name: column.take(rows) for name, column in table.columns.items()}
    epoch = np.asarray(columns.pop("epoch").values, dtype=np.float64)
    if not _is_per_epoch(epoch, columns.get("loss")):
        return table
    columns["step"] = Column(epoch.astype(np.int64), np.ones(len(rows), dtype=bool))
    facts = replace(table.facts or LogFacts(), unit=PER_EPOCH, interval=1)
    log = RepairLog()
    for repair in table.repairs:
        if repair.kind != _UNNUMBERED:
            log.take(repair)
    merged = merge_same_step(columns, log)
    return finished(dict(merged), table.source_format, facts, log)


def refuse_settings(table: StepTable, where: object) -> None:
    """Refuse rows that nothing dates and that hold a learning rate alone: settings of experiments.

    Raises:
        InputError: they are such.
    """
    counted = any(repair.kind == _UNNUMBERED for repair in table.repairs)
    told = [name for name in TELLING if name != "lr" and table.has(name)]
    if counted and not told and "epoch" not in table:
        raise InputError(
            "holds learning rates and neither steps, epochs nor losses: a table of settings, not "
            "the log of a run",
            where=where,
            hint="--map loss=NAME says which column is the loss",
        )


def _validated_each_time(table: StepTable) -> StepTable:
    """The table as one of epochs where each row has a validation; else as is."""
    both = table.present("loss") & table.present("val_loss")
    if len(table) < 2 or not both.all():
        return table
    facts = table.facts or LogFacts()
    notes = (*facts.notes, "a row is taken to be an epoch: each has a validation")
    facts = replace(facts, unit=PER_EPOCH, interval=1, notes=notes)
    repairs = tuple(repair for repair in table.repairs if repair.kind != _UNNUMBERED)
    return replace(table, facts=facts, repairs=repairs)


def _is_per_epoch(epoch: FloatArray, loss: Column | None) -> bool:
    """Are these whole numbers that move on, with no two losses of one epoch next to each other?"""
    if (epoch % 1 != 0).any() or (np.abs(epoch) >= 2**53).any():
        return False
    same: BoolArray = np.diff(epoch) == 0
    if same.all():
        return False
    return loss is None or not (same & loss.present[1:] & loss.present[:-1]).any()
