"""Loss scales and learning rates that were rounded to 0 when they were printed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from forensics.runlog.log_facts import LogFacts
from forensics.runlog.steps import Column, StepTable

_RATE_OF_ZERO = re.compile(
    rb"(?i)(?:lr|learning[ _]?rate)(?:[-/_]?\w{0,20}){0,2}['\"]?[ \t]{0,4}[:= \t][ \t(]{0,6}"
    rb"(0\.0{3,9})(?![\d.e])"
)
"""A rate of 0 with so many decimals that a small one is printed alike; not 0.0 nor 0.0e+00."""


def restore_rounded_scale(table: StepTable, largest: float) -> tuple[StepTable, str]:
    """The table with the largest scale that prints as 0 for each scale of 0, and a note of it.

    Args:
        table: as read.
        largest: the largest power of two that the writer's format rounds to 0.
    """
    if "scaler_scale" not in table:
        return table, ""
    scale = table.columns["scaler_scale"]
    zero = scale.present & (scale.values == 0)
    if not zero.any():
        return table, ""
    values = np.where(zero, largest, scale.values)
    columns = {**table.columns, "scaler_scale": Column(values, scale.present)}
    note = f"a loss scale printed as 0 is read as {largest:g}, the largest that is rounded so"
    return replace(table, columns=columns), note


def without_rounded_rates(table: StepTable, texts: Iterable[bytes]) -> StepTable:
    """The table without learning rates of 0 where the log prints small ones as 0.

    Args:
        table: as read from lines of text.
        texts: the first and the last part of the clean text.
    """
    if "lr" not in table:
        return table
    rate = table.columns["lr"]
    zero = rate.present & (rate.values == 0)
    if not zero.any():
        return table
    found = next((m for m in map(_RATE_OF_ZERO.search, texts) if m is not None), None)
    if found is None:
        return table
    text = found.group(1).decode("ascii")
    column = Column(np.where(zero, np.nan, rate.values), rate.present & ~zero)
    facts = table.facts or LogFacts()
    note = f"a learning rate that prints as {text} may be a small one: left out"
    return replace(
        table,
        columns={**table.columns, "lr": column},
        facts=replace(facts, notes=(*facts.notes, note)),
    )
