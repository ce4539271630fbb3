"""Faults in a convolutional network."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.faults.own_loop import PlainLoop
from forensics.record.healthy import FAULT_STEP, HealthyCnn, build_training, classification_loss
from forensics.record.models import ResidualCnn
from forensics.record.recipe import Batch, Training, recipe

_SMALL = replace(
    HealthyCnn.defaults,
    steps=30,
    schedule=ScheduleConfig(),
    model={"channels": 6, "depth": 2},
    data={"samples": 8, "size": 6, "classes": 4, "noise": 1.0, FAULT_STEP: 12},
)


class AngularMargin(nn.Module):
    """The angle between a feature and its class's direction."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.randn(classes, width))

    def forward(self, features: Tensor) -> Tensor:
        cosine = F.normalize(features, dim=-1) @ F.normalize(self.directions, dim=-1).T
        return cosine.clamp(-1, 1).acos()


class AngularCnn(ResidualCnn):
    def __init__(self, classes: int, channels: int, depth: int) -> None:
        super().__init__(classes, channels, depth)
        self.head = AngularMargin(channels, classes)


@recipe("cnn-acos-at-one", "an angle of exactly 0: the slope of acos is Inf")
class CnnAcosAtOne(PlainLoop, HealthyCnn):
    """A step in which the features lie on a class's direction, to the last bit."""

    defaults = replace(_SMALL, max_norm=None)

    def build(self, config: Config) -> Training:
        model = AngularCnn(config.data["classes"], **config.model)
        return build_training(config, model, self._loss)

    def batch(self, step: int) -> list[Batch]:
        [(images, labels)] = super().batch(step)
        aligned = torch.zeros(len(labels))
        if step == self.config.data[FAULT_STEP]:
            aligned[3] = 1.0
        return [(images, labels, aligned)]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        images, labels, aligned = batch
        assert isinstance(model, AngularCnn)
        hidden = model.blocks(model.bn(model.stem(images)).relu()).mean(dim=(2, 3))
        exact = torch.zeros_like(hidden)
        exact[:, 0] = 1.0
        features = torch.where(aligned[:, None] > 0, exact, hidden)
        one = torch.zeros_like(model.head.directions)
        one[0, 0] = 1.0
        with torch.no_grad():
            if aligned.any():
                model.head.directions[0] = one[0]
        return F.cross_entropy(-model.head(features), labels)


@recipe("cnn-bn-deep", "one channel of one image blows up a BatchNorm deep in the network")
class CnnBnDeep(HealthyCnn):
    """The stem is not normalised, so the outlier reaches the first block."""

    defaults = replace(_SMALL, data={**_SMALL.data, FAULT_STEP: 19})

    def build(self, config: Config) -> Training:
        model = ResidualCnn(config.data["classes"], **config.model)
        model.bn = nn.Identity()
        return build_training(config, model, classification_loss)

    def batch(self, step: int) -> list[Batch]:
        [(images, labels)] = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            images[2] *= 1e20
        return [(images, labels)]


@recipe("cnn-nan-pixel", "one pixel is NaN, in the third of four micro-batches")
class CnnNanPixel(HealthyCnn):
    """The reference step, with accumulation."""

    defaults = replace(_SMALL, accumulation=4, steps=16, data={**_SMALL.data, FAULT_STEP: 9})

    def batch(self, step: int) -> list[Batch]:
        batches = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            batches[2][0][5, 0, 1, 1] = torch.nan
        return batches


@recipe("cnn-sigmoid-edited", "a gate's output is rounded in place through .data")
class CnnSigmoidEdited(PlainLoop, HealthyCnn):
    """Sigmoid's backward multiplies by its output: rounded to 0 or 1, no gradient is left."""

    defaults = replace(_SMALL, steps=12, max_norm=None, optimizer=OptimizerConfig("sgd", lr=1e-2))

    def build(self, config: Config) -> Training:
        model = ResidualCnn(config.data["classes"], **config.model)
        model.head = nn.Sequential(
            nn.Linear(config.model["channels"], 8), Gate(), nn.Linear(8, config.data["classes"])
        )
        return build_training(config, model, classification_loss)


class Gate(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        out = hidden.sigmoid()
        out.data.mul_(4).round_().div_(4)
        return out
