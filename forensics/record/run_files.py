"""The files of a run that grow with it: step log, snapshots, activation statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forensics.record.disk_guard import DiskGuard
from forensics.record.snapshots import Snapshot
from forensics.runlog.activations import ActivationWriter
from forensics.runlog.params import ParamWriter
from forensics.runlog.steps_csv import StepWriter


class RunFiles:
    """Opens each file when it is first written; what fails is noted by the guard, never raised.

    Args:
        run_dir: the run directory.
        columns: of the step log.
        guard: where failures are noted.
        append: continue the files that are there.

    Raises:
        UsageError: the step log to continue has other columns.
    """

    def __init__(
        self, run_dir: Path, columns: Sequence[str], guard: DiskGuard, *, append: bool
    ) -> None:
        self._run_dir, self._columns, self._guard, self._append = run_dir, columns, guard, append
        self._known = frozenset(columns)
        self._steps: StepWriter | None = None
        self._params: ParamWriter | None = None
        self._activations: ActivationWriter | None = None
        self.closed = False
        with guard.writing("steps.csv"):
            self._open_steps()

    def write_row(self, row: Mapping[str, Any]) -> None:
        """One row of the step log; cells of columns that it does not have are left out."""
        with self._guard.writing("steps.csv"):
            cells = {name: value for name, value in row.items() if name in self._known}
            self._open_steps().write(cells)

    def write_snapshot(self, snapshot: Snapshot | None) -> None:
        """All kinds of a snapshot; nothing where there is none."""
        if snapshot is None:
            return
        with self._guard.writing("params"):
            if self._params is None:
                self._params = ParamWriter(self._run_dir / "params")
            for kind, (names, stats) in snapshot.kinds.items():
                self._params.append(snapshot.step, names, kind, stats)

    def write_activations(
        self, step: int, modules: Sequence[str], stats: Mapping[str, Any]
    ) -> None:
        """The activation statistics of a step; nothing where no module ran."""
        if not modules:
            return
        with self._guard.writing("activations"):
            if self._activations is None:
                self._activations = ActivationWriter(self._run_dir / "activations")
            self._activations.append(step, modules, stats)

    def close(self) -> None:
        """Close all of them; safe to repeat."""
        self.closed = True
        for kind, file in (
            ("steps.csv", self._steps),
            ("params", self._params),
            ("activations", self._activations),
        ):
            if file is not None:
                with self._guard.writing(kind):
                    file.close()

    def _open_steps(self) -> StepWriter:
        if self._steps is None:
            path = self._run_dir / "steps.csv"
            self._steps = StepWriter(path, self._columns, append=self._append)
        return self._steps
