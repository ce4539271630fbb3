"""Recording a Lightning ``Trainer``.

    trainer = Trainer(callbacks=[ForensicsCallback("runs/x")])
    trainer.fit(module, loader)

Works with ``lightning`` and with ``pytorch_lightning``, whichever is installed. Lightning calls
back after it has unscaled the gradients and before it clips them, and hands every loss to callbacks
as it goes backward. Of several processes rank 0 writes the run, and all write a log of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from forensics.record.exits import close_after
from forensics.record.precision import Precision
from forensics.record.provenance import describe_run, package_version
from forensics.record.ranks.agreement import as_rank_zero_knows, no_longer_known
from forensics.record.ranks.world import current_world, unwrapped
from forensics.record.recorder import Recorder
from forensics.record.trainers.collectives import mark_waits
from forensics.record.trainers.data_position import note_position
from forensics.runlog.manifest import Manifest

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback

_PRECISION = {"16-mixed": "fp16", "bf16-mixed": "bf16", "32-true": "fp32"}
"""Others (true half weights, double, fp8) have no autocast that this record knows."""

_COLLECTIVES = ("all_gather", "barrier", "broadcast", "reduce_boolean_decision")
"""Of a strategy. Not ``reduce``: where it is another one than before, Lightning takes a metric that
it reduces for another metric of the same name, and raises."""
_FOLDER = "log-dir"
"""What rank 0 alone knows: the version that its logger has counted to."""


class ForensicsCallback(Callback):
    """Records what a Lightning Trainer does, on every process.

    One row is one batch in which an optimizer had its turn. Its loss is the sum of what went
    backward for it: with accumulation that is the mean over the micro-batches, for Lightning
    divides; with several losses (a GAN) it is their sum.

    Args:
        run_dir: the run directory; by default ``forensics`` in the Trainer's ``log_dir``. A Trainer
            that resumes from a checkpoint goes on with the run in it.
        monitor: the validation metric that goes into ``val_loss``.
        options: further arguments of ``Recorder``.

    Attributes:
        recorder: the ``Recorder``, while the training goes on.
    """

    def __init__(
        self, run_dir: str | Path | None = None, *, monitor: str = "val_loss", **options: Any
    ) -> None:
        self.run_dir, self.monitor = run_dir, monitor
        self.recorder: Recorder | None = None
        self._options = options
        self._losses: list[Tensor] = []
        self._turn = self._told = False
        self._first_batch: int | None = None
        self._leave: Callable[[], None] | None = None
        self._noted: set[str] = set()
        self._saving_at = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the run."""
        if not trainer.optimizers:
            return
        if not trainer.is_global_zero and current_world().leads:
            return  # processes that torch.distributed does not know: the first one records
        run_dir = self._run_dir(trainer)
        if run_dir is None:
            return
        optimizers = list(trainer.optimizers)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self._noted = self._states(trainer)
        self.recorder = Recorder(
            run_dir,
            _as_trained(trainer, pl_module),
            optimizers,
            scaler=scaler,
            max_norm=_max_norm(trainer),
            first_step=trainer.global_step // len(optimizers),
            manifest=_manifest(trainer, pl_module, scaler),
            **{"extras": ("epoch", "val_loss"), **self._options},
        )
        self._leave = mark_waits(trainer.strategy, _COLLECTIVES, self.recorder)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Remember the first batch of a step."""
        if self._first_batch is None:
            self._first_batch = batch_idx

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
        """Keep the loss, on its device."""
        if self.recorder is not None:
            self._losses.append(loss.detach())

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Unscaled and not yet clipped: measure; by hand, whose turn it is."""
        if self.recorder is None or (self._turn and self._told):
            return
        self._turn, self._told = True, bool(pl_module.automatic_optimization)
        if self._told:
            self.recorder.gradients(self._loss())
        else:  # further losses may go backward for the optimizers that step later
            self.recorder.gradients(self._loss(), optimizers=optimizer)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the row where an optimizer had its turn."""
        if self.recorder is None:
            return
        if self._turn:
            self.recorder.note(epoch=float(trainer.current_epoch))
            note_position(self.recorder, self._first_batch)
            self.recorder.end_step(None if self._told else self._loss())
            self._losses, self._turn, self._first_batch = [], False, None
        self._note_states(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """The validation metric goes into the next row, whose state it judged."""
        value = trainer.callback_metrics.get(self.monitor)
        if self.recorder is not None and value is not None and not trainer.sanity_checking:
            self.recorder.note(val_loss=float(value))

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:
        """A state is about to be written; where, is known only afterwards."""
        if self.recorder is not None:
            self._saving_at = self.recorder.next_step

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Close the run."""
        self._close(trainer, None)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the run, and say what ended it."""
        self._close(trainer, exception)

    def _run_dir(self, trainer: Any) -> Path | None:
        """Where the run lies; None where only rank 0 knows, and has no callback."""
        if self.run_dir:
            return Path(self.run_dir)
        told = as_rank_zero_knows(_FOLDER, lambda: _log_dir(trainer), current_world())
        return Path(told) / "forensics" if told else None

    def _close(self, trainer: Any, error: BaseException | None) -> None:
        if not self.run_dir:
            with suppress(Exception):  # the others may be gone already, and the store with them
                no_longer_known(_FOLDER, current_world())
        if self.recorder is not None:
            self._note_states(trainer)
            if self._leave is not None:
                self._leave()
                self._leave = None
            close_after(self.recorder, error)
            self.recorder = None

    def _loss(self) -> Tensor | float:
        if not self._losses:
            return math.nan
        return torch.stack([loss.float().mean() for loss in self._losses]).sum()

    def _note_states(self, trainer: Any) -> None:
        """Checkpoint files that are new since the last look: they are of the last save."""
        assert self.recorder is not None
        for path in sorted(self._states(trainer) - self._noted):
            self._noted.add(path)
            self.recorder.saved(path, self._saving_at)

    @staticmethod
    def _states(trainer: Any) -> set[str]:
        """What the Trainer's own checkpoint callbacks have written."""
        paths: set[str] = set()
        for callback in trainer.checkpoint_callbacks:
            paths |= set(getattr(callback, "best_k_models", {}))
            paths.add(getattr(callback, "last_model_path", ""))
            paths.add(getattr(callback, "best_model_path", ""))
        return paths - {""}


def _as_trained(trainer: Any, module: Any) -> Any:
    """The module in the wrapper that reduces its gradients, where the strategy has made one."""
    model = getattr(trainer.strategy, "model", None)
    return model if isinstance(model, nn.Module) and unwrapped(model) is module else module


def _log_dir(trainer: Any) -> str:
    """As ``trainer.log_dir``, which is a broadcast: a callback on rank 0 alone would wait in it."""
    logger = next(iter(trainer.loggers), None)
    kinds = {kind.__name__ for kind in type(logger).__mro__}
    versioned = not kinds.isdisjoint(("TensorBoardLogger", "CSVLogger"))
    chosen = getattr(logger, "log_dir" if versioned else "save_dir", None)
    return str(chosen or trainer.default_root_dir)


def _max_norm(trainer: Any) -> float | None:
    """The threshold of the global norm; None where Lightning clips nothing, or by value."""
    by = str(getattr(trainer.gradient_clip_algorithm, "value", trainer.gradient_clip_algorithm))
    value = trainer.gradient_clip_val
    return float(value) if value and by in ("norm", "None") else None


def _manifest(trainer: Any, module: Any, scaler: Any) -> Manifest:
    """What the Trainer says of the run."""
    name = _PRECISION.get(str(trainer.precision))
    known = describe_run(
        module,
        list(trainer.optimizers),
        scaler=scaler,
        precision=Precision(name, module.device.type) if name else None,
        max_norm=_max_norm(trainer),
    )
    packages = ("lightning", "pytorch-lightning")
    found = {p: package_version(p) for p in packages if package_version(p)}
    return replace(
        known,
        accumulation=trainer.accumulate_grad_batches,
        schedule={"total_steps": trainer.max_steps} if trainer.max_steps > 0 else {},
        versions={**known.versions, **found},
    )
