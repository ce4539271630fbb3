"""Faults of the optimizer's settings: a rate too high, a rate of 0."""

from __future__ import annotations

from dataclasses import replace

from torch.optim.lr_scheduler import LambdaLR

from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.healthy import MlpRecipe, RegressionRecipe
from forensics.record.recipe import Training, recipe
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
