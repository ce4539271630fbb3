"""Logs without a step in which each row is an epoch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.runlog.log_facts import PER_EPOCH, LogFacts
from forensics.runlog.steps import Column, StepTable

_UNNUMBERED = "missing-step-column"


def by_epoch(table: StepTable) -> StepTable:
    """The table numbered by its epochs, where rows were counted and each row is one; else as is."""
    counted = any(repair.kind == _UNNUMBERED for repair in table.repairs)
    if not counted or "epoch" not in table or len(table) < 2:
        return table
    epoch = np.asarray(table["epoch"], dtype=np.float64)
    if not table.present("epoch").all() or not (np.diff(epoch) == 1).all() or epoch[0] % 1:
        return table
    columns = {name: column for name, column in table.columns.items() if name != "epoch"}
    columns["step"] = Column(epoch.astype(np.int64), table.present("step"))
    facts = replace(table.facts or LogFacts(), unit=PER_EPOCH, interval=1)
    repairs = tuple(repair for repair in table.repairs if repair.kind != _UNNUMBERED)
    return replace(table, columns=columns, facts=facts, repairs=repairs)
