"""Recording a ``transformers.Trainer``.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ForensicsCallback("runs/x")])
    trainer.train()

Gradient norms are taken before the Trainer clips. The loss is that of each optimizer step; what the
Trainer logs is a mean over ``logging_steps``, with NaN filtered out by default. Checkpoints are
noted where the Trainer saves them. Of several processes rank 0 writes the run, and all write a log
of their own.
"""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from forensics.record.provenance import describe_run, package_version
from forensics.record.ranks.world import current_world, unwrapped
from forensics.record.trainers.accelerate import AcceleratedRecorder, precision_of
from forensics.record.trainers.data_position import CountedBatches, note_position
from forensics.runlog.manifest import Manifest


class ForensicsCallback(TrainerCallback):
    """Records a Trainer's run, on every process.

    Args:
        run_dir: the run directory; by default ``forensics`` in the Trainer's ``output_dir``. A
            Trainer that resumes from a checkpoint goes on with the run in it.
        snapshot_every: steps between per-parameter snapshots; 0: on bad steps only.
        options: further arguments of ``Recorder``.
    """

    def __init__(
        self, run_dir: str | Path | None = None, *, snapshot_every: int = 100, **options: Any
    ) -> None:
        self.run_dir = run_dir
        self.recorder: AcceleratedRecorder | None = None
        self._options = {"snapshot_every": snapshot_every, **options}
        self._batches = CountedBatches()

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Open the run."""
        self._batches = CountedBatches()
        if state.global_step and not args.ignore_data_skip:
            self._batches.resume(state.epoch or 0.0, train_dataloader)
        if not state.is_world_process_zero and current_world().leads:
            return  # processes that torch.distributed does not know: the first one records

        trainer = _trainer_of(optimizer)
        if trainer is None:
            with suppress(Exception):
                warnings.warn("found no Trainer: nothing is recorded", stacklevel=2)
            return
        options = self._options
        if self.recorder is not None:  # the Trainer begins anew: its batch size was too large
            self.recorder.close()
            options = options if state.global_step else {**options, "resume": True}
        self.recorder = AcceleratedRecorder(
            self._run_dir(args),
            trainer.accelerator,
            _as_trained(trainer, model),
            optimizer,
            max_norm=args.max_grad_norm or None,
            first_step=state.global_step,
            extras=("epoch", "val_loss"),
            manifest=_manifest(trainer.accelerator, args, state, model, optimizer),
            **options,
        )

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The loader begins anew."""
        self._batches.begin_epoch()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The first micro-batch of a step is next."""
        self._batches.begin_step()

    def on_substep_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """A micro-batch that is not the last one of its step has gone backward."""
        self._batches.count()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer had its turn: write the row."""
        self._batches.count()
        if self.recorder is not None:
            if state.epoch is not None:
                self.recorder.recorder.note(epoch=state.epoch)
            note_position(self.recorder.recorder, self._batches.first)
            self.recorder.end_step()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """The validation loss goes into the row of the next step, whose state it judged."""
        loss = (metrics or {}).get("eval_loss")
        if self.recorder is not None and loss is not None:
            self.recorder.recorder.note(val_loss=float(loss))

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Remember where the Trainer saved its state."""
        if self.recorder is not None:
            saved = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            self.recorder.recorder.saved(saved, state.global_step)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the run."""
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    def _run_dir(self, args: TrainingArguments) -> Path:
        return Path(self.run_dir or Path(args.output_dir) / "forensics")


def _manifest(accelerator: Any, args: Any, state: Any, model: Any, optimizer: Any) -> Manifest:
    """What the arguments say of the run."""
    known = describe_run(
        unwrapped(model),
        [optimizer.optimizer],
        scaler=accelerator.scaler,
        precision=precision_of(accelerator),
        max_norm=args.max_grad_norm or None,
    )
    packages = {name: package_version(name) for name in ("transformers", "accelerate")}
    return replace(
        known,
        accumulation=args.gradient_accumulation_steps,
        seeds={"torch": args.seed, "data": args.seed if args.data_seed is None else args.data_seed},
        schedule={
            "name": str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)),
            "warmup_steps": args.get_warmup_steps(state.max_steps),
            "total_steps": state.max_steps,
        },
        versions={**known.versions, **packages},
    )


def _trainer_of(optimizer: Any) -> Any:
    """The Trainer that trains with an optimizer; None where there is none.

    Callbacks are not told, and its accelerator, and what it has wrapped the model in, are needed.
    So it is looked for among all that is alive, once a training.
    """
    alive = (owner for owner in gc.get_objects() if issubclass(type(owner), Trainer))
    return next((one for one in alive if getattr(one, "optimizer", None) is optimizer), None)


def _as_trained(trainer: Any, model: nn.Module) -> nn.Module:
    """The model in the wrapper that reduces its gradients; an engine is none."""
    wrapped = trainer.model_wrapped
    return wrapped if unwrapped(wrapped) is unwrapped(model) else model
