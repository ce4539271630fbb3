"""How the values of a chart are laid out, so that neither a spike nor a zero hides the rest."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from forensics.frozen import dataclass
from forensics.runlog.steps import FloatArray

RANGE = 50.0
"""Largest over smallest value from which a linear axis hides the small ones."""
WIDE_RANGE = 5.0
"""The same for what varies by factors, as gradient norms do."""
OUTLIER = 1e3
"""Times the usual size from which one value flattens all others on a linear axis."""
LARGEST_LINEAR = 1e30
"""Sizes beyond which a linear axis can overflow when its margins are added."""
FEW_ZEROS = 0.01
"""Share of zeros that a logarithmic axis may leave out (they are marked)."""


class Layout(StrEnum):
    """How a value becomes a height."""

    LINEAR = "linear"
    LOG = "log"
    LOG2 = "log2"
    SYMLOG = "symlog"


@dataclass(frozen=True)
class Axis:
    """A layout.

    Attributes:
        layout: the kind.
        linear_to: with ``SYMLOG``: sizes up to this are laid out about linearly; else 0.
    """

    layout: Layout
    linear_to: float = 0.0

    @property
    def positive(self) -> bool:
        """Has it no place for 0 and less?"""
        return self.layout in (Layout.LOG, Layout.LOG2)


def axis_of(columns: Sequence[FloatArray], *, widest: float = RANGE) -> Axis:
    """The axis for some columns together.

    Args:
        columns: values of any shape; NaN where there is none, no Inf.
        widest: largest over smallest size that a linear axis may show; Inf prefers it always.
    """
    values = np.concatenate([column[~np.isnan(column)] for column in columns])
    size = np.abs(values)
    size = size[size > 0]
    if len(size) == 0:
        return Axis(Layout.LINEAR)
    largest, smallest = float(size.max()), float(size.min())
    usual = float(
        np.partition(size, len(size) // 2)[len(size) // 2]
    )  # no mean of two: it can overflow
    extreme = not 1 / LARGEST_LINEAR <= largest <= LARGEST_LINEAR
    few_zeros = np.count_nonzero(values == 0) <= FEW_ZEROS * len(values)
    if few_zeros and not (values < 0).any() and (largest / smallest >= widest or extreme):
        return Axis(Layout.LOG)
    if largest / usual >= OUTLIER or extreme:
        return Axis(Layout.SYMLOG, usual)
    return Axis(Layout.LINEAR)
