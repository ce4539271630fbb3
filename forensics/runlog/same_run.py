"""Do logs that lie side by side tell of one run? Their names are a guess; their values tell."""

from __future__ import annotations

import numpy as np

from forensics.runlog.log_facts import LogFacts
from forensics.runlog.steps import BoolArray, StepTable

_ROUGH = frozenset(("nemo", "metric-logger-text", "ultralytics-text", "openmmlab-text"))
"""Consoles that print a running value, or count otherwise, than the file beside them."""
_CLOSE, _LAST_DIGIT = 2e-3, 1e-4
"""Relative and absolute difference that rounding makes: trainers print four digits."""
_ENOUGH = 2
"""Steps with a finite loss that two logs must have in common to be told apart."""


def is_another_view(table: StepTable, other: StepTable) -> bool:
    """May two logs be views of one run: do their losses agree at most of their common steps?

    True where they cannot be compared: without common steps, where steps were counted, or where
    a console prints something else. A record that is dated one row off still agrees.
    """
    if not _comparable(table) or not _comparable(other) or _unit(table) != _unit(other):
        return True
    _, ours, theirs = np.intersect1d(table.step, other.step, return_indices=True)
    mine = table["loss"][ours]
    beside = [other["loss"][np.clip(theirs + shift, 0, len(other) - 1)] for shift in (0, -1, 1)]
    known = table.present("loss")[ours] & other.present("loss")[theirs]
    told = known & (np.isfinite(mine) | np.isfinite(beside[0]))
    agree = np.logical_or.reduce([_close(mine, value) for value in beside]) & told
    return bool(np.count_nonzero(told) < _ENOUGH or 2 * agree.sum() >= told.sum())


def begins_anew(table: StepTable) -> bool:
    """Is a table that was read of several files one of several runs?

    A later file counts from the start, or writes most of an earlier one again with other values. A
    run that was resumed repeats no more than its last steps, or repeats what it had.
    """
    return any(len(old) and _is_another_run(old, table) for old in table.earlier)


def _is_another_run(old: StepTable, table: StepTable) -> bool:
    """Is what was written over a run of its own, and no end that was trained again?"""
    kept = int(np.searchsorted(table.step, old.step[0]))
    return kept == 0 or (kept < len(old) and not is_another_view(old, table))


def _comparable(table: StepTable) -> bool:
    counted = any(repair.kind == "missing-step-column" for repair in table.repairs)
    return table.has("loss") and not counted and table.source_format not in _ROUGH


def _unit(table: StepTable) -> str:
    return (table.facts or LogFacts()).unit


def _close(one: np.ndarray, other: np.ndarray) -> BoolArray:
    close: BoolArray = np.isclose(one, other, rtol=_CLOSE, atol=_LAST_DIGIT, equal_nan=True)
    return close
