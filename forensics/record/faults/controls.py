"""Trainings that look like a fault and are none: what must never raise an alarm."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig, ScalerConfig
from forensics.record.faults.own_loop import plain
from forensics.record.healthy import FAULT_STEP, MlpRecipe, RegressionRecipe, build_training
from forensics.record.recipe import Batch, Training, recipe

FEATURES, CLASSES = 8, 4
_DATA = {"samples": 16, "features": FEATURES, "classes": CLASSES, "noise": 1.0}


class CausalClassifier(nn.Module):
    """Attention over earlier positions alone, its mean, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, 4 · length) → (samples, classes)."""
        hidden = inputs.unflatten(1, (-1, 4))
        scores = self.query(hidden) @ self.key(hidden).mT
        later = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
        weights = scores.masked_fill(later, -math.inf).softmax(dim=-1)
        out: Tensor = self.head((weights @ hidden).mean(dim=1))
        return out


@recipe("control-causal-mask", "no fault: -Inf in the attention scores, where the mask wants it")
class ControlCausalMask(MlpRecipe):
    """Every row keeps a finite score: the softmax turns -Inf into 0."""

    defaults = plain(MlpRecipe.defaults, 12, model={}, data={**_DATA, "features": 24})

    def build(self, config: Config) -> Training:
        """The causal classifier and cross-entropy."""
        return build_training(config, CausalClassifier(), self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


@recipe("control-scaler-warm-up", "no fault: the loss scale starts too high and finds its place")
class ControlScalerWarmUp(RegressionRecipe):
    """A few skipped steps at the start, and none after them."""

    defaults = plain(
        RegressionRecipe.defaults,
        24,
        precision="fp16",
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        scaler=ScalerConfig(init_scale=2.0**24),
        model={"width": 16, "depth": 1, "activation": "relu"},
        data={"samples": 16, "features": FEATURES, "noise": 0.1},
    )


class TwoBranches(nn.Module):
    """A second branch that only some batches take."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(FEATURES, CLASSES), nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor, both: bool) -> Tensor:
        """(samples, features) → (samples, classes)."""
        out: Tensor = self.always(inputs)
        return out + self.sometimes(inputs) if both else out


@recipe("control-unused-branch", "no fault: a branch rests in even steps, its gradients are None")
class ControlUnusedBranch(MlpRecipe):
    """No gradient is not a gradient of 0, and not NaN."""

    defaults = plain(MlpRecipe.defaults, 12, model={}, data=_DATA)

    def build(self, config: Config) -> Training:
        """The model with two branches and cross-entropy."""
        return build_training(config, TwoBranches(), self._loss)

    def batch(self, step: int) -> list[Batch]:
        """Beside inputs and labels, whether both branches run: one flag a sample, all alike."""
        flags = torch.full((self.config.data["samples"],), bool(step % 2))
        return [(*batch, flags) for batch in super().batch(step)]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels, both = batch
        return F.cross_entropy(model(inputs, bool(both[0])), labels)


@recipe("control-loss-spike", "no fault: one hard batch, a loss 50 times as high, and a recovery")
class ControlLossSpike(RegressionRecipe):
    """The clip takes the edge off, and the next batch is as before."""

    defaults = replace(
        plain(
            RegressionRecipe.defaults,
            16,
            optimizer=OptimizerConfig("sgd", lr=1e-2),
            model={"depth": 0},
            data={"samples": 16, "features": FEATURES, "noise": 0.1, FAULT_STEP: 5},
        ),
        max_norm=5.0,
    )

    def batch(self, step: int) -> list[Batch]:
        """Targets eight times as large in one step."""
        batches = super().batch(step)
        if step != self.config.data[FAULT_STEP]:
            return batches
        return [(inputs, 8 * targets) for inputs, targets in batches]
