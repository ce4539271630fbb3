"""The charts of the loss scaler: its scale with all that moved it, and the rolling skip rate."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose.chart_axis import Axis, Layout
from forensics.diagnose.chart_grid import Grid
from forensics.diagnose.chart_parts import Chart, Limit, Mark, Marks, Series, marks_at, series_of
from forensics.diagnose.scaling import POISON_LOG2, WINDOW, Moves
from forensics.diagnose.signals import Signals
from forensics.diagnose.wording import counted
from forensics.runlog.log_facts import PER_STEP
from forensics.runlog.steps import FloatArray

ZERO_SCALE = 2.0**-150
"""Where a scale printed as 0 is drawn: below the smallest fp32 number, 2^-149."""
MOST_REASONS = 5
"""Kinds of skip reasons that are told apart; the rarer ones are drawn together."""
LEAST_WINDOW = 20
"""Steps of the shortest window of the skip rate."""
NO_REASON = "no reason logged"
OTHER_REASONS = "other reasons"


def scale_chart(signals: Signals, grid: Grid) -> Chart | None:
    """The loss scale with growths, backoffs, skips and limits; None where no scaler is at work."""
    if not signals.has("scaler_scale") or not signals.scaler_active:
        return None
    scaling = signals.scaling
    values = np.where(signals.scale == 0, ZERO_SCALE, signals.scale)
    values = np.where(np.isfinite(values) & (values > 0), values, np.nan)
    bad = signals.present("scaler_scale") & ~np.isfinite(signals.scale)
    marks = (
        _moves(grid, Mark.GROWTH, "growth", scaling.growths),
        _moves(grid, Mark.BACKOFF, "backoff", scaling.falls.where(~scaling.written)),
        _moves(
            grid, Mark.BACKOFF, "set lower, not by the scaler", scaling.falls.where(scaling.written)
        ),
        *_skips(signals, grid),
    )
    return Chart(
        name="scale",
        title="loss scale",
        axis=Axis(Layout.LOG2),
        series=(series_of(grid, "scaler_scale", "loss scale", values, sparse=False),),
        nonfinite=grid.spans(bad, signals.scale),
        marks=tuple(found for found in marks if found.total),
        limits=tuple(_limits(scaling.floor)),
    )


def _limits(floor: float) -> Iterator[Limit]:
    if floor > 0:
        yield Limit(label="floor", value=floor)
    else:
        yield Limit(label="1, no scaling", value=1.0)
    yield Limit(label="1/scale is Inf", value=2.0**POISON_LOG2)


def _moves(grid: Grid, kind: Mark, label: str, moves: Moves) -> Marks:
    """Each move where the new scale is first logged, and what it led to."""
    order = np.argsort(moves.into, kind="stable")
    return marks_at(grid, kind, label, moves.into[order], np.exp2(moves.to_log2[order]))


def _skips(signals: Signals, grid: Grid) -> Iterator[Marks]:
    """The lost steps by the reason that the log gives, the most frequent first."""
    rows, lost = signals.scaling.skips, signals.scaling.lost
    reasons = _reasons(signals)
    found = reasons[rows] if len(reasons) else np.full(len(rows), NO_REASON, dtype=object)
    names, index = np.unique(found.astype(str), return_inverse=True)
    totals = np.bincount(index, weights=lost, minlength=len(names))
    order = np.argsort(-totals, kind="stable")
    for place, name in enumerate(order[:MOST_REASONS].tolist()):
        rest = place == MOST_REASONS - 1 and len(order) > MOST_REASONS
        chosen = np.isin(index, order[place:]) if rest else index == name
        label = OTHER_REASONS if rest else str(names[name])
        scale = signals.scale[rows[chosen]]
        yield marks_at(grid, Mark.SKIP, label, rows[chosen], scale, lost[chosen])


def _reasons(signals: Signals) -> NDArray[np.object_]:
    """The reason of each row without its detail, shape (rows,); empty where none is logged."""
    column = signals.table.columns.get("skip_reason")
    if column is None or not column.categories:
        return np.empty(0, dtype=object)
    heads = [text.partition(":")[0].strip() or NO_REASON for text in column.categories]
    reasons: NDArray[np.object_] = np.array(heads, dtype=object)[column.values]
    return reasons


def skip_rate_chart(signals: Signals, grid: Grid) -> Chart | None:
    """The share of lost steps among the last so many; None where the log does not say."""
    if not (signals.has("skipped") or signals.has("skipped_steps")):
        return None
    window = min(WINDOW, max(LEAST_WINDOW, len(signals) * signals.interval // 10))
    rate = 100.0 * _rolling(signals, window)
    # Always over the whole window, as the rules count: one that still fills exaggerates.
    unit = PER_STEP if signals.table.facts is None else signals.table.facts.unit
    label = f"of the last {counted(window, unit)}"
    # Of a place the highest: between two windows the rate is 0 in every healthy run.
    high = grid.high(rate)
    return Chart(
        name="skips",
        title="steps skipped (%)",
        axis=Axis(Layout.LINEAR),
        series=(
            Series(name="skip_rate", label=label, step=grid.step, low=high, high=high, middle=high),
        ),
    )


def _rolling(signals: Signals, window: int) -> FloatArray:
    step = signals.step
    total = np.concatenate(([0], np.cumsum(signals.lost_steps, dtype=np.int64)))
    before = np.searchsorted(step, step - window, side="right")
    return np.asarray(np.clip((total[1:] - total[before]) / window, 0.0, 1.0), dtype=np.float64)
