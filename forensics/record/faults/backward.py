"""Faults in backward: a slope that is Inf or 0 · Inf, and gradients that are finite but wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forensics.record.config import Config, OptimizerConfig
from forensics.record.faults.own_loop import OneBadBatch, PlainLoop, forward, plain
from forensics.record.healthy import (
    FAULT_STEP,
    MlpRecipe,
    RegressionRecipe,
    build_training,
    regression_loss,
)
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

FEATURES = 8
_DATA = {"samples": 16, "features": FEATURES, "classes": 4, "noise": 1.0}
_DEFAULTS = plain(MlpRecipe.defaults, 12, model={}, data={**_DATA, FAULT_STEP: 5})
_SGD = OptimizerConfig("sgd", lr=1e-3)
_REGRESSION = plain(
    RegressionRecipe.defaults,
    12,
    model={},
    optimizer=OptimizerConfig("sgd", lr=1e-2),
    data={"samples": 16, "features": FEATURES, "noise": 0.1},
)


class Distance(nn.Module):
    """The Euclidean distance of pairs."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Both (samples, width) → (samples,)."""
        return (left - right).square().sum(dim=-1).sqrt()  # FAULT: its slope at 0 is Inf


class Siamese(nn.Module):
    """One encoder for both of a pair."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.distance = nn.Linear(FEATURES, 16), Distance()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        """Both (samples, features) → (samples,)."""
        apart: Tensor = self.distance(self.encoder(left), self.encoder(right))
        return apart


def unit_distance_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Pairs should lie a distance of 1 apart."""
    left, right = batch
    apart: Tensor = model(left, right)
    return (apart - 1).square().mean()


class PairRecipe(MlpRecipe):
    """Pairs of clustered points: each with the next of its batch."""

    def build(self, config: Config) -> Training:
        """The siamese encoder."""
        return build_training(config, Siamese(), unit_distance_loss)

    def batch(self, step: int) -> list[Batch]:
        """(left, right) a micro-batch."""
        return [(inputs, inputs.roll(1, dims=0)) for inputs, _ in super().batch(step)]


@recipe("sqrt-at-zero", "a pair of equal samples: the distance is 0, its gradient 0 · Inf")
class SqrtAtZero(OneBadBatch, PlainLoop, PairRecipe):
    """The loss is finite; nothing shows before the gradients do."""

    defaults = _DEFAULTS

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One pair of a sample and itself."""
        targets[4] = inputs[4]
        return inputs, targets


class GuardedLog(nn.Module):
    """The logarithm, and 0 where there is none."""

    def forward(self, values: Tensor) -> Tensor:
        """Any shape."""
        return torch.where(values > 0, values.log(), 0.0)  # FAULT: guards forward alone


@recipe("where-log", "torch.where hides log(0) from the loss; backward multiplies its Inf by 0")
class WhereLog(OneBadBatch, PlainLoop, MlpRecipe):
    """``where`` sends a gradient of 0 into the branch not taken, and the log makes NaN of it."""

    defaults = replace(_DEFAULTS, optimizer=_SGD)

    def build(self, config: Config) -> Training:
        """Energies and their guarded logarithm."""
        return build_training(config, LogEnergy(), self._loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One silent sample."""
        inputs[1] = 0
        return inputs, targets

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        levels: Tensor = model(batch[0])
        return levels.square().mean()


class LogEnergy(nn.Module):
    """A filter bank without bias, and the logarithm of its energies."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.log = nn.Linear(FEATURES, 6, bias=False), GuardedLog()

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, filters)."""
        levels: Tensor = self.log(self.filters(inputs).square())
        return levels


class Recomputed(nn.Module):
    """A body with dropout whose activations are computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 32), nn.Dropout(0.5))
        self.head = nn.Linear(32, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, 1)."""
        hidden = checkpoint(
            self.body,
            inputs,
            use_reentrant=False,
            preserve_rng_state=False,  # FAULT: the recomputation draws another mask
        )
        out: Tensor = self.head(hidden)
        return out


@recipe("recompute-other-mask", "activation checkpointing draws dropout anew: wrong gradients")
class RecomputeOtherMask(PlainLoop, RegressionRecipe):
    """Every number is finite and the loss even falls: the gradient is that of another network."""

    defaults = _REGRESSION

    def build(self, config: Config) -> Training:
        """The checkpointed model and the squared error."""
        return build_training(config, Recomputed(), regression_loss)


class CappedExp(nn.Module):
    """exp(x), at most 1."""

    def forward(self, values: Tensor) -> Tensor:
        """Any shape."""
        out = values.exp()
        out.data.clamp_(max=1.0)  # FAULT: exp's backward multiplies by this very output
        return out


@recipe("saved-tensor-edited", "exp's output is capped through .data: backward uses the edited one")
class SavedTensorEdited(PlainLoop, MlpRecipe):
    """Without ``.data``, autograd would clip the gradient; with it, it cannot even complain."""

    defaults = replace(_DEFAULTS, optimizer=OptimizerConfig("sgd", lr=1e-2), data=_DATA)

    def build(self, config: Config) -> Training:
        """A body and the capped exponential."""
        model = nn.Sequential()
        model.add_module("body", nn.Linear(FEATURES, 6))
        model.add_module("cap", CappedExp())
        return build_training(config, model, self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        rates: Tensor = model(batch[0])
        return rates.square().mean()


@recipe("backward-in-autocast", "fp32 forward, but backward() inside autocast: fp16 gradients")
class BackwardInAutocast(OneBadBatch, RegressionRecipe):
    """The forward is right to the last bit; the products of backward overflow at 65,504."""

    defaults = replace(
        _REGRESSION,
        optimizer=OptimizerConfig("sgd", lr=1e-8),
        data={**_REGRESSION.data, FAULT_STEP: 5},
    )

    def build(self, config: Config) -> Training:
        """A linear model under a heavy, summed error."""
        model = nn.Sequential()
        model.add_module("body", nn.Linear(FEATURES, 1))
        return build_training(config, model, self._loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """Inputs in other units, for which fp32 has plenty of room."""
        return inputs * 500, targets

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop whose ``with`` block is a line too long."""
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        with torch.autocast(loss.device.type, dtype=torch.float16):
            loss.backward()  # FAULT: outside the block
        recorder.gradients()
        optimizer.step()
        recorder.end_step(loss)
        return loss

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets = batch
        return 300 * F.l1_loss(model(inputs), targets, reduction="sum")
