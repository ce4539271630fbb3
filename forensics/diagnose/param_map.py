"""The gradient norms of all parameters over all snapshots, as a map that fits a page."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.param_facts import ParamStory
from forensics.diagnose.param_story import param_story
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import Floats, layer_of
from forensics.frozen import dataclass
from forensics.runlog.run import Run
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

PLACES = 600
"""Columns of the map at most; more snapshots share one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class ParamMap:
    """Parameters × snapshots.

    Attributes:
        edges: step at which each column begins, and at which the last one ends, shape (C + 1,),
            float64. A snapshot stands until the next one.
        names: of the parameters, in network order, length P.
        layers: layer of each parameter, length P.
        norms: L2 norm of each gradient, shape (P, C), the largest of the column's snapshots; NaN
            where no finite one was taken.
        nonfinite: some gradient or value of it is NaN or Inf, shape (P, C).
        story: who moved first, and who went bad first.
    """

    edges: FloatArray
    names: tuple[str, ...]
    layers: tuple[str, ...]
    norms: Floats
    nonfinite: BoolArray
    story: ParamStory


def param_map(run: Run, *, places: int = PLACES) -> ParamMap:
    """The map of a run.

    Raises:
        InputError: the run has no per-parameter snapshots.
    """
    story = param_story(run)
    signals = Signals(run)
    grads = signals.param_matrix("grad_l2")
    first = grads or signals.param_matrix("value_l2")
    assert first is not None  # else there is no story
    norms = np.asarray(first.values, np.float32) if grads else np.full(first.values.shape, np.nan)
    bad = ~np.isfinite(norms) & first.present if grads else np.zeros(norms.shape, dtype=bool)
    for name in ("grad_nonfinite", "value_nonfinite"):
        counts = signals.param_matrix(name)
        if counts is not None:
            bad |= np.asarray(counts.values, np.int64) > 0
    edges, columns, starts = _columns(first.steps, places)
    norms = np.where(np.isfinite(norms), norms, np.float32(np.nan))
    return ParamMap(
        edges=edges,
        names=first.names,
        layers=tuple(layer_of(name) for name in first.names),
        norms=np.fmax.reduceat(norms, starts, axis=0)[columns].T,
        nonfinite=np.logical_or.reduceat(bad, starts, axis=0)[columns].T,
        story=story,
    )


def _columns(steps: IntArray, places: int) -> tuple[FloatArray, IntArray, IntArray]:
    """Columns of equal width in steps.

    Returns:
        Their edges; of each column which group of snapshots it shows (its own, or the last before
        it); the first snapshot of each group.
    """
    usual = float(np.median(np.diff(steps))) if len(steps) > 1 else 1.0
    edges = np.linspace(float(steps[0]), float(steps[-1]) + max(usual, 1.0), places + 1)
    begin = np.searchsorted(steps.astype(np.float64), edges)
    begin[0], begin[-1] = 0, len(steps)
    own = begin[1:] > begin[:-1]
    return edges, np.cumsum(own) - 1, begin[:-1][own]
