"""Per-parameter snapshots on disk (Parquet), and the view of them that rules read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from forensics.runlog.steps import BoolArray, IntArray

STATISTICS: tuple[str, ...] = (
    "grad_l2",
    "grad_absmax",
    "grad_nonfinite",
    "value_l2",
    "value_nonfinite",
    "update_l2",
    "v_ratio",
)
"""Statistic columns of a snapshot row; null where one does not apply or was not taken."""

KINDS: tuple[str, ...] = ("param", "buffer", "ema", "optimizer")


@dataclass(frozen=True)
class ParamMatrix:
    """One statistic of one kind, snapshots × names.

    Attributes:
        steps: shape (S,), ascending.
        names: length P, in network order.
        values: shape (S, P), float32 (counts: int64); NaN (counts: 0) where not taken.
        present: shape (S, P).
    """

    steps: IntArray
    names: tuple[str, ...]
    values: NDArray[np.float32] | NDArray[np.int64]
    present: BoolArray


class ParamStore:
    """The snapshots of one run, opened lazily; reading never loads more columns than asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def matrix(self, statistic: str, kind: str = "param") -> ParamMatrix:
        """One statistic of one kind over all snapshots."""
        raise NotImplementedError
