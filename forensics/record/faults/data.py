"""Faults in the data: the training is sound, one batch is not."""

from __future__ import annotations

import math
from dataclasses import replace

from forensics.record.healthy import FAULT_STEP, HealthyCnn, MlpRecipe, RegressionRecipe
from forensics.record.recipe import Batch, recipe


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
