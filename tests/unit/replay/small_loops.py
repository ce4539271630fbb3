"""Small trainings with a loop of their own, examined without a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from forensics.record.recipe import Training
from forensics.replay.tracing.step_facts import Context
from forensics.replay.tracing.step_forensics import Examination, examine_training


def seeded(*shape: int) -> Tensor:
    """Normal random numbers, the same every time."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def training_of(model: nn.Module, optimizers: Sequence[Optimizer], **parts: Any) -> Training:
    """A training whose loop is elsewhere."""
    return Training(model=model, optimizers=optimizers, loss=lambda *_: torch.zeros(()), **parts)


def looked_into(
    training: Training,
    run: Callable[[], Any],
    *,
    batches: Sequence[Any] = (None,),
    after: int = 0,
    context: Context | None = None,
) -> Examination:
    """Run some steps, then examine the next one."""
    for _ in range(after):
        run()
    known = context or Context(step=after, trained=after > 0)
    return examine_training(training, run, batches, context=known)


class Loop:
    """Squares of a model's outputs as the loss, one optimizer, nothing else."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, inputs: Tensor, **parts: Any
    ) -> None:
        self.model, self.optimizer, self.inputs = model, optimizer, inputs
        self.training = training_of(model, [optimizer], **parts)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss: Tensor = self.model(self.inputs).float().pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss

    def examine(self, **options: Any) -> Examination:
        """Examine the next step."""
        return looked_into(self.training, self, batches=[self.inputs], **options)


class ScaledLoop:
    """A loop under fp16 autocast: a scaler, a schedule and a clip, each of which can be wrong."""

    def __init__(self, scale: float = 1024.0, optimizer: Any = torch.optim.SGD, **options: Any):
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = optimizer(self.model.parameters(), lr=1e-2, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.5, total_iters=10)
        self.unscales, self.max_norm, self.through_scaler = True, 0.1, True
        self.schedules, self.by_hand, self.clips_before = False, False, True
        self.inputs = [torch.randn(8, 4) for _ in range(2)]
        self.training = training_of(
            self.model, [self.optimizer], scaler=self.scaler, schedulers=[self.schedule]
        )

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        total = torch.zeros(())
        for inputs in self.inputs:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = self.model(inputs).float().pow(2).mean() / len(self.inputs)
            self.scaler.scale(loss).backward()
            total += loss.detach()
        if self.unscales:
            self.scaler.unscale_(self.optimizer)
        if self.by_hand:
            for parameter in self.model.parameters():
                parameter.grad /= self.scaler.get_scale()
        if self.max_norm and self.clips_before:
            clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.through_scaler:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        if not self.clips_before:
            clip_grad_norm_(self.model.parameters(), self.max_norm)
        if self.schedules:
            self.schedule.step()
        return total

    def examine(self, **options: Any) -> Examination:
        return looked_into(self.training, self, batches=self.inputs, **options)
