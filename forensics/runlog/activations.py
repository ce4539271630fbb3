"""Per-module activation statistics on disk (Parquet)."""

from __future__ import annotations

from pathlib import Path

from forensics.runlog.params import ParamMatrix

ACTIVATION_STATISTICS: tuple[str, ...] = ("mean", "std", "absmax", "zero_share", "nonfinite")
"""Statistic columns of an activation row; ``grad_std`` may follow (step 0 only)."""


class ActivationStore:
    """The activation statistics of one run, opened lazily."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def matrix(self, statistic: str) -> ParamMatrix:
        """One statistic over all snapshots; ``names`` are modules in forward order."""
        raise NotImplementedError
