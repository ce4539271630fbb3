"""The story of the parameters: who is large, who grew, who moved first, who went bad first.

Pure: from a run's snapshots to one value that every renderer takes.
"""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase

import numpy as np

from forensics.diagnose.bad_parameters import (
    bad_cells,
    culprit_of,
    loss_at,
    origin,
    steps_with_bad,
    unexplained_snapshots,
)
from forensics.diagnose.param_facts import (
    BadState,
    FirstBad,
    Mover,
    ParamSeries,
    ParamStory,
    Standing,
)
from forensics.diagnose.series import spread_out
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import (
    Floats,
    layer_of,
    own_baselines,
    row_medians,
    squared_shares,
)
from forensics.diagnose.wording import number
from forensics.errors import InputError, UsageError
from forensics.frozen import dataclass
from forensics.runlog.params import KINDS
from forensics.runlog.run import Run
from forensics.runlog.steps import BoolArray, IntArray

TOP = 5
"""Parameters told in full; the layer profile has the others."""
MOVED = 3.0
"""Growth beyond which a parameter has left its baseline: a healthy GPT stays within 2.6."""
APART = 2.0
"""The same beside the median parameter: a healthy GPT stays within 1.9."""
SERIES = 3
"""Up to so many chosen parameters are told over time as well."""
POINTS = 12
"""Snapshots of a series that are told."""


@dataclass(frozen=True)
class _Data:
    """The snapshots as arrays of shape (S, P), NaN (counts: 0) where unknown."""

    steps: IntArray
    names: tuple[str, ...]
    grads: Floats
    values: Floats
    updates: Floats
    nonfinite: IntArray
    growth: Floats

    def at(self, row: int) -> str:
        """A step for a message."""
        return f"{int(self.steps[row]):,}"


def param_story(
    run: Run, *, step: int | None = None, pattern: str = "", top: int = TOP
) -> ParamStory:
    """Tell the story of a run's parameters.

    Args:
        run: the run.
        step: look at the snapshot at this step, or the last one before it that has gradients;
            None for the last one with finite gradients before anything went bad for good.
        pattern: glob of the parameters to look at (``blocks.11.*``); empty for all.
        top: parameters told in full, at most.

    Raises:
        InputError: the run has no per-parameter snapshots.
        UsageError: no parameter matches, or there is no snapshot at or before the step.
    """
    signals = Signals(run)
    with np.errstate(all="ignore"):
        data = _read(signals, run)
        chosen = _choose(data.names, pattern)
        first_bad = _first_bad(signals, data)
        row = _row(data, step, first_bad)
        no_gradient = ""
        if step is not None and not _has_gradient(data)[row]:
            no_gradient = _why_no_gradient(signals, int(data.steps[row]))
            row = _last_with_gradient(data, row)
        routine = _routine(signals, data)
        usual = row_medians(data.growth)
        return ParamStory(
            path=run.named(),
            snapshots=len(data.steps),
            first_step=int(data.steps[0]),
            last_step=int(data.steps[-1]),
            parameters=len(chosen),
            pattern=pattern,
            step=int(data.steps[row]),
            asked=step,
            no_gradient=no_gradient,
            overflowed=bool(routine[row]),
            grad_l2=_norm(data.grads[row]),
            usual_growth=float(usual[row]),
            top=_top(data, row, chosen, top),
            movers=_movers(data, usual, row, chosen),
            first_bad=first_bad,
            routine=int(routine.sum()),
            bad_state=_bad_state(signals, run),
            profile=_profile(data, row, chosen),
            series=_series(data, row, chosen) if pattern and len(chosen) <= SERIES else (),
        )


def _read(signals: Signals, run: Run) -> _Data:
    weights = signals.param_matrix("value_l2")
    grads = signals.param_matrix("grad_l2")
    first = weights or grads
    if run.params is None or first is None:
        raise InputError(
            "has no per-parameter snapshots",
            where=run.named(),
            hint="record with snapshots to have them; `forensics report` needs none",
        )
    shape = first.values.shape

    def floats(statistic: str) -> Floats:
        matrix = signals.param_matrix(statistic)
        return np.full(shape, np.nan, np.float32) if matrix is None else _written(matrix.values)

    def counts(statistic: str) -> IntArray:
        matrix = signals.param_matrix(statistic)
        return np.zeros(shape, np.int64) if matrix is None else np.asarray(matrix.values, np.int64)

    norms = floats("grad_l2")
    finite = np.where(np.isfinite(norms), norms, np.float32(np.nan))
    return _Data(
        steps=first.steps,
        names=first.names,
        grads=norms,
        values=floats("value_l2"),
        updates=floats("update_l2"),
        nonfinite=counts("grad_nonfinite") + counts("value_nonfinite"),
        growth=np.asarray(finite / own_baselines(finite), dtype=np.float32),
    )


def _written(values: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Floats:
    return np.asarray(values, dtype=np.float32)


def _choose(names: tuple[str, ...], pattern: str) -> IntArray:
    chosen = [i for i, name in enumerate(names) if not pattern or fnmatchcase(name, pattern)]
    if chosen:
        return np.array(chosen, dtype=np.int64)
    near = [name for name in names if pattern.strip("*") and pattern.strip("*") in name][:3]
    hint = f"near it: {', '.join(near)}" if near else f"there are {', '.join(names[:3])} …"
    raise UsageError(f"no parameter matches {pattern!r}", where="--param", hint=hint)


def _first_bad(signals: Signals, data: _Data) -> FirstBad | None:
    """The first bad parameter of the first snapshot that no loss scaler explains."""
    found = [steps_with_bad(signals, name)[:1] for name in ("value_nonfinite", "grad_nonfinite")]
    steps = [int(step) for step in np.concatenate(found)]
    if not steps:
        return None
    culprit = culprit_of(signals, min(steps))
    if culprit is None:
        return None
    return FirstBad(
        step=min(steps),
        name=culprit.name,
        what=culprit.what,
        elements=culprit.elements,
        bad=len(culprit.bad),
        total=culprit.total or len(data.names),
        finite_before=culprit.finite_before,
        finite_after=culprit.finite_after,
        origin=origin(culprit, loss_at(signals, min(steps))) if culprit.what == "gradient" else "",
    )


def _routine(signals: Signals, data: _Data) -> BoolArray:
    """Snapshots of overflows that a loss scaler dealt with, shape (S,)."""
    matrix = signals.param_matrix("grad_nonfinite")
    if matrix is None:
        return np.zeros(len(data.steps), dtype=bool)
    bad = bad_cells(matrix).any(axis=1)
    return np.asarray(bad & ~unexplained_snapshots(signals, matrix), dtype=bool)


def _has_gradient(data: _Data) -> BoolArray:
    """Snapshots in which some gradient was taken, finite or not, shape (S,)."""
    return np.asarray((~np.isnan(data.grads) | (data.nonfinite > 0)).any(axis=1), dtype=bool)


def _last_with_gradient(data: _Data, row: int) -> int:
    """The last snapshot before one that has gradients; itself where there is none."""
    before = np.flatnonzero(_has_gradient(data)[:row])
    return int(before[-1]) if len(before) else row


def _why_no_gradient(signals: Signals, step: int) -> str:
    """Why a snapshot holds no gradient, as far as the log tells."""
    row = int(np.searchsorted(signals.step, step))
    known = row < len(signals) and signals.step_at(row) == step
    if known and signals.loss_bad[row]:
        loss = number(float(signals.loss[row]))
        return f"no gradient was taken at step {step:,}: the loss is {loss}, backward did not run"
    return f"no gradient was taken at step {step:,}"


def _bad_state(signals: Signals, run: Run) -> BadState | None:
    if run.params is None:
        return None
    found = []
    for kind in KINDS[1:]:
        rows = run.params.first_nonfinite(kind)
        bad = [i for i in range(len(rows)) if rows.values["value_nonfinite"][i] > 0]
        found += [BadState(step=int(rows.step[i]), kind=kind, name=rows.names[i]) for i in bad[:1]]
    first = min(found, key=lambda state: state.step, default=None)
    matrix = None if first is None else signals.param_matrix("value_nonfinite", first.kind)
    if first is None or matrix is None:
        return first
    before = matrix.steps[matrix.steps < first.step]
    apart = len(before) > 0 and first.step - int(before[-1]) > 1
    return replace(first, finite_at=int(before[-1])) if apart else first


def _row(data: _Data, step: int | None, first_bad: FirstBad | None) -> int:
    """The snapshot to look at."""
    if step is not None:
        row = int(np.searchsorted(data.steps, step, side="right")) - 1
        if row < 0:
            raise UsageError(
                f"no snapshot at or before step {step:,}",
                where="--step",
                hint=f"the first is at step {data.at(0)}, the last at {data.at(-1)}",
            )
        return row
    sound = np.isfinite(data.grads).any(axis=1) & (data.nonfinite.sum(axis=1) == 0)
    if first_bad is not None:
        sound &= data.steps < first_bad.step
    rows = np.flatnonzero(sound)
    return int(rows[-1]) if len(rows) else len(data.steps) - 1


def _norm(norms: Floats) -> float:
    """Norm of the parts together; NaN where none was taken."""
    there = norms[~np.isnan(norms)] if np.isnan(norms).any() else norms
    if len(there) == 0:
        return float("nan")
    return float(np.sqrt(np.square(there.astype(np.float64)).sum()))


def _standing(data: _Data, row: int, column: int, share: float) -> Standing:
    value = float(data.values[row, column])
    return Standing(
        name=data.names[column],
        grad_l2=float(data.grads[row, column]),
        share=share,
        growth=float(data.growth[row, column]),
        value_l2=value,
        update_ratio=float(data.updates[row, column]) / value if value > 0 else float("nan"),
        nonfinite=int(data.nonfinite[row, column]),
    )


def _top(data: _Data, row: int, chosen: IntArray, most: int) -> tuple[Standing, ...]:
    norms = data.grads[row, chosen]
    bad = data.nonfinite[row, chosen] > 0
    size = np.where(np.isfinite(norms), norms, -1)
    order = np.lexsort((np.arange(len(chosen)), -size, ~bad))[:most]
    finite = np.where(np.isfinite(data.grads[row]), data.grads[row], np.float32(np.nan))
    shares = squared_shares(finite[None, :])[0]
    columns = [int(chosen[i]) for i in order if bad[i] or size[i] >= 0]
    return tuple(_standing(data, row, column, float(shares[column])) for column in columns)


def _movers(data: _Data, usual: Floats, row: int, chosen: IntArray) -> tuple[Mover, ...]:
    """Who is away from the own baseline at a snapshot, by the snapshot since when."""
    away = data.growth >= np.maximum(MOVED, APART * np.maximum(usual, 1.0))[:, None]
    columns = [int(column) for column in chosen if away[row, column]]
    movers = [
        Mover(
            name=data.names[column],
            since=int(data.steps[_start(data.growth[: row + 1, column], away[: row + 1, column])]),
            growth=float(data.growth[row, column]),
        )
        for column in columns
    ]
    return tuple(sorted(movers, key=lambda mover: (mover.since, -mover.growth)))


def _start(growth: Floats, away: BoolArray) -> int:
    """First snapshot of the run of ``away`` that ends with the last; gaps (NaN) do not end it."""
    calm = np.flatnonzero(~away & np.isfinite(growth))
    later = (
        np.flatnonzero(away[calm[-1] + 1 :]) + calm[-1] + 1 if len(calm) else np.flatnonzero(away)
    )
    return int(later[0])


def _profile(data: _Data, row: int, chosen: IntArray) -> tuple[Standing, ...]:
    """The chosen parameters by layer: norms combined, growth against the layer's own past."""
    layers: dict[str, list[int]] = {}
    for column in chosen:
        layers.setdefault(layer_of(data.names[column]), []).append(int(column))
    norms = np.stack([_combined(data.grads[:, columns]) for columns in layers.values()], axis=1)
    finite = np.where(np.isfinite(norms), norms, np.float32(np.nan))
    growth = finite / own_baselines(finite)
    total = _norm(np.where(np.isfinite(data.grads[row]), data.grads[row], np.float32(np.nan)))
    found = []
    for place, (layer, columns) in enumerate(layers.items()):
        grad, value = float(norms[row, place]), _norm(data.values[row, columns])
        update = _norm(data.updates[row, columns])
        found.append(
            Standing(
                name=layer,
                grad_l2=grad,
                share=(grad / total) ** 2 if total > 0 else float("nan"),
                growth=float(growth[row, place]),
                value_l2=value,
                update_ratio=update / value if value > 0 else float("nan"),
                nonfinite=int(data.nonfinite[row, columns].sum()),
                parameters=len(columns),
            )
        )
    return tuple(found)


def _combined(norms: Floats) -> Floats:
    """Norm of several parts together at every snapshot, shape (S,); NaN where none was taken."""
    known = ~np.isnan(norms)
    total = np.sqrt(np.square(np.where(known, norms, 0).astype(np.float64)).sum(axis=1))
    return np.where(known.any(axis=1), total, np.nan).astype(np.float32)


def _series(data: _Data, row: int, chosen: IntArray) -> tuple[ParamSeries, ...]:
    rows = np.union1d(spread_out(np.arange(len(data.steps)), POINTS - 1), [row])
    sizes = np.where(data.values > 0, data.values, np.float32(np.nan))
    ratios = np.asarray(data.updates / sizes, dtype=np.float32)

    def told(values: Floats, column: int) -> tuple[float, ...]:
        return tuple(float(value) for value in values[rows, column])

    return tuple(
        ParamSeries(
            name=data.names[column],
            steps=tuple(int(step) for step in data.steps[rows]),
            grad_l2=told(data.grads, column),
            growth=told(data.growth, column),
            value_l2=told(data.values, column),
            update_ratio=told(ratios, column),
        )
        for column in (int(column) for column in chosen)
    )
