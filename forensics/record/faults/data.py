"""Faults in the data: the training is sound, one batch is not."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig
from forensics.record.faults.own_loop import OneBadBatch, PlainLoop, plain
from forensics.record.healthy import (
    FAULT_STEP,
    HealthyCnn,
    MlpRecipe,
    RegressionRecipe,
    build_training,
    classification_loss,
)
from forensics.record.recipe import Batch, Training, recipe


@recipe("target-spike", "one batch's targets are 1e8 times too large; the clip saves the weights")
class TargetSpike(RegressionRecipe):
    """A unit mistaken for another in one file of the data."""

    defaults = replace(
        RegressionRecipe.defaults,
        steps=200,
        data={**RegressionRecipe.defaults.data, FAULT_STEP: 100, "fault_factor": 1e8},
    )

    def batch(self, step: int) -> list[Batch]:
        """The targets of one step times ``fault_factor``."""
        batches = super().batch(step)
        if step != self.config.data[FAULT_STEP]:
            return batches
        factor = self.config.data["fault_factor"]
        return [(inputs, targets * factor) for inputs, targets in batches]


@recipe("bad-sample", "one feature of one sample of one batch is NaN")
class BadSample(MlpRecipe):
    """A missing value that nobody filled in. The loss is NaN once; the step is skipped."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=60,
        data={**MlpRecipe.defaults.data, FAULT_STEP: 30},
    )
    sample, feature = 7, 3

    def batch(self, step: int) -> list[Batch]:
        """A NaN in the first micro-batch of one step."""
        batches = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            inputs, _ = batches[0]
            inputs[self.sample, self.feature] = math.nan
        return batches


@recipe("batchnorm-poisoned", "one pixel of 1e20 makes a BatchNorm variance Inf; training goes on")
class BatchNormPoisoned(HealthyCnn):
    """In training BatchNorm divides by the batch's own variance, so the loss stays finite.

    The running variance is Inf for good: every evaluation and every export from then on is dead.
    """

    defaults = replace(
        HealthyCnn.defaults, steps=80, data={**HealthyCnn.defaults.data, FAULT_STEP: 37}
    )

    def batch(self, step: int) -> list[Batch]:
        """An outlier in the first micro-batch of one step."""
        batches = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            images, _ = batches[0]
            images[0, 0, 0, 0] = 1e20
        return batches


FEATURES, CLASSES = 8, 4
_DATA = {"samples": 16, "features": FEATURES, "classes": CLASSES, "noise": 1.0}
_SMALL = plain(
    MlpRecipe.defaults,
    12,
    model={"width": 16, "depth": 1, "activation": "relu"},
    data={**_DATA, FAULT_STEP: 5},
)


@recipe("target-overflow", "a target of 1e20: its square is Inf in the loss, every gradient finite")
class TargetOverflow(OneBadBatch, PlainLoop, RegressionRecipe):
    """The derivative of a square is no square. A loop that looks at gradients sees nothing."""

    defaults = plain(
        RegressionRecipe.defaults,
        12,
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        model={"depth": 0},
        data={"samples": 16, "features": FEATURES, "noise": 0.1, FAULT_STEP: 5},
    )

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One target in other units."""
        targets[3] = 1e20  # FAULT
        return inputs, targets


@recipe("labels-all-ignored", "every label of a batch is ignore_index: the mean over none is NaN")
class LabelsAllIgnored(OneBadBatch, PlainLoop, MlpRecipe):
    """0 / 0 in the loss; the gradients are 0, and no harm comes of it but a NaN in the log."""

    defaults = _SMALL

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """A batch of which nothing was labelled."""
        targets[:] = -100  # FAULT: the ignore_index of cross_entropy
        return inputs, targets


class Advantage(nn.Module):
    """Brings values to zero mean and unit spread over the batch."""

    def forward(self, values: Tensor) -> Tensor:
        """(samples, 1) → the same shape."""
        return (values - values.mean()) / (values.std() + 1e-8)  # FAULT: the std of one value


class ActorCritic(nn.Module):
    """Log-chances of the actions, and a normalised value."""

    def __init__(self) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, 1)
        self.advantage = Advantage()

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(samples, features) → (samples, classes), (samples, 1)."""
        return self.actor(inputs).log_softmax(dim=-1), self.advantage(self.critic(inputs))


class _LastBatch(OneBadBatch, PlainLoop, MlpRecipe):
    """One sample was left for the last batch of an epoch."""

    defaults = replace(_SMALL, model={})

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """The first sample alone."""
        return inputs[:1], targets[:1]


@recipe("std-of-one", "a last batch of one sample: the unbiased standard deviation is 0 / 0")
class StdOfOne(_LastBatch):
    """Normalised advantages, as in policy gradients."""

    def build(self, config: Config) -> Training:
        """The actor, weighted by the critic."""
        return build_training(config, ActorCritic(), self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        chances, advantage = model(batch[0])
        loss: Tensor = -(chances.gather(1, batch[1][:, None]) * advantage).mean()
        return loss


@recipe("batch-norm-of-one", "a last batch of one sample: BatchNorm refuses it, the run is over")
class BatchNormOfOne(_LastBatch):
    """The variance over one value is no estimate, and torch says so."""

    def build(self, config: Config) -> Training:
        """Normalised inputs and a head."""
        model = nn.Sequential()
        model.add_module("bn", nn.BatchNorm1d(FEATURES))
        model.add_module("head", nn.Linear(FEATURES, CLASSES))
        return build_training(config, model, classification_loss)
