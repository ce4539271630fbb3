"""Small trainings with a loop of their own, examined without a session."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.recipe import Training
from forensics.replay.step_facts import Context
from forensics.replay.step_forensics import Examination, examine_training


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
