"""Per-module activation statistics on disk (Parquet)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forensics.runlog.snapshot_layout import SnapshotLayout
from forensics.runlog.snapshot_matrix import SnapshotMatrix
from forensics.runlog.snapshot_reader import SnapshotReader, SnapshotRows
from forensics.runlog.snapshot_writer import GROUP, SnapshotWriter

ACTIVATION_STATISTICS: tuple[str, ...] = ("mean", "std", "absmax", "zero_share", "nonfinite")
"""Statistic columns of an activation row; ``grad_std`` may follow (step 0 only)."""
GRAD_STD = "grad_std"
"""Standard deviation of the gradient with respect to the activation: judges initialisation."""

LAYOUT = SnapshotLayout(
    subject="module",
    kinds=(),
    floats=("mean", "std", "absmax", "zero_share", GRAD_STD),
    counts=("nonfinite",),
)


class ActivationWriter(SnapshotWriter):
    """Writes the activation statistics of a run.

    Args:
        directory: ``RUN/activations``; created where it is missing.
        group: snapshots a Parquet part.

    Raises:
        OSError: the directory cannot be created or read.
    """

    def __init__(self, directory: str | os.PathLike[str], group: int = GROUP) -> None:
        super().__init__(Path(directory), LAYOUT, group)

    def append(self, step: int, modules: Sequence[str], stats: Mapping[str, Any]) -> None:
        """Append the snapshot at a step; it is with the system on return.

        Args:
            step: the step.
            modules: names from ``named_modules()``, in forward order.
            stats: per statistic one value a module; what is left out or None was not taken.

        Raises:
            ValueError: an unknown statistic, or a wrong number of values.
            OSError: it could not be written; what was appended before stays readable.
        """
        self._append(step, modules, "", stats)


class ActivationStore(SnapshotReader):
    """The activation statistics of one run, opened lazily."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        super().__init__(Path(directory), LAYOUT)

    def matrix(self, statistic: str) -> SnapshotMatrix:
        """One statistic over all snapshots; ``names`` are modules in forward order."""
        return self._matrix(statistic, "")

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules in forward order."""
        return self._names("")

    def first_nonfinite(self) -> SnapshotRows:
        """The modules with a non-finite activation at the first step that has one."""
        return self._first_above_zero(None)
