"""A ``transformers.Trainer`` under replay.

Its own ``train(resume_from_checkpoint=…)`` resumes and draws the data; it is parked where it would
call ``training_step``. The step is then made with ``training_step``, the accelerator's clip and
the prepared optimizer, and the loop goes on with stand-ins that do nothing. Nothing is saved,
deleted, reported or pushed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from forensics.record.recipe import Batch, StepRecorder
from forensics.record.trainers.accelerate import mean_loss
from forensics.replay.trainers.engine import Draw, Engine, worst_loss

_SILENT = ("ProgressCallback", "PrinterCallback", "NotebookProgressCallback", "ForensicsCallback")
_QUIET = {"load_best_model_at_end": False, "save_total_limit": None, "push_to_hub": False}
"""Arguments of what happens when the training ends: weights replaced, checkpoints deleted."""


class HuggingFaceEngine(Engine):
    """One ``Trainer``, resumed from one of its checkpoints.

    Args:
        trainer: as the user's script makes it, not trained yet.
        checkpoint: a ``checkpoint-N`` folder; None begins with step 0.
        aside: folder in the place of its ``output_dir``.
    """

    def __init__(self, trainer: Any, checkpoint: Path | None, aside: Path) -> None:
        super().__init__()
        self.trainer, self._checkpoint = trainer, checkpoint
        self._fetched: list[Batch] = []
        self._wrapped: Any = None
        silence(trainer, aside)
        self._own_step, self._own_fetch = trainer.training_step, trainer.get_batch_samples
        trainer.training_step, trainer.get_batch_samples = self._parked, self._fetching

    def start(self) -> None:
        """Resume, up to just before the first step."""
        super().start()
        trainer = self.trainer
        self.first_step = int(trainer.state.global_step)
        self._draws = {self.first_step: self._draws.pop(0)}
        self._next = self.first_step + 1
        self.model = trainer.accelerator.unwrap_model(self._wrapped)
        self.compiled = self._wrapped is not self.model and hasattr(self._wrapped, "_orig_mod")
        self._real = (trainer.optimizer, trainer.lr_scheduler)
        self._idle()

    def parts(self) -> tuple[list[Any], list[Any], Any]:
        """The optimizers, the schedulers and the loss scaler."""
        optimizer, scheduler = self._real
        return [optimizer.optimizer], [scheduler], self.trainer.accelerator.scaler

    def _train(self) -> None:
        where = None if self._checkpoint is None else str(self._checkpoint)
        self.trainer.train(resume_from_checkpoint=where)

    def _drawn(self) -> tuple[list[Batch], Any]:
        self.loop.advance()
        return list(self._fetched), None

    # -- in the loop's thread ------------------------------------------------------------------

    def _fetching(self, *args: Any, **kwargs: Any) -> Any:
        found = self._own_fetch(*args, **kwargs)
        self._fetched = found[0]
        return found

    def _parked(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """In place of ``training_step``: all micro-batches of a step are drawn before the first."""
        if self._fetched and inputs is self._fetched[0]:
            self._wrapped = model
            self.loop.park(None)
        return torch.zeros((), device=self.trainer.args.device)

    def _idle(self) -> None:
        """What the loop itself does with a step that was made already: nothing."""
        trainer, (optimizer, scheduler) = self.trainer, self._real
        trainer.optimizer, trainer.lr_scheduler = _Idle(optimizer), _Idle(scheduler)
        trainer.accelerator.clip_grad_norm_ = lambda *args, **kwargs: torch.zeros(())

    # -- one step ------------------------------------------------------------------------------

    @contextmanager
    def _at_work(self, recorder: StepRecorder, losses: list[Tensor]) -> Iterator[Any]:
        """The trainer with its real parts, its accelerator heard as when it was recorded."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        vars(accelerator).pop("clip_grad_norm_", None)
        backward, unscale = accelerator.backward, accelerator.unscale_gradients
        measured: list[bool] = []

        def heard(loss: Tensor, **kwargs: Any) -> Any:
            losses.append(loss)
            return backward(loss, **kwargs)

        def unscaled(optimizer: Any = None) -> None:
            unscale(optimizer)
            if not measured:
                measured.append(True)
                recorder.gradients(self._mean(losses))

        accelerator.backward, accelerator.unscale_gradients = heard, unscaled
        trainer.optimizer, trainer.lr_scheduler = self._real
        try:
            yield trainer
        finally:
            for name in ("backward", "unscale_gradients"):
                vars(accelerator).pop(name, None)
            self._idle()

    def _make(self, batches: Sequence[Batch], draw: Draw, recorder: StepRecorder) -> Any:
        losses: list[Tensor] = []
        with self._at_work(recorder, losses) as trainer:
            self._backward(trainer, batches)
            self._clip(trainer)
            trainer.optimizer.step()
            if not trainer.accelerator.optimizer_step_was_skipped:
                _step_scheduler(trainer.lr_scheduler)
            self._wrapped.zero_grad()
            recorder.end_step(self._mean(losses))
        return worst_loss(losses)

    def _backward(self, trainer: Any, batches: Sequence[Batch]) -> None:
        """Forward and backward of every micro-batch."""
        asks = {"device": trainer.args.device} if self._takes("device") else {}
        samples, items = self._own_fetch(iter(batches), len(batches), **asks)
        trainer.current_gradient_accumulation_steps = len(samples)
        state = trainer.accelerator.gradient_state
        for place, inputs in enumerate(samples):
            last = place == len(samples) - 1
            state._set_sync_gradients(last)
            with nullcontext() if last else trainer.accelerator.no_sync(model=self._wrapped):
                self._own_step(self._wrapped, inputs, items)

    def _takes(self, name: str) -> bool:
        return name in inspect.signature(self._own_fetch).parameters

    def _clip(self, trainer: Any) -> None:
        """As the Trainer's loop does; later releases measure where nothing clips, too."""
        limit = trainer.args.max_grad_norm
        clips = bool(limit) and limit > 0
        if hasattr(trainer, "_clip_grad_norm"):
            norm = trainer._clip_grad_norm(self._wrapped) if clips else None
            trainer._get_grad_norm(self._wrapped, grad_norm=norm)
        elif clips:
            trainer.accelerator.clip_grad_norm_(self._wrapped.parameters(), limit)

    def _mean(self, losses: Sequence[Tensor]) -> Any:
        return mean_loss([loss.detach() for loss in losses], self.trainer.accelerator)


def silence(trainer: Any, aside: Path) -> None:
    """Nothing of the user's is written, deleted, reported or sent while it is replayed.

    Args:
        trainer: whose callbacks of the user's own stay: they may change what is trained.
        aside: folder that these find in the place of the ``output_dir``.
    """
    handler = trainer.callback_handler
    handler.callbacks = [c for c in handler.callbacks if not _speaks(c)]
    for name, value in {**_QUIET, "output_dir": str(aside)}.items():
        object.__setattr__(trainer.args, name, value)  # frozen in some releases
    for name in ("_save_checkpoint", "save_model", "push_to_hub", "_push_from_checkpoint"):
        setattr(trainer, name, _nothing)
    handler.on_save, trainer.log = _not_saved, _logged_nowhere(trainer)


def _speaks(callback: Any) -> bool:
    """Reports somewhere, or records: trackers, progress bars, our own."""
    kind = type(callback)
    return "transformers.integrations" in kind.__module__ or kind.__name__ in _SILENT


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Instead of what would write."""


def _not_saved(args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
    """Instead of the event: callbacks that hear of it upload or delete."""
    control.should_save = False
    return control


def _logged_nowhere(trainer: Any) -> Any:
    """Instead of ``log``, which tells callbacks: what they may look up, and no more."""

    def log(logs: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        trainer.control.should_log = False
        trainer.state.log_history.append({**logs, "step": trainer.state.global_step})

    return log


def _step_scheduler(scheduler: Any) -> None:
    """A schedule that waits for a metric is stepped by the evaluation, not by the step."""
    if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step()


class _Idle:
    """An optimizer or a schedule that is there to be asked, and does not step."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def step(self, *args: Any, **kwargs: Any) -> None:
        """The step was made already."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
