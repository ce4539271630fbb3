"""Faults from outside the process: a flipped bit in memory, and the gradients of another rank."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from forensics.record.config import Config, OptimizerConfig
from forensics.record.faults.backward import PairRecipe
from forensics.record.faults.own_loop import PlainLoop, StepCounter, plain
from forensics.record.healthy import FAULT_STEP, MlpRecipe
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

_DATA = {"samples": 16, "features": 8, "classes": 4, "noise": 1.0, FAULT_STEP: 5}
_SGD = OptimizerConfig("sgd", lr=1e-2)


@recipe("bit-flip", "one exponent bit of one weight flips between two steps; a replay is sound")
class BitFlip(PlainLoop, MlpRecipe):
    """What a faulty memory does: a weight of 0.3 becomes 1e38, and no operator is to blame."""

    defaults = plain(
        MlpRecipe.defaults, 12, optimizer=_SGD, data=_DATA, model={"width": 16, "depth": 1}
    )
    element, bit = (3, 1), 30

    def build(self, config: Config) -> Training:
        """The MLP; the weight that will be hit is one of the usual size."""
        training = super().build(config)
        with torch.no_grad():
            self._weight(training)[self.element] = 0.3
        return replace(training, extra={"progress": StepCounter()})

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """The plain loop, after a flip that no replay repeats."""
        progress = training.extra["progress"]
        if progress.steps == self.config.data[FAULT_STEP] and not recorder.replaying:
            self._weight(training).view(torch.int32)[self.element] ^= 1 << self.bit  # FAULT
        progress.steps += 1
        return super().step(training, batches, recorder)

    @staticmethod
    def _weight(training: Training) -> Tensor:
        return training.model.get_parameter("layers.0.weight").detach()


@recipe("one-bad-rank", "two ranks average their gradients: one has NaN, the other a finite loss")
class OneBadRank(PairRecipe):
    """Two ranks in one process: a micro-batch each, and the mean of their gradients for both.

    The log is rank 0's, as it mostly is: its own loss and its own gradients are sound.
    """

    defaults = plain(MlpRecipe.defaults, 12, optimizer=_SGD, data=_DATA, model={}, accumulation=2)

    def batch(self, step: int) -> list[Batch]:
        """Rank 1 gets a pair of equal samples at one step."""
        batches = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            left, right = batches[-1]
            right[0] = left[0]
        return batches

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """Each rank's backward, the all-reduce, and the step that every rank makes."""
        optimizer = training.optimizers[0]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        losses, ranks = [], []
        for batch in batches:
            optimizer.zero_grad()
            loss = training.loss(training.model, batch)
            loss.backward()
            losses.append(loss.detach())
            ranks.append([p.grad for p in parameters])
        for parameter, *grads in zip(parameters, *ranks, strict=True):
            parameter.grad = torch.stack(grads).mean(dim=0)  # FAULT: nobody asks if all are finite
        recorder.gradients()
        optimizer.step()
        recorder.end_step(losses[0])
        return losses[0]
