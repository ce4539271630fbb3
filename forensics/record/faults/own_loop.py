"""What the faults with a loop of their own share: the plain loop, and one batch gone bad."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from forensics.record.config import Config, ScheduleConfig
from forensics.record.healthy import FAULT_STEP
from forensics.record.precision import choose_precision
from forensics.record.recipe import Batch, Recipe, StepRecorder, Training


def forward(training: Training, batches: Sequence[Batch], config: Config) -> Tensor:
    """The mean loss of the micro-batches, under autocast of the configured precision."""
    device = next(training.model.parameters()).device
    precision = choose_precision(config.precision, device, lambda _: None)
    with precision.autocast():
        losses = [training.loss(training.model, batch) for batch in batches]
    return sum(losses[1:], losses[0]) / len(losses)


def clip(training: Training, config: Config) -> None:
    """Torch's own clip, where the config has a threshold."""
    if config.max_norm is not None:
        clip_grad_norm_(training.model.parameters(), config.max_norm)


def plain(base: Config, steps: int, **changes: Any) -> Config:
    """A config without clip and schedule, as the smallest scripts have none."""
    return replace(base, steps=steps, **{"max_norm": None, "schedule": ScheduleConfig(), **changes})


class PlainLoop(Recipe):
    """The loop of most tutorials: right, and without a single check.

    Without a scaler (a disabled one passes everything through) it applies whatever the gradients
    are; with one, it relies on ``scaler.step`` alone.
    """

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """Backward, unscale, clip, step, update."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        clip(training, self.config)
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= scale:  # a lower one means that the step was skipped
            for scheduler in training.schedulers:
                scheduler.step()
        recorder.end_step(loss)
        return loss


class OneBadBatch(Recipe):
    """At one step, the first micro-batch is not as the others are."""

    def batch(self, step: int) -> list[Batch]:
        """The data of the recipe below, one micro-batch of them spoilt."""
        batches: list[Batch] = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            batches[0] = self.spoil(*batches[0])
        return batches

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """The micro-batch that does the damage, made of a good one."""
        raise NotImplementedError(f"recipe {self.name} has no spoil()")


class StepCounter:
    """How many steps were made: a script's ``global_step``, and like it in every checkpoint."""

    def __init__(self) -> None:
        self.steps = 0

    def state_dict(self) -> dict[str, int]:
        """The count."""
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The count of a checkpoint."""
        self.steps = int(state["steps"])
