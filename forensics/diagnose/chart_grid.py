"""A long log gathered into as many stretches of steps as a picture has places, no spike lost.

Each stretch keeps the lowest and the highest value, so a spike of one row in a million is as tall
as it was. ``numpy``'s own ``fmin.reduceat`` does it in 0.4 ms a million rows. A package made for
it (tsdownsample 0.1.5) picks rows instead: its plain version lets an Inf stand for the spike
beside it, its NaN version a NaN, and every series would lie on steps of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose.series import merged, row_medians, runs_of
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

_SAMPLED = 32
"""Values of a stretch that its middle is taken from; a median of 32 is known to 0.2 sigma."""

SPARSE = 0.5
"""Share of rows below which a column is drawn as points: a validation loss, not a gap."""


def sparse_in(present: BoolArray) -> bool:
    """Is a column written in so few rows that a line would lie?"""
    return bool(np.count_nonzero(present) < SPARSE * len(present))


@dataclass(frozen=True)
class Span:
    """A stretch of steps in which a series is NaN or Inf wherever it is drawn.

    Attributes:
        first_step: the first non-finite step.
        last_step: the last one.
        count: how many rows of the stretch are non-finite (others may lie between them, too close
            to be drawn apart).
        value: the first of the values: NaN, Inf or -Inf.
    """

    first_step: int
    last_step: int
    count: int
    value: float


@dataclass(frozen=True, eq=False)
class Grid:
    """The stretches of one log, each of at least one row.

    Attributes:
        rows: step of each row of the log, shape (rows,).
        starts: first row of each stretch, shape (places,), ascending.
    """

    rows: IntArray
    starts: IntArray

    @classmethod
    def of(cls, step: IntArray, places: int, apart: IntArray | None = None) -> Grid:
        """At most ``places`` stretches of equal width in steps; a row each where they suffice.

        Args:
            step: of each row, ascending, shape (rows,).
            places: stretches at most, beside those of ``apart``.
            apart: rows that have a stretch of their own each, ascending; default none.
        """
        if len(step) <= places:
            return cls(step, np.arange(len(step)))
        edges = np.linspace(float(step[0]), float(step[-1]), places + 1)[:-1]
        starts = np.minimum(np.searchsorted(step.astype(np.float64), edges), len(step) - 1)
        starts[0] = 0
        if apart is None or len(apart) == 0:
            return cls(step, merged(starts))
        after = apart + 1
        return cls(step, merged(starts, apart, after[after < len(step)]))

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def ends(self) -> IntArray:
        """The row after the last of each stretch, shape (places,)."""
        return np.append(self.starts[1:], len(self.rows))

    @property
    def step(self) -> IntArray:
        """First step of each stretch, shape (places,)."""
        return self.rows[self.starts]

    def low(self, values: FloatArray) -> FloatArray:
        """Lowest value of each stretch; NaN where it has none. NaN counts as no value."""
        return np.asarray(np.fmin.reduceat(values, self.starts)) if len(self) else np.empty(0)

    def high(self, values: FloatArray) -> FloatArray:
        """Highest value of each stretch; NaN where it has none. NaN counts as no value."""
        return np.asarray(np.fmax.reduceat(values, self.starts)) if len(self) else np.empty(0)

    def middle(self, values: FloatArray) -> FloatArray:
        """Median of values spread evenly over each stretch; NaN where it has none."""
        length = self.ends - self.starts
        if len(self) == 0 or int(length.max()) == 1:
            return np.array(values, dtype=np.float64)
        share = (np.arange(_SAMPLED) + 0.5) / _SAMPLED
        picked = self.starts[:, None] + (length[:, None] * share).astype(np.int64)
        with np.errstate(over="ignore"):
            return row_medians(values[picked])

    def gathered(self, rows: IntArray, weight: NDArray[Any] | None = None) -> tuple[IntArray, ...]:
        """Events by stretch.

        Args:
            rows: their rows, ascending, shape (events,).
            weight: how many each stands for; default 1.

        Returns:
            Of each stretch with an event the first one's index into ``rows``, and their number.
        """
        if len(rows) == 0:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        place = np.searchsorted(self.starts, rows, side="right")
        first = np.flatnonzero(np.concatenate(([True], np.diff(place) > 0)))
        count = np.ones(len(rows), np.int64) if weight is None else np.asarray(weight, np.int64)
        return first, np.add.reduceat(count, first)

    def spans(self, bad: BoolArray, values: FloatArray) -> tuple[Span, ...]:
        """The stretches of marked rows; neighbouring places with one are one span."""
        rows = np.flatnonzero(bad)
        if len(rows) == 0:
            return ()
        marked = np.logical_or.reduceat(bad, self.starts)
        first, last = runs_of(marked)
        begin = np.searchsorted(rows, self.starts[first])
        end = np.searchsorted(rows, self.ends[last])
        return tuple(
            Span(
                first_step=int(self.rows[rows[a]]),
                last_step=int(self.rows[rows[b - 1]]),
                count=int(b - a),
                value=float(values[rows[a]]),
            )
            for a, b in zip(begin.tolist(), end.tolist(), strict=True)
        )
