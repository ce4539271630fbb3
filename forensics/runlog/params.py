"""Per-parameter snapshots on disk (Parquet), and the view of them that rules read."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forensics.runlog.snapshot_layout import SnapshotLayout
from forensics.runlog.snapshot_matrix import SnapshotMatrix
from forensics.runlog.snapshot_reader import SnapshotReader, SnapshotRows
from forensics.runlog.snapshot_writer import GROUP, SnapshotWriter

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
COUNTS: tuple[str, ...] = ("grad_nonfinite", "value_nonfinite")
"""The statistics that are counts of elements; the others are float32."""

LAYOUT = SnapshotLayout(
    subject="name",
    kinds=KINDS,
    floats=tuple(name for name in STATISTICS if name not in COUNTS),
    counts=COUNTS,
)

ParamMatrix = SnapshotMatrix
ParamRows = SnapshotRows


class ParamWriter(SnapshotWriter):
    """Writes the per-parameter snapshots of a run.

    Args:
        directory: ``RUN/params``; created where it is missing.
        group: snapshots a Parquet part.

    Raises:
        OSError: the directory cannot be created or read.
    """

    def __init__(self, directory: str | os.PathLike[str], group: int = GROUP) -> None:
        super().__init__(Path(directory), LAYOUT, group)

    def append(self, step: int, names: Sequence[str], kind: str, stats: Mapping[str, Any]) -> None:
        """Append one kind's rows of the snapshot at a step; they are with the system on return.

        Args:
            step: the step.
            names: in network order.
            kind: one of ``KINDS``.
            stats: per statistic one value a name (array, masked array or list); a statistic
                that is left out, and a None or masked element, was not taken.

        Raises:
            ValueError: an unknown statistic or kind, or a wrong number of values.
            OSError: it could not be written; what was appended before stays readable.
        """
        self._append(step, names, kind, stats)


class ParamStore(SnapshotReader):
    """The snapshots of one run, opened lazily; reading never loads more columns than asked for."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(Path(directory), LAYOUT)

    def matrix(self, statistic: str, kind: str = "param") -> ParamMatrix:
        """One statistic of one kind over all snapshots; KeyError for an unknown statistic."""
        return self._matrix(statistic, kind)

    def names(self, kind: str = "param") -> tuple[str, ...]:
        """Names of one kind in network order."""
        return self._names(kind)

    def first_nonfinite(self, kind: str | None = None) -> ParamRows:
        """The rows with a non-finite gradient or value at the first step that has one.

        Args:
            kind: look at one kind only; None for all.

        Returns:
            Rows in network order with both counts; no rows where everything is finite.
        """
        return self._first_above_zero(kind)
