"""Snapshot stores in memory, with the same face as the ones on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from forensics.runlog.activations import ActivationStore
from forensics.runlog.params import COUNTS, STATISTICS, ParamMatrix, ParamStore
from tests.corpus.noise import Floats
from tests.corpus.training import Bools

Key = tuple[str, str]
"""Kind and statistic."""


def _matrix(
    steps: Floats, names: tuple[str, ...], values: Floats | None, integer: bool, written: Bools
) -> ParamMatrix:
    shape = (len(steps), len(names))
    if values is None:
        filled = np.zeros(shape, np.int64) if integer else np.full(shape, np.nan, np.float32)
        return ParamMatrix(np.asarray(steps, np.int64), names, filled, np.zeros(shape, dtype=bool))
    cast = np.asarray(values, dtype=np.int64 if integer else np.float32)
    return ParamMatrix(np.asarray(steps, np.int64), names, cast, written)


class MemoryParams(ParamStore):
    """Per-parameter snapshots.

    Args:
        steps: shape (S,).
        names: per kind the names, length P.
        data: per (kind, statistic) the values, shape (S, P).
    """

    def __init__(
        self, steps: Floats, names: Mapping[str, tuple[str, ...]], data: Mapping[Key, Floats]
    ) -> None:
        super().__init__(Path("/nowhere/params"))
        self.taken_at, self.kinds, self.data = np.asarray(steps, np.int64), names, data
        self.__dict__["steps"] = self.taken_at  # a cached property of the base

    def matrix(self, statistic: str, kind: str = "param") -> ParamMatrix:
        """One statistic of one kind; nothing present where it was not taken."""
        if statistic not in STATISTICS:
            raise KeyError(statistic)
        names = self.kinds.get(kind, ())
        steps = self.taken_at if names else self.taken_at[:0]
        written = np.ones((len(steps), len(names)), dtype=bool)
        values = self.data.get((kind, statistic))
        return _matrix(steps, names, values, statistic in COUNTS, written)

    def names(self, kind: str = "param") -> tuple[str, ...]:
        """Names of one kind."""
        return self.kinds.get(kind, ())


class MemoryActivations(ActivationStore):
    """Per-module activation statistics.

    Args:
        steps: shape (S,).
        modules: length M, in forward order.
        data: per statistic the values, shape (S, M).
    """

    def __init__(self, steps: Floats, modules: tuple[str, ...], data: Mapping[str, Floats]) -> None:
        super().__init__(Path("/nowhere/activations"))
        self.taken_at, self.module_names = np.asarray(steps, np.int64), modules
        self.data = data
        self.__dict__["steps"] = self.taken_at

    def matrix(self, statistic: str) -> ParamMatrix:
        """One statistic; nothing present where it was not taken."""
        written = np.ones((len(self.taken_at), len(self.module_names)), dtype=bool)
        values = self.data.get(statistic)
        return _matrix(self.taken_at, self.module_names, values, statistic == "nonfinite", written)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules in forward order."""
        return self.module_names
