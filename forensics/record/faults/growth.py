"""Faults that grow: nothing is wrong in any one step, until a number leaves its range."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig, ScalerConfig
from forensics.record.faults.own_loop import PlainLoop, clip, plain
from forensics.record.healthy import MlpRecipe, RegressionRecipe, build_training
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

FEATURES, CLASSES = 8, 4
_DATA = {"samples": 16, "features": FEATURES, "classes": CLASSES, "noise": 1.0}


@recipe("accumulation-not-divided", "8 micro-batches, each with its whole loss: gradients 8 times")
class AccumulationNotDivided(RegressionRecipe):
    """A rate that is right for the mean is eight times too high for the sum."""

    defaults = plain(
        RegressionRecipe.defaults,
        100,
        accumulation=8,
        optimizer=OptimizerConfig("sgd", lr=0.25),
        model={**RegressionRecipe.defaults.model, "depth": 0},
        data={"samples": 8, "features": 4, "noise": 0.1},
    )

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop that adds up what it should average."""
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        total = torch.zeros(())
        for batch in batches:
            loss = training.loss(training.model, batch)
            loss.backward()  # FAULT: not loss / len(batches)
            total = total.to(loss.device) + loss.detach() / len(batches)
        recorder.gradients()
        clip(training, self.config)
        optimizer.step()
        recorder.end_step(total)
        return total


class LearnedScale(nn.Module):
    """Multiplies similarities by a temperature, learned as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, similarities: Tensor) -> Tensor:
        """Any shape."""
        return similarities * self.log_scale.exp()  # FAULT: nothing bounds it


class Contrast(nn.Module):
    """Similarities of all pairs of a batch, by a frozen encoder and a learned temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.scale = nn.Linear(FEATURES, 16), LearnedScale()
        self.encoder.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, samples)."""
        directions = F.normalize(self.encoder(inputs), dim=-1)
        scaled: Tensor = self.scale(directions @ directions.T)
        return scaled


@recipe("learned-scale-blowup", "a learned temperature without a bound grows until exp() is Inf")
class LearnedScaleBlowup(PlainLoop, MlpRecipe):
    """Once every pair is told apart, a larger scale always lowers the loss a little more."""

    defaults = plain(
        MlpRecipe.defaults, 40, optimizer=OptimizerConfig("adam", lr=4.0), model={}, data=_DATA
    )

    def build(self, config: Config) -> Training:
        """The contrastive model."""
        return build_training(config, Contrast(), self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, Contrast)
        logits = model(batch[0])
        own = torch.arange(len(logits), device=logits.device)
        return F.cross_entropy(logits, own) - 0.5 * model.scale.log_scale


class DotAttention(nn.Module):
    """Attention whose logits are stored before they are divided."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        """(samples, length, width) → the same shape."""
        logits = self.query(hidden) @ self.key(hidden).mT  # FAULT: fp16 ends at 65,504
        mixed: Tensor = (logits / math.sqrt(hidden.shape[-1])).softmax(dim=-1) @ self.value(hidden)
        return mixed


class AttentionClassifier(nn.Module):
    """Attention over positions of eight features, their mean, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = DotAttention(8), nn.Linear(8, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, 8 · length) → (samples, classes)."""
        out: Tensor = self.head(self.attention(inputs.unflatten(1, (-1, 8))).mean(dim=1))
        return out


@recipe("attention-logit-growth", "queries and keys grow until their product overflows fp16")
class AttentionLogitGrowth(PlainLoop, MlpRecipe):
    """A reward for aligned queries and keys, and a rate fit for other layers than these."""

    defaults = plain(
        MlpRecipe.defaults,
        100,
        precision="fp16",
        optimizer=OptimizerConfig("adam", lr=0.35),
        scaler=ScalerConfig(init_scale=64.0),
        model={},
        data={**_DATA, "samples": 8, "features": 40},
    )

    def build(self, config: Config) -> Training:
        """Only queries and keys are trained."""
        model = AttentionClassifier()
        for part in (model.attention.value, model.head):
            part.requires_grad_(False)
        return replace(build_training(config, model, self._loss))

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(model, AttentionClassifier)
        inputs, labels = batch
        aligned = (model.attention.query.weight * model.attention.key.weight).sum()
        return F.cross_entropy(model(inputs).float(), labels) - 0.01 * aligned
