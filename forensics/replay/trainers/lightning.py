"""A Lightning ``Trainer`` under replay.

Its own ``fit(…, ckpt_path=…)`` resumes and draws the data; it is parked where its loop would
optimize. The step is then made by the very loop part that Lightning would have called, which calls
the module's ``training_step`` and ``optimizer_step``, unscales, clips and steps the schedules.
Nothing is saved or logged.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forensics.errors import NotReplayableError
from forensics.record.recipe import Batch, StepRecorder
from forensics.replay.trainers.engine import Draw, Engine, worst_loss

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
    from lightning.pytorch.loggers.logger import DummyLogger
else:
    try:
        from lightning.pytorch import Callback
        from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
        from lightning.pytorch.loggers.logger import DummyLogger
    except ImportError:
        from pytorch_lightning import Callback
        from pytorch_lightning.callbacks import Checkpoint, ModelSummary, ProgressBar
        from pytorch_lightning.loggers.logger import DummyLogger


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where Lightning's loop stands with one micro-batch.

    Attributes:
        epoch, ready: finished epochs, and batches of this one that were begun.
        last: is it the last batch of its epoch?
        steps: what the loop counts of the optimizer's steps.
        arguments: of the loop part that optimizes.
    """

    epoch: int
    ready: int
    last: bool
    steps: dict[str, Any]
    arguments: tuple[Any, ...] = ()


class LightningEngine(Engine):
    """One ``Trainer`` with its module and data, resumed from one of its checkpoints.

    Args:
        trainer: as the user's script makes it, not fitted yet.
        module: the ``LightningModule``.
        data: what ``fit`` gets beside it: loaders or a ``DataModule``, by place or by name.
        checkpoint: a ``.ckpt`` file; None begins with step 0.
        aside: folder in the place of its ``default_root_dir``.
    """

    def __init__(
        self, trainer: Any, module: Any, data: Sequence[Any], checkpoint: Path | None, aside: Path
    ) -> None:
        super().__init__()
        self.trainer, self.model = trainer, module
        self._data, self._checkpoint = data, checkpoint
        self._losses: list[Tensor] = []
        self._recorder: StepRecorder | None = None
        self._measured = False
        silence(trainer, aside)
        trainer.callbacks.append(_Hearing(self))
        self._epochs = trainer.fit_loop.epoch_loop
        self._own_update = self._epochs.update_lr_schedulers
        self._automatic = bool(module.automatic_optimization)
        loop = self._epochs
        self._part = loop.automatic_optimization if self._automatic else loop.manual_optimization
        self._own_run = self._part.run
        self._part.run = self._parked
        loop.update_lr_schedulers = self._update_later

    def start(self) -> None:
        """Resume, up to just before the first step."""
        super().start()
        count = max(len(self.trainer.optimizers), 1)
        self.first_step = self.trainer.global_step // count
        self._draws = {self.first_step: self._draws.pop(0)}
        self._next = self.first_step + 1
        self.compiled = hasattr(self.trainer.strategy.model, "_orig_mod")

    def parts(self) -> tuple[list[Any], list[Any], Any]:
        """The optimizers, the schedules and the loss scaler."""
        trainer = self.trainer
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        return (
            list(trainer.optimizers),
            schedules,
            getattr(trainer.precision_plugin, "scaler", None),
        )

    def _train(self) -> None:
        named = self._data[0] if len(self._data) == 1 and isinstance(self._data[0], dict) else {}
        placed = () if named else self._data
        where = None if self._checkpoint is None else str(self._checkpoint)
        self.trainer.fit(self.model, *placed, **named, ckpt_path=where)

    def _drawn(self) -> tuple[list[Batch], Any]:
        """As many micro-batches as one optimizer step takes."""
        batches: list[Batch] = []
        places: list[_Place] = []
        while True:
            batch, place, more = self.loop.advance()
            batches.append(batch)
            places.append(place)
            if not more:
                return batches, places

    def _cursor(self) -> _Place:
        return self._here(())

    def _put_cursor(self, cursor: _Place) -> None:
        """Lightning's own counters: of epochs, batches and steps."""
        self.trainer.fit_loop.epoch_progress.current.completed = cursor.epoch
        self._epochs.batch_progress.current.ready = cursor.ready
        self._epochs.batch_progress.is_last_batch = cursor.last
        self._counter.load_state_dict(_deep(cursor.steps))

    def _here(self, arguments: tuple[Any, ...]) -> _Place:
        progress = self._epochs.batch_progress
        return _Place(
            epoch=self.trainer.fit_loop.epoch_progress.current.completed,
            ready=progress.current.ready,
            last=progress.is_last_batch,
            steps=_deep(self._counter.state_dict()),
            arguments=arguments,
        )

    @property
    def _counter(self) -> Any:
        part = self._part
        return part.optim_progress if self._automatic else part.optim_step_progress

    # -- in the loop's thread ------------------------------------------------------------------

    def _parked(self, *arguments: Any) -> dict[str, Any]:
        """In place of the loop part that optimizes."""
        named = arguments[-1]
        if "batch" not in named:
            raise NotReplayableError(
                "its training_step draws its data by itself (dataloader_iter)", where="trainer"
            )
        more = self._automatic and self._epochs._should_accumulate()
        self.loop.park((named["batch"], self._here(arguments), more))
        return {}

    def _update_later(self, interval: str, update_plateau_schedulers: bool) -> None:
        """The step's own schedules were stepped with it; those that wait for a metric are not."""
        if update_plateau_schedulers:
            self._own_update(interval, update_plateau_schedulers)

    # -- one step ------------------------------------------------------------------------------

    def _make(self, batches: Sequence[Batch], draw: Draw, recorder: StepRecorder) -> Any:
        self._recorder, self._measured, self._losses = recorder, False, []
        if self._automatic:
            self.model.zero_grad(set_to_none=True)  # Lightning does so within the first closure
        places = draw.cursor[-len(batches) :]
        try:
            for batch, place in zip(batches, places, strict=True):
                self._optimize(batch, place)
            recorder.end_step(self.loss())
        finally:
            self._recorder = None
        return worst_loss(self._losses)

    def _optimize(self, batch: Batch, place: _Place) -> None:
        """One micro-batch, as the body of Lightning's loop has it."""
        counted = self._counter.state_dict()
        self._put_cursor(_moved(place, counted) if self._losses else place)
        *others, named = place.arguments
        self._own_run(*others, OrderedDict(named, batch=batch))
        self._own_update("step", update_plateau_schedulers=False)
        if self._epochs._num_ready_batches_reached():
            self._own_update("epoch", update_plateau_schedulers=False)

    def heard(self, loss: Tensor) -> None:
        """A loss goes backward."""
        if self._recorder is not None:
            self._losses.append(loss)

    def unscaled(self, optimizer: Optimizer) -> None:
        """An optimizer is about to step; the gradients are measured as the callback does."""
        if self._recorder is None or (self._measured and self._automatic):
            return
        self._measured = True
        if self._automatic:
            self._recorder.gradients(self.loss())
        else:
            self._recorder.gradients(optimizers=optimizer)

    def loss(self) -> Tensor | float:
        """The sum of what went backward, as the callback records it."""
        if not self._losses:
            return float("nan")
        return torch.stack([loss.detach().float().mean() for loss in self._losses]).sum()


class _Hearing(Callback):
    """Tells the engine what Lightning tells its callbacks while a step is made."""

    def __init__(self, engine: LightningEngine) -> None:
        self._engine = engine

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """A loss goes backward."""
        self._engine.heard(loss)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The gradients are unscaled, not clipped."""
        self._engine.unscaled(optimizer)


def silence(trainer: Any, aside: Path) -> None:
    """Nothing of the user's is written, logged or shown while it is replayed.

    Args:
        trainer: whose callbacks of the user's own stay: they may change what is trained.
        aside: folder that these find in the place of the ``default_root_dir``.
    """
    ours = "forensics.record.trainers"
    loud = (Checkpoint, ProgressBar, ModelSummary)
    trainer.callbacks[:] = [
        c
        for c in trainer.callbacks
        if not isinstance(c, loud)
        and type(c).__module__ != ours
        and not type(c).__module__.startswith(ours)
    ]
    for callback in trainer.callbacks:  # that a loop is left midway is no end of their training
        callback.on_exception = _nothing
    trainer.save_checkpoint = _nothing
    trainer._default_root_dir = str(aside)
    trainer.loggers = [_Nowhere(aside)] if trainer.loggers else []


class _Nowhere(DummyLogger):
    """A logger that takes in everything; whoever asks where it writes is sent aside."""

    def __init__(self, aside: Path) -> None:
        super().__init__()
        self._aside = str(aside)

    @property
    def save_dir(self) -> str:
        """What ``trainer.log_dir`` gives."""
        return self._aside

    @property
    def log_dir(self) -> str:
        """What modules ask their logger for."""
        return self._aside


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Instead of what would write."""


def _moved(place: _Place, counted: Mapping[str, Any]) -> _Place:
    """The place of a later micro-batch, with what the earlier ones have counted since."""
    return _Place(
        epoch=place.epoch,
        ready=place.ready,
        last=place.last,
        steps=dict(counted),
        arguments=place.arguments,
    )


def _deep(tree: Any) -> Any:
    return {k: _deep(v) for k, v in tree.items()} if isinstance(tree, Mapping) else tree
