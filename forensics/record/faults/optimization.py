"""Faults of the optimizer: a rate too high, of 0 or NaN; a second moment that overflowed."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.faults.clipping import absolute_loss
from forensics.record.faults.own_loop import OneBadBatch, PlainLoop, plain
from forensics.record.healthy import FAULT_STEP, MlpRecipe, RegressionRecipe
from forensics.record.recipe import Batch, Training, recipe
from forensics.record.schedule import lr_factor


@recipe("lr-too-high", "SGD beyond its stable rate: the error grows by a factor a step until Inf")
class LrTooHigh(RegressionRecipe):
    """A linear model, whose stable rate is known: below 2 divided by the largest curvature."""

    defaults = replace(
        RegressionRecipe.defaults,
        steps=200,
        max_norm=None,
        optimizer=OptimizerConfig("sgd", lr=1.2),
        schedule=ScheduleConfig(),
        model={**RegressionRecipe.defaults.model, "depth": 0},
    )


@recipe("lr-zero", "a schedule made for a third of the steps: from then on the rate is 0")
class LrZero(MlpRecipe):
    """Epochs were counted without the accumulation, so the cosine ends early, at 0."""

    defaults = replace(
        MlpRecipe.defaults,
        schedule=ScheduleConfig("cosine", warmup_steps=10, min_lr_ratio=0.0),
    )

    def build(self, config: Config) -> Training:
        """The cosine of a shorter run."""
        training = super().build(replace(config, schedule=ScheduleConfig()))
        short = config.steps // 3  # FAULT
        optimizer = training.optimizers[0]
        schedule = LambdaLR(optimizer, lambda step: lr_factor(step, config.schedule, short))
        return replace(training, schedulers=[schedule])


@recipe("lr-nan", "a cosine over the steps left after the warm-up, and none are left: 0 / 0")
class LrNan(PlainLoop, RegressionRecipe):
    """Python would have raised; torch and numpy divide 0 by 0 and carry on."""

    defaults = plain(
        RegressionRecipe.defaults,
        12,
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        schedule=ScheduleConfig("cosine", warmup_steps=5),
        model={"depth": 0},
        data={"samples": 16, "features": 8, "noise": 0.1},
    )

    def build(self, config: Config) -> Training:
        """A schedule for a run that is all warm-up."""
        training = super().build(replace(config, schedule=ScheduleConfig()))
        warm_up = config.schedule.warmup_steps

        def factor(step: int) -> float:
            if step < warm_up:
                return (step + 1) / warm_up
            progress = torch.tensor(float(step - warm_up)) / (warm_up - warm_up)  # FAULT
            return float(0.5 * (1.0 + torch.cos(math.pi * progress)))

        return replace(training, schedulers=[LambdaLR(training.optimizers[0], factor)])


@recipe(
    "second-moment-overflow", "a gradient of 1e20: Adam's second moment is Inf, the weight dead"
)
class SecondMomentOverflow(OneBadBatch, PlainLoop, RegressionRecipe):
    """Loss, gradients and weights stay finite. The update is a finite number over Inf, for ever."""

    defaults = plain(
        RegressionRecipe.defaults,
        40,
        optimizer=OptimizerConfig("adam", lr=1e-2),
        model={"depth": 0},
        data={"samples": 16, "features": 8, "noise": 0.1, FAULT_STEP: 5},
    )

    def build(self, config: Config) -> Training:
        """A linear model and the absolute error, which stays finite."""
        return replace(super().build(config), loss=absolute_loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One feature of one sample in other units."""
        inputs[0, 1] = 1e22  # FAULT: its square is beyond fp32
        return inputs, targets
