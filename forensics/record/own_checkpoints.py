"""Checkpoints that the recorder keeps of somebody else's loop, and going on from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.checkpoints import CheckpointStore
from forensics.record.disk_guard import DiskGuard
from forensics.record.health import HealthScan
from forensics.record.loop_scalers import as_scalers
from forensics.record.options import KeepPolicy
from forensics.record.plain_names import PlainState
from forensics.record.recipe import Training
from forensics.record.rng import restore_rng, rng_state
from forensics.record.run_directory import ResumePoint
from forensics.record.step_log import SkipLog, StepLog
from forensics.record.training_state import gather_state, put_part, restore_state


class OwnCheckpoints:
    """Saves the state of a loop every so many steps, as the reference loop does.

    Args:
        run_dir: the run directory.
        training: as ``training_of`` has it.
        model: whose parameters tell what in a state is bad.
        guard: a save that fails is noted there.
        every: steps between states; 0 saves none.
        keep: which of them stay.
        announce: told the steps ``best`` and ``last_healthy`` after every save.
        point: where a run that goes on was left.
    """

    def __init__(
        self,
        run_dir: Path,
        training: Training,
        model: nn.Module,
        guard: DiskGuard,
        *,
        every: int,
        keep: KeepPolicy,
        announce: Callable[[dict[str, int | None]], None],
        point: ResumePoint | None = None,
    ) -> None:
        self._training, self._guard, self._every = training, guard, every
        self._model, self._folder = model, run_dir / "checkpoints"
        self._keep, self._announce = keep, announce
        self._store = self._new_store()
        self._saved = -1
        if point is not None and point.state is not None:
            self._take_up(point, point.state)

    def follow(self) -> None:
        """Other parameters are trained from now on: states are judged by their names."""
        kept, self._store = self._store.state_dict(), self._new_store()
        self._store.load_state_dict(kept)

    def begin(self, step: int) -> None:
        """Save the state before the first step, if it is not there already."""
        if self._every and self._saved != step:
            self.save(step)

    def after(self, step: int, log: StepLog | SkipLog | None) -> None:
        """Take in a finished step; save the state before the next where it is due.

        Args:
            step: its index.
            log: of the last step that has one.
        """
        if not self._every:
            return
        if log is not None and log.step == step:
            self._store.observe(step, log.loss, skipped=log.skipped, bad=log.bad)
        if (step + 1) % self._every == 0:
            self.save(step + 1)

    def end(self, step: int, *, finished: bool) -> None:
        """Save the state that a finished training leaves; a failed one leaves none."""
        if finished and self._every and self._saved != step:
            self.save(step)

    def save(self, step: int) -> None:
        """Save the state before ``step``."""
        self._saved = step
        self._store.save(step, *gather_state(self._training, step, {"checkpoints": self._store}))

    def leave(self) -> None:
        """Save nothing any more: this process is a fork of the one that does."""
        self._every = 0

    def _take_up(self, point: ResumePoint, state: Mapping[str, Any]) -> None:
        """Go on judging where the run was left."""
        kept, where = state.get("checkpoints"), point.path
        if kept is not None:
            put_part("checkpoints", self._store.load_state_dict, kept, where)
        self._store.judge_loaded(state)
        self._saved = point.step

    def _new_store(self) -> CheckpointStore:
        scan = HealthScan(self._model, self._training.optimizers)
        return CheckpointStore(self._folder, scan, self._guard, self._keep, self._announce)


def training_of(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    scaler: Any,
    ema: Any,
    schedulers: Any,
    extra: Mapping[str, Any],
) -> Training:
    """All that is saved of a loop, as one; a second scaler is ``extra.scaler_1``."""
    first, *others = [*as_scalers(scaler), None]
    more = {f"scaler_{i}": one for i, one in enumerate(others, 1) if one is not None}
    listed = [schedulers] if hasattr(schedulers, "step") else list(schedulers)
    return Training(
        cast(Any, PlainState(model)),
        list(optimizers),
        _no_loss,
        schedulers=listed,
        scaler=first,
        ema=ema,
        extra={**more, **extra},
    )


def put_back(training: Training, point: ResumePoint, *, leads: bool) -> None:
    """The training as it was saved.

    Args:
        training: as ``training_of`` has it.
        point: where the run goes on.
        leads: False on a further rank: the random state in a file is rank 0's, so it keeps its own.

    Raises:
        InputError: the state is of another training.
    """
    if point.state is None:
        return
    own = rng_state()
    restore_state(training, point.state, where=point.path)
    if point.random_state(leads=leads) is None:
        restore_rng(own)


def _no_loss(model: nn.Module, batch: Any) -> Tensor:
    raise NotImplementedError("the loop computes its own loss")
