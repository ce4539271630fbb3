"""Excerpts of the log around a finding: what a sparkline beside it shows.

They are cut while the signals are at hand, so that a report needs no log any more once it is
judged; and they are small, however long the log is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from forensics.diagnose.chart_axis import RANGE, WIDE_RANGE, Axis, Layout, axis_of
from forensics.diagnose.chart_grid import sparse_in
from forensics.diagnose.finding import Diagnosis, Finding
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass
from forensics.runlog.log_facts import PER_STEP
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

NEIGHBOURS = 10
"""Rows before and after a short finding; of a long one a third of its length before it."""
PLACES = 128
"""Stretches that an excerpt has at most; a terminal shows a third of them."""
MOST_FINDINGS = 40
"""Findings that get excerpts, the most severe first; nobody looks at more."""
MOST_COLUMNS = 3
ALWAYS = ("loss", "grad_l2_pre_clip")
"""Columns that are looked at around every finding; others where the finding's evidence names
them."""
_ON_CALL = ("scaler_scale", "lr", "val_loss", "grad_l2_post_clip", "update_l2", "param_l2")


@dataclass(frozen=True, eq=False, kw_only=True)
class Excerpt:
    """One column around one finding, gathered into few places.

    Attributes:
        column: its name.
        unit: what rows count, ``step`` or ``epoch``.
        first_step: of the excerpt.
        last_step: of the excerpt.
        low: lowest finite value of each place, shape (places,); NaN where there is none.
        high: highest one; equal to ``low`` where a place is one row.
        bad: where a NaN or Inf was written that no loss scaler explains, shape (places,).
        begin: the first place of the finding; 0 where the excerpt begins within it.
        end: the place after its last one.
        axis: how the values are best laid out.
    """

    column: str
    unit: str
    first_step: int
    last_step: int
    low: FloatArray
    high: FloatArray
    bad: BoolArray
    begin: int
    end: int
    axis: Axis


def with_excerpts(diagnosis: Diagnosis, signals: Signals) -> Diagnosis:
    """The diagnosis with excerpts beside its findings, the most severe ``MOST_FINDINGS``."""
    told = [
        replace(finding, excerpts=tuple(excerpts_of(signals, finding)))
        for finding in diagnosis.findings[:MOST_FINDINGS]
    ]
    return replace(diagnosis, findings=(*told, *diagnosis.findings[MOST_FINDINGS:]))


def excerpts_of(signals: Signals, finding: Finding) -> Iterator[Excerpt]:
    """Loss, norm and what the finding's evidence names, around it; what its evidence names first.

    A column that was not written around the finding has none.
    """
    named = [evidence.signal for evidence in finding.evidence]
    columns = [name for name in _ON_CALL if name in named]
    columns += sorted(ALWAYS, key=lambda name: name not in named)
    there = [name for name in columns if signals.has(name)][:MOST_COLUMNS]
    with np.errstate(all="ignore"):  # a log may hold any number
        for name in there:
            excerpt = _excerpt(signals, name, finding)
            if excerpt is not None:
                yield excerpt


def _excerpt(signals: Signals, name: str, finding: Finding) -> Excerpt | None:
    present = signals.present(name)
    # Columns of most rows share their steps, so that their lines stand above each other.
    rows = np.flatnonzero(present) if sparse_in(present) else None
    step = signals.step if rows is None else signals.step[rows]
    begin = int(np.searchsorted(step, finding.first_step, side="left"))
    end = int(np.searchsorted(step, finding.last_step, side="right"))
    before = max(NEIGHBOURS, (end - begin) // 3)
    first, stop = max(begin - before, 0), min(end + max(NEIGHBOURS, before // 2), len(step))
    picked: slice | IntArray = slice(first, stop) if rows is None else rows[first:stop]
    values, there = signals.column(name)[picked], present[picked]
    # A scaler that overflows now and then is at work, not ill.
    routine = signals.scaling.routine[picked] if name == "grad_l2_pre_clip" else None
    edges = np.linspace(0, stop - first, min(stop - first, PLACES) + 1).astype(np.int64)
    low, high, bad = _places(values, there, routine, edges)
    if not (np.isfinite(low) | bad).any():
        return None
    facts = signals.table.facts
    return Excerpt(
        column=name,
        unit=PER_STEP if facts is None else facts.unit,
        first_step=int(step[first]),
        last_step=int(step[stop - 1]),
        low=low,
        high=high,
        bad=bad,
        begin=int(np.searchsorted(edges, begin - first, side="right")) - 1,
        end=int(np.searchsorted(edges, end - first, side="left")),
        axis=_axis(name, low, high),
    )


def _places(
    values: FloatArray, present: BoolArray, routine: BoolArray | None, edges: IntArray
) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Lowest and highest finite value of each place, NaN where it has none, and is one bad there?

    Args:
        values: shape (rows,).
        present: where a value was written; one that was not is not bad.
        routine: where a non-finite value is nothing bad; None for nowhere.
        edges: shape (places + 1,), where each place begins and the last one ends.
    """
    low, high = np.full((2, len(edges) - 1), np.nan)
    bad = np.zeros(len(edges) - 1, dtype=bool)
    # A place at a time: of ten million rows a copy would cost more than all the rules.
    for place, (first, stop) in enumerate(pairwise(edges.tolist())):
        here, at = values[first:stop], slice(first, stop)
        finite = np.isfinite(here)
        if not finite.all():
            odd = present[at] & ~finite
            bad[place] = (odd if routine is None else odd & ~routine[at]).any()
            here = here[finite]
        if len(here):
            low[place], high[place] = here.min(), here.max()
    return low, high, bad


def _axis(name: str, low: FloatArray, high: FloatArray) -> Axis:
    if name == "scaler_scale":
        return Axis(Layout.LOG2)
    return axis_of([low, high], widest=WIDE_RANGE if name == "grad_l2_pre_clip" else RANGE)
