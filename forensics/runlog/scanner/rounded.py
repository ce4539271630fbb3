"""Loss scales that were rounded to 0 when they were printed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.runlog.steps import Column, StepTable


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
