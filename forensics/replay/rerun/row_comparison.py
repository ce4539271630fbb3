"""Is a replayed row the recorded one? Bit for bit, or within a tolerance."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from forensics.diagnose.bisection_result import Departure
from forensics.record.step_log import SkipLog, StepLog
from forensics.runlog.steps import StepTable

_TOLERANT = 1e-3
"""Relative tolerance between machines: other kernels and orders of summation give other bits."""


_LEFT_TO_THE_LOOP = frozenset({"skipped", "skip_reason", "grad_l2_pre_clip", "grad_l2_post_clip"})


class RecordedRows:
    """The rows of a step log, by step."""

    def __init__(self, steps: StepTable) -> None:
        self._steps = steps

    def row(self, step: int) -> dict[str, Any] | None:
        """Every present cell of a row, by column; None where the step has no row."""
        index = self._index(step)
        if index is None:
            return None
        cells: dict[str, Any] = {}
        for name, column in self._steps.columns.items():
            if column.present[index]:
                text = bool(column.categories)
                cells[name] = column.text_at(index) if text else column.values[index].item()
        return cells

    def has(self, step: int, column: str) -> bool:
        """Is there a value in that cell?"""
        index = self._index(step)
        return index is not None and bool(self._steps.present(column)[index])

    def _index(self, step: int) -> int | None:
        first = int(self._steps.step[0]) if len(self._steps) else 0
        index = step - first  # where no row is missing
        if not 0 <= index < len(self._steps) or self._steps.step[index] != step:
            index = int(np.searchsorted(self._steps.step, step))
        found = index < len(self._steps) and int(self._steps.step[index]) == step
        return index if found else None


def compare_rows(
    recorded: dict[str, Any], log: StepLog | SkipLog, digest: str, tolerance: float
) -> Departure | None:
    """The first column in which a replayed row differs, or None.

    Args:
        recorded: present cells by column.
        log: the replayed row.
        digest: of the parameters before the step; empty where none was taken.
        tolerance: relative; 0 means bit for bit. NaN equals NaN.
    """
    replayed = {name: value for name, value in log.row().items() if value is not None}
    if digest and tolerance == 0:
        replayed["param_digest"] = digest
    for name, value in replayed.items():
        if name in recorded and not _same(recorded[name], value, tolerance):
            return _departure(log.step, name, recorded[name], value)
    for name in ("grad_l2_pre_clip", "grad_l2_post_clip"):
        if name in recorded and name not in replayed:
            return _departure(log.step, name, recorded[name], None)
    return None


def whatever_the_loop_did(recorded: dict[str, Any]) -> dict[str, Any]:
    """The row of a step with a bad loss or gradient, without what is each loop's own choice.

    One skips such a step before backward, another one after it, a third clips and takes it. Where a
    loop of somebody's own was recorded, and the reference loop replays, these differ by nature.
    """
    told = (recorded.get("loss"), recorded.get("grad_l2_pre_clip"))
    if all(cell is None or math.isfinite(cell) for cell in told):
        return recorded
    return {name: cell for name, cell in recorded.items() if name not in _LEFT_TO_THE_LOOP}


def tolerance_between(*, exact: bool, wanted: float | None) -> float:
    """The tolerance asked for, else none where bits can agree, else the usual one."""
    if wanted is not None:
        return wanted
    return 0.0 if exact else _TOLERANT


def _same(recorded: Any, replayed: Any, tolerance: float) -> bool:
    if isinstance(replayed, str):
        return str(recorded) == replayed
    a, b = float(recorded), float(replayed)
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return tolerance > 0 and math.isclose(a, b, rel_tol=tolerance)


def _departure(step: int, column: str, recorded: Any, replayed: Any) -> Departure:
    return Departure(step=step, column=column, recorded=_cell(recorded), replayed=_cell(replayed))


def _cell(value: Any) -> float | str | None:
    return value if value is None or isinstance(value, str) else float(value)
