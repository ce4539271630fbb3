"""Logs without a step in which each row is an epoch."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from forensics.errors import InputError
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import PER_EPOCH, LogFacts
from forensics.runlog.scanner.rows import TELLING, finished
from forensics.runlog.scanner.same_step import merge_same_step
from forensics.runlog.steps import Column, FloatArray, IntArray, StepTable

_UNNUMBERED = "missing-step-column"
MOST_AGAIN = 0.1
"""Share of the rows that restarts may have done again; more are several rows an epoch."""
_NAMED = frozenset(
    (
        *("name", "model", "model name", "run", "run name", "run id", "experiment", "trial"),
        *("experiment name", "config", "method", "dataset", "fold", "seed"),
    )
)
"""What columns are called that tell experiments apart."""


def by_epoch(table: StepTable) -> StepTable:
    """The table numbered by its epochs, where rows were counted and each row is one; else as is.

    Rows of one epoch are put together if no two of them hold a loss, but for an epoch now and then
    that a restart did again; epochs that begin anew are a second run. A row without an epoch, where
    the others have one, sums the run up and is left out. Without any epoch, rows that all hold a
    loss and its validation are taken to be epochs.
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
    again = _done_again(epoch, columns.get("loss"))
    if not _is_per_epoch(epoch) or len(again) > MOST_AGAIN * len(epoch):
        return table
    columns["step"] = Column(epoch.astype(np.int64), np.ones(len(rows), dtype=bool))
    facts = replace(table.facts or LogFacts(), unit=PER_EPOCH, interval=1)
    log = RepairLog()
    for repair in table.repairs:
        if repair.kind != _UNNUMBERED:
            log.take(repair)
    if len(again):
        first = int(epoch[again[0]])
        log.note("repeated-steps", step=first, count=len(again), detail=f"{first:,}")
        kept = np.delete(np.arange(len(rows)), again)
        columns = {name: column.take(kept) for name, column in columns.items()}
    merged = merge_same_step(columns, log)
    return finished(dict(merged), table.source_format, facts, log)


def refuse_settings(table: StepTable, where: object) -> None:
    """Refuse rows that nothing dates and that are experiments: their settings, or their results.

    Raises:
        InputError: they hold a learning rate alone, or a name each as experiments have.
    """
    counted = any(repair.kind == _UNNUMBERED for repair in table.repairs)
    if not counted or "epoch" in table:
        return
    told = [name for name in TELLING if name != "lr" and table.has(name)]
    if told and not any(_names_each(table, name) for name in table):
        return
    raise InputError(
        "has neither steps nor epochs, and its rows look like experiments: a table of settings or "
        "results, not the log of a run",
        where=where,
        hint="--map step=NAME says which column numbers the steps of one run",
    )


def _names_each(table: StepTable, name: str) -> bool:
    """Is it a column that calls most rows something of their own?"""
    if re.sub(r"[\W_]+", " ", name.lower()).strip() not in _NAMED:
        return False
    values = table[name][table.present(name)]
    return len(values) > 1 and len(np.unique(values)) * 2 > len(values)


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


def _is_per_epoch(epoch: FloatArray) -> bool:
    """Are these whole numbers that move on?"""
    if (epoch % 1 != 0).any() or (np.abs(epoch) >= 2**53).any():
        return False
    return bool((np.diff(epoch) != 0).any())


def _done_again(epoch: FloatArray, loss: Column | None) -> IntArray:
    """Rows with a loss whose epoch the next row has as well, with a loss of its own."""
    if loss is None:
        return np.empty(0, dtype=np.int64)
    same = np.diff(epoch) == 0
    return np.flatnonzero(same & loss.present[1:] & loss.present[:-1])
