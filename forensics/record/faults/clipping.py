"""Faults in clipping: too low a threshold, the clip before unscale, norms that are not finite."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import OneBadBatch, PlainLoop, clip, forward, plain
from forensics.record.healthy import FAULT_STEP, MlpRecipe, RegressionRecipe
from forensics.record.recipe import Batch, StepRecorder, Training, recipe


@recipe("clip-every-step", "the threshold is far below every gradient; AdamW learns all the same")
class ClipEveryStep(MlpRecipe):
    """Every step is clipped, which Adam hardly notices: it divides by the gradient's own size."""

    defaults = replace(MlpRecipe.defaults, steps=400, max_norm=0.02)


@recipe("clip-starved", "the same under SGD: steps of a fixed, tiny length, and no learning")
class ClipStarved(MlpRecipe):
    """Under SGD the threshold bounds the step itself: 300 of them lead nowhere."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=400,
        max_norm=0.001,
        optimizer=OptimizerConfig("sgd", lr=0.05),
        schedule=ScheduleConfig(),
    )


@recipe("clip-before-unscale", "fp16 loop that clips the scaled gradients: SGD hardly moves")
class ClipBeforeUnscale(MlpRecipe):
    """The effective threshold is ``max_norm`` divided by the loss scale."""

    defaults = replace(
        MlpRecipe.defaults,
        precision="fp16",
        optimizer=OptimizerConfig("sgd", lr=0.05, momentum=0.9),
        schedule=ScheduleConfig(),
        scaler=ScalerConfig(init_scale=2.0**12, growth_interval=60),
    )

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop without ``unscale_``."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad(set_to_none=True)
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        recorder.gradients()
        clip(training, self.config)  # FAULT: still scaled
        scaler.step(optimizer)
        scaler.update()
        recorder.end_step(loss)
        return loss


@recipe("clip-norm-overflow", "finite gradients of 1e20: their norm is Inf in fp32; a step is lost")
class ClipNormOverflow(OneBadBatch, PlainLoop, RegressionRecipe):
    """1e20 squared is beyond fp32. The clip divides by Inf, and every gradient becomes 0."""

    defaults = plain(
        RegressionRecipe.defaults,
        12,
        max_norm=1.0,  # FAULT: torch's norm of large gradients overflows
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        model={"depth": 0},
        data={"samples": 16, "features": 8, "noise": 0.1, FAULT_STEP: 5},
    )

    def build(self, config: Config) -> Training:
        """A linear model and the absolute error, which stays finite."""
        return replace(super().build(config), loss=absolute_loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One sample in other units."""
        inputs[3] = 1e21 * inputs[3].sign()
        return inputs, targets


def absolute_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean absolute error."""
    return F.l1_loss(model(batch[0]).float(), batch[1])


class Floored(nn.Module):
    """A linear model above a floor: a curve of how far the level lies above each sample's ground.

    The level stands still (its rate is 0), and its gradient is taken all the same.
    """

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.ones(1))
        self.body = nn.Linear(inputs, 1)

    def forward(self, inputs: Tensor, ground: Tensor) -> Tensor:
        """(samples, inputs), (samples, 1) → (samples, 1)."""
        out: Tensor = self.body(inputs) + self.curve(self.level - ground)
        return out

    def curve(self, height: Tensor) -> Tensor:
        """The square root, whose slope at 0 is Inf."""
        return height.sqrt()  # FAULT

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups: the level rests."""
        return [{"params": [self.level], "lr": 0.0}, {"params": list(self.body.parameters())}]


class GuardedFloor(Floored):
    """The same under a logarithm that is guarded in forward alone."""

    def curve(self, height: Tensor) -> Tensor:
        """0 where there is no logarithm; the slope of the branch not taken is 0 · Inf."""
        return torch.where(height > 0, height.log(), 0.0)  # FAULT


class _OneBadGradient(PlainLoop, RegressionRecipe):
    """One sample's ground reaches the level, and one gradient is lost; then all are clipped."""

    defaults = plain(
        RegressionRecipe.defaults,
        12,
        max_norm=1.0,
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        model={},
        data={"samples": 16, "features": 8, "noise": 0.1, FAULT_STEP: 5},
    )

    def build(self, config: Config) -> Training:
        """The floored model."""
        model = self.model_of(config.data["features"])
        optimizer = torch.optim.SGD(model.groups(), lr=config.optimizer.lr)
        return Training(model, [optimizer], self._loss)

    def batch(self, step: int) -> list[Batch]:
        """Inputs, targets and the ground; 0 but for one sample in one step."""
        batches = []
        for micro, (inputs, targets) in enumerate(super().batch(step)):
            ground = torch.zeros_like(targets)
            if step == self.config.data[FAULT_STEP] and micro == 0:
                ground[2] = 1.0
            batches.append((inputs, targets, ground))
        return batches

    model_of: ClassVar[type[Floored]] = Floored

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets, ground = batch
        return F.mse_loss(model(inputs, ground), targets)


@recipe("clip-inf-to-nan", "one Inf gradient: the clip makes it NaN and every other gradient 0")
class ClipInfToNan(_OneBadGradient):
    """The coefficient is 1 / Inf = 0, and 0 · Inf is NaN."""


@recipe("clip-spreads-nan", "one NaN gradient: the clip makes every gradient NaN, innocent or not")
class ClipSpreadsNan(_OneBadGradient):
    """The total norm is NaN. After the clip nothing tells which parameter began it."""

    model_of = GuardedFloor
