"""What a rank records of itself: its rows, its mark, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from forensics.errors import UsageError
from forensics.record.clipping import GradNorms
from forensics.record.disk_guard import DiskGuard
from forensics.record.ranks.own_gradients import own_gradients
from forensics.record.ranks.world import World
from forensics.runlog.manifest import Ended
from forensics.runlog.rank_files import (
    RANK_COLUMNS,
    MarkWriter,
    Stage,
    mark_path,
    rank_log_path,
)
from forensics.runlog.steps_csv import StepWriter

_SHARED = ("param_l2", "param_digest")
"""Extra columns that all replicas should agree on."""


class RankRecord:
    """Writes ``ranks/rank-0000N.csv`` and its mark.

    Nothing here waits for another rank: a loop may as well make its Recorder on rank 0 alone. The
    rows are opened with the first one. By then the first reduction has passed, and rank 0 has
    moved aside what a run that goes on does again.

    Args:
        run_dir: the run directory.
        world: this rank, of several.
        model: as the loop trains it, in its wrappers.
        parameters: (name, parameter) of the run.
        columns: of the run's step log.
        guard: what fails on the disk is noted there.
        first_step: index of the next step.
    """

    def __init__(
        self,
        run_dir: Path,
        world: World,
        model: nn.Module,
        parameters: Iterable[tuple[str, Tensor]],
        columns: Sequence[str],
        guard: DiskGuard,
        *,
        first_step: int = 0,
    ) -> None:
        self.world, self.columns = world, (*RANK_COLUMNS, *(c for c in _SHARED if c in columns))
        self._path, self._guard = rank_log_path(run_dir, world.rank), guard
        self._append, self._step, self._stage = first_step > 0, first_step, Stage.OWN
        self._rows: StepWriter | None = None
        self._mark: MarkWriter | None = None
        names = {id(parameter): name for name, parameter in parameters}
        self._local = own_gradients(model, names, self.reducing, self._waits, guard.lacks)
        self._mark_path = mark_path(run_dir, world.rank)
        # One of another run: rank 0 refuses the folder, and what the mark tells must not be lost.
        self._foreign = not (world.leads or self._append) and self._mark_path.exists()
        if not self._foreign:
            self._begin_mark()

    def reducing(self) -> None:
        """This rank's own part of the step is done; it waits for the others."""
        self._put(Stage.REDUCTION)

    def waiting(self) -> AbstractContextManager[None]:
        """The same, where the stage before goes on as the ``with`` block ends."""
        before = self._stage
        self._put(Stage.REDUCTION)
        return Waiting(lambda: self._put(before))

    def reduced(self, grads: GradNorms) -> None:
        """The gradients are reduced, and these are they."""
        if self._foreign:  # rank 0 has taken the folder all the same
            self._foreign = False
            self._begin_mark()
        self._local.fetch()
        self._local.hand(grads)
        self._come(Stage.REDUCED, known=self._stage is Stage.REDUCTION)

    def write(self, row: Mapping[str, Any], arrival: Sequence[str] = ()) -> None:
        """The finished step, as this rank has it.

        Args:
            row: of the run's step log.
            arrival: the order in which gradients arrive, as far as it is known.
        """
        cells = {**row, **self._local.take(float(row["scaler_scale"]), arrival)}
        written = False
        with self._guard.writing("ranks", UsageError):  # an older log may have other columns
            if self._rows is None:
                self._rows = StepWriter(self._path, self.columns, append=self._append)
            self._rows.write({name: cells.get(name) for name in self.columns})
            written = True
        self._step = int(row["step"]) + 1
        self._come(Stage.OWN, known=written)

    def ended(self, ended: Ended) -> None:
        """Say how this rank ended; safe to repeat."""
        with self._guard.writing("ranks"):
            if self._mark is not None:
                self._mark.end(ended.how, ended.message)

    def close(self, ended: Ended) -> None:
        """Say how this rank ended, and close its files; safe to repeat."""
        self._local.close()
        self.ended(ended)
        with self._guard.writing("ranks"):
            if self._rows is not None:
                self._rows.close()

    def _begin_mark(self) -> None:
        with self._guard.writing("ranks"):
            self._mark_path.parent.mkdir(parents=True, exist_ok=True)
            self._mark = MarkWriter(self._mark_path)
        self._put(self._stage)

    def leave(self) -> None:
        """Write nothing any more: this process is a fork of the rank's own."""
        self._mark = None

    def _waits(self, begins: bool) -> None:
        """A collective within forward or backward begins or ends."""
        if self._mark is not None:
            self._mark.note(self._step, Stage.REDUCTION if begins else Stage.OWN)

    def _come(self, stage: Stage, *, known: bool) -> None:
        """To the next stage: written at once, unless what is written tells it (``as_known``)."""
        if not known:
            self._put(stage)
        elif self._mark is not None:
            self._stage = stage
            self._mark.note(self._step, stage)

    def _put(self, stage: Stage) -> None:
        self._stage = stage
        with self._guard.writing("ranks"):
            if self._mark is not None:
                self._mark.put(self._step, stage)


class Waiting(AbstractContextManager[None]):
    """A wait that has begun, and may end as a ``with`` block does; where that raises it does not.

    Args:
        over: called where the wait is over.
    """

    def __init__(self, over: Callable[[], None]) -> None:
        self._over = over

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._over()
