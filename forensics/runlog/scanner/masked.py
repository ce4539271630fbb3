"""Non-finite losses that a logger wrote as something else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.runlog.steps import Column, StepTable


def restore_filtered_nan(table: StepTable) -> tuple[StepTable, str]:
    """The table with NaN for each loss of exactly 0 beside a non-finite gradient norm, and a note.

    A trainer that leaves NaN losses out of its mean prints 0.0 where every loss of an interval
    was NaN; no training has a loss of 0 and a NaN gradient.
    """
    if not (table.has("loss") and table.has("grad_l2_pre_clip")):
        return table, ""
    loss, norm = table["loss"], table["grad_l2_pre_clip"]
    masked = table.present("loss") & (loss == 0.0) & table.present("grad_l2_pre_clip")
    masked &= ~np.isfinite(norm)
    if not masked.any():
        return table, ""
    columns = dict(table.columns)
    columns["loss"] = Column(np.where(masked, np.nan, loss), table.present("loss"))
    count = int(masked.sum())
    note = (
        f"loss 0.0 beside a non-finite gradient norm read as NaN ({count:,} "
        f"row{'' if count == 1 else 's'}): the trainer leaves NaN losses out of its mean"
    )
    return replace(table, columns=columns), note
