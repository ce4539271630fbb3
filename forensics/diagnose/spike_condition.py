"""A spike as a condition that a bisection takes: as nothing in it is non-finite, it needs one."""

from __future__ import annotations

import math
import shlex

import numpy as np

from forensics.diagnose.finding import Finding
from forensics.runlog.steps import StepTable

_COLUMNS = {"loss-spike": ("loss", "loss"), "gradient-spike": ("grad_l2_pre_clip", "norm")}
"""Of a rule: the column that jumps, and what a condition calls it."""
_BEFORE = 100
"""Rows before the spike that must stay below the limit; older ones are left out, if they do not."""
_CLEAR = 1.5
"""Times the highest of them that a spike must reach: else the limit could catch a neighbour."""


def spike_options(table: StepTable, root: Finding) -> str:
    """`` --bad 'loss>130'`` where a spike is the root: a limit that it is the first to pass.

    The limit is halfway, in decades, between the spike and the highest row of those before it.

    Args:
        table: the step log.
        root: the finding.

    Returns:
        Options of ``forensics bisect``, after a space; empty for another rule, or where no limit
        tells the spike from the rows before it.
    """
    column, name = _COLUMNS.get(root.rule, ("", ""))
    if column not in table:
        return ""
    values = np.asarray(table[column], dtype=np.float64)
    at = int(np.searchsorted(table.step, root.first_step))
    if at >= len(values) or table.step[at] != root.first_step:
        return ""
    begin = max(0, at - _BEFORE)
    usual = _highest(values[begin:at])
    if not 0 < _CLEAR * usual < values[at] < math.inf:
        return ""
    limit = float(f"{math.sqrt(usual * values[at]):.2g}")
    later = f" --from {table.step[begin]}" if _highest(values[:begin]) > limit else ""
    return f" --bad {shlex.quote(f'{name}>{limit:.6g}')}{later}"


def _highest(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """The highest finite one; 0 where there is none."""
    return float(np.max(values[np.isfinite(values)], initial=0.0))
