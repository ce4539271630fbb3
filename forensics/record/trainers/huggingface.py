"""Recording a ``transformers.Trainer``.

    trainer = Trainer(model, args, train_dataset=data, callbacks=[ForensicsCallback("runs/x")])
    trainer.train()

Gradient norms are taken before the Trainer clips. The loss is that of each optimizer step; what the
Trainer logs is a mean over ``logging_steps``, with NaN filtered out by default. Checkpoints are
noted where the Trainer saves them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from forensics.record.provenance import describe_run, package_version
from forensics.record.ranks.agreement import leave_to_rank_zero
from forensics.record.trainers.accelerate import AcceleratedRecorder, precision_of
from forensics.runlog.manifest import Manifest


class ForensicsCallback(TrainerCallback):
    """Records a Trainer's run; on the first process alone.

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
        self._forget: Callable[[], None] = lambda: None

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: Any = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Open the run as soon as the Trainer's accelerator is first used."""
        if not state.is_world_process_zero:
            leave_to_rank_zero(self._run_dir(args), model)
            return

        def opened(accelerator: Any) -> None:
            self.recorder = self._open(accelerator, args, state, model, optimizer)

        self._forget = _when_first_used(optimizer, opened)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """The optimizer had its turn: write the row."""
        if self.recorder is not None:
            if state.epoch is not None:
                self.recorder.recorder.note(epoch=state.epoch)
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
        self._forget()
        if self.recorder is not None:
            self.recorder.close()
            self.recorder = None

    def _run_dir(self, args: TrainingArguments) -> Path:
        return Path(self.run_dir or Path(args.output_dir) / "forensics")

    def _open(
        self, accelerator: Any, args: Any, state: Any, model: Any, optimizer: Any
    ) -> AcceleratedRecorder:
        max_norm = args.max_grad_norm or None
        return AcceleratedRecorder(
            self._run_dir(args),
            accelerator,
            model,
            optimizer,
            max_norm=max_norm,
            first_step=state.global_step,
            extras=("epoch", "val_loss"),
            manifest=_manifest(accelerator, args, state, model, optimizer),
            **self._options,
        )


def _manifest(accelerator: Any, args: Any, state: Any, model: Any, optimizer: Any) -> Manifest:
    """What the arguments say of the run."""
    known = describe_run(
        accelerator.unwrap_model(model),
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


def _when_first_used(optimizer: Any, use: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``use`` with the accelerator that prepared ``optimizer``, at its first ``backward``.

    Callbacks are not told their Trainer's accelerator, so the class is listened to until it calls.

    Returns:
        What stops listening.
    """
    original = Accelerator.backward

    def listening(accelerator: Any, loss: Any, **arguments: Any) -> Any:
        if any(own is optimizer for own in accelerator._optimizers):
            stop()
            use(accelerator)
            return accelerator.backward(loss, **arguments)
        return original(accelerator, loss, **arguments)

    def stop() -> None:
        if Accelerator.backward is listening:
            Accelerator.backward = original

    Accelerator.backward = listening
    return stop
