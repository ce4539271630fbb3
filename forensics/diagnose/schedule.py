"""What the learning rate was doing: the end of its warm-up, and its state at a row."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from forensics.diagnose.blocks import moved, rows_where
from forensics.diagnose.finite import FiniteSeries, KeptRows
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import factor, number, steps
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

RISE = 1e-6
"""Relative change below which a rate has not moved (rates are computed in float64)."""
ROSE = 2.0
"""A warm-up begins below half of its peak; constant factors of 1/3 and less are the custom."""
REST = 50
"""Rows without a further rise that end a warm-up: longer than any pause that skipped steps make."""
JUMP = 3.0
"""Factor between neighbouring rows that no smooth schedule makes after its warm-up."""
REACH = 8
"""Rows by which an estimated onset may be early."""
APART = 0.01
"""Relative difference from which two groups have rates of their own."""
MOST_GROUPS = 3
"""Further groups whose rates are told."""
RECENT = 20
"""Rows before trouble in which a jump of the rate is looked for."""


class Phase(StrEnum):
    """What a learning rate is doing."""

    UNKNOWN = "unknown"
    NONFINITE = "nonfinite"
    ZERO = "zero"
    JUMPED = "jumped"
    WARMING_UP = "warming up"
    AT_PEAK = "at peak"
    CONSTANT = "constant"
    MOVING = "moving"


@dataclass(frozen=True)
class RateState:
    """The learning rate at one row.

    Attributes:
        phase: what it is doing.
        text: the same as a clause: ``the learning rate was calm at 3e-4``; empty when unknown.
    """

    phase: Phase
    text: str

    @property
    def calm(self) -> bool:
        """Nothing about the rate asks for an explanation."""
        return self.phase in (Phase.CONSTANT, Phase.MOVING)


def warmup_rows(signals: Signals) -> int:
    """Rows before the warm-up's end: the index of the first row after it, 0 where there is none.

    ``run.json`` says it where it does; else it is the end of the first rise of the rate.
    """
    return signals.derived(_warmup_rows)


def _warmup_rows(signals: Signals) -> int:
    manifest = signals.run.manifest
    stated = None if manifest is None else manifest.schedule.get("warmup_steps")
    if isinstance(stated, int) and not isinstance(stated, bool):
        return int(np.searchsorted(signals.step, stated))
    rate = FiniteSeries.of(signals.lr)
    return rate.rows[peak] if (peak := _first_rise(rate.values)) else 0


def _first_rise(rate: FloatArray) -> int:
    """Index of the end of the rise that begins with the log; 0 where there is none."""
    for size in (1 << 12, 1 << 16, len(rate)):  # most rises are short: no need to see it all
        peak, ended = _rise_within(rate[:size])
        if ended:
            break
    return peak


def _rise_within(rate: FloatArray) -> tuple[int, bool]:
    """Index of the end of the first rise, and whether it ended for sure."""

    def moves(at: slice) -> BoolArray:
        return np.asarray(np.abs(rate[moved(at, 1)] - rate[at]) > np.abs(rate[at]) * RISE)

    changes = rows_where(len(rate) - 1, moves)
    up = rate[changes + 1] > rate[changes]
    falls, rises = changes[~up], changes[up]
    rises = rises[: np.searchsorted(rises, falls[0])] if len(falls) else rises
    if len(rises) == 0 or rises[0] > REST:
        return 0, len(rate) > REST + 1
    rests = np.flatnonzero(np.diff(rises) > np.maximum(REST, rises[:-1] + 1))
    rises = rises[: rests[0] + 1] if len(rests) else rises
    peak = int(rises[-1]) + 1
    gradual = len(rises) >= min(3, peak)
    ended = len(falls) > 0 or len(rests) > 0
    return (peak if gradual and rate[peak] >= ROSE * rate[0] else 0), ended


def still_warming(signals: Signals, row: int) -> bool:
    """Does the row lie within the first twice the warm-up?"""
    return row < 2 * warmup_rows(signals)


def jumps(signals: Signals) -> IntArray:
    """Rows whose rate is at least 3 times that of the row before (both positive), ascending."""
    return signals.derived(_jumps)


def _jumps(signals: Signals) -> IntArray:
    lr = signals.lr
    rows = KeptRows.of(np.isfinite(lr) & (lr > 0))
    rate = rows.of_column(lr)
    before = rows_where(len(rate) - 1, lambda at: rate[moved(at, 1)] >= JUMP * rate[at])
    return rows[before + 1]


def dated(signals: Signals, row: int, otherwise: int | None = None) -> int:
    """The row of a jump of the rate in the next few rows, else the row that is given, else itself.

    Where growth sets in is known to a few rows only; a jump right after it dates it.
    """
    near = jumps(signals)
    near = near[(near >= row) & (near <= row + REACH)]
    if len(near):
        return int(near[0])
    return row if otherwise is None else otherwise


def rate_state(signals: Signals, row: int) -> RateState:
    """What the learning rate was doing at a row; of several groups what each was at."""
    state, names = _first_rate_state(signals, row), _further_rates(signals)
    if not state.text or not names:
        return state
    if state.calm and (jumped := _jump_of_another(signals, names, row)) is not None:
        return jumped
    others = _apart(signals, names, row)
    return RateState(state.phase, f"{state.text} in the first group{others}") if others else state


def _first_rate_state(signals: Signals, row: int) -> RateState:
    if not signals.present("lr")[row]:
        return RateState(Phase.UNKNOWN, "")
    rate = float(signals.lr[row])
    if not np.isfinite(rate):
        return RateState(Phase.NONFINITE, f"the learning rate was {number(rate)}")
    if rate == 0:
        return RateState(Phase.ZERO, "the learning rate was 0")
    warm = warmup_rows(signals)
    recent = jumps(signals)
    recent = recent[(recent > row - RECENT) & (recent <= row) & (recent > warm)]
    if len(recent):
        return _jumped(signals, int(recent[-1]))
    if row < warm:
        return RateState(
            Phase.WARMING_UP, f"the learning rate was still in its warm-up, at {number(rate)}"
        )
    past = signals.lr[max(0, row - 100) : row + 1]
    past = past[np.isfinite(past)]
    since = signals.step_at(row) - signals.step_at(warm) if warm else 0
    if warm and row <= 2 * warm and rate >= 0.9 * float(signals.lr[warm]):
        text = f"the learning rate was at its peak of {number(rate)}, {steps(since)} after warm-up"
        return RateState(Phase.AT_PEAK, text)
    if past.max() - past.min() <= 0.01 * abs(rate):
        return RateState(Phase.CONSTANT, f"the learning rate was calm at {number(rate)}")
    return RateState(Phase.MOVING, f"the learning rate moved smoothly, at {number(rate)}")


def _jumped(signals: Signals, row: int) -> RateState:
    before = signals.lr[:row]
    last = float(before[np.isfinite(before) & (before > 0)][-1])
    ratio = float(signals.lr[row]) / last
    at = signals.step_at(row)
    return RateState(Phase.JUMPED, f"the learning rate had jumped {factor(ratio)} at step {at:,}")


def _further_rates(signals: Signals) -> list[str]:
    """Columns of the second and further parameter groups, over all optimizers."""
    return [c for c in signals.table if c.startswith("lr_") and c.removeprefix("lr_").isdigit()]


def _group(column: str) -> str:
    return f"group {column.removeprefix('lr_')}"


def _jump_of_another(signals: Signals, names: list[str], row: int) -> RateState | None:
    """The last jump of another group's rate in the rows before trouble, after the warm-up."""
    first = max(row - RECENT, warmup_rows(signals))
    for name in names:
        rate = signals.column(name)[first : row + 1]
        before, after = rate[:-1], rate[1:]
        up = np.flatnonzero((before > 0) & (after >= JUMP * before) & np.isfinite(after))
        if len(up):
            ratio, at = after[up[-1]] / before[up[-1]], signals.step_at(first + 1 + int(up[-1]))
            text = f"the learning rate of {_group(name)} had jumped {factor(ratio)} at step {at:,}"
            return RateState(Phase.JUMPED, text)
    return None


def _apart(signals: Signals, names: list[str], row: int) -> str:
    """The rates of the groups that have another one than the first, each after a comma."""
    first = float(signals.lr[row])
    found = {name: float(signals.column(name)[row]) for name in names}
    apart = {k: v for k, v in found.items() if np.isfinite(v) and abs(v - first) > APART * first}
    shown = [f", {number(v)} in {_group(k)}" for k, v in list(apart.items())[:MOST_GROUPS]]
    more = len(apart) - len(shown)
    return "".join(shown) + (f" and others in {more:,} more" if more else "")
