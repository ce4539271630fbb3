"""A fourth lot: what a loop calls too often or not at all, averages, and masks that are read."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.optim.swa_utils import AveragedModel

from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.faults.own_loop import forward
from forensics.record.healthy import MlpRecipe, RegressionRecipe
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

AT = 14
_MLP = replace(
    MlpRecipe.defaults,
    steps=24,
    max_norm=None,
    schedule=ScheduleConfig(),
    optimizer=OptimizerConfig("sgd", lr=0.05),
    model={"width": 16, "depth": 2, "activation": "relu", "gain": 1.0},
    data={"samples": 16, "features": 8, "classes": 4, "noise": 1.0},
)
_LINEAR = replace(
    RegressionRecipe.defaults,
    steps=24,
    max_norm=None,
    schedule=ScheduleConfig(),
    optimizer=OptimizerConfig("adam", lr=1e-2),
    model={"depth": 0},
    data={"samples": 16, "features": 8, "noise": 0.1},
)


@recipe("scaler-updated-by-hand", "after update() the loop raises the scale a little more")
class ScalerUpdatedByHand(MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        return replace(super().build(config), scaler=scaler)

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        scaler.step(optimizer)
        scaler.update()
        scaler.update(scaler.get_scale() * 1.01)
        recorder.end_step(loss)
        return loss


@recipe("head-swapped", "the head is replaced once the optimizer has been made")
class HeadSwapped(MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        training = super().build(config)
        training.model.head = nn.Linear(16, 4)
        return training

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        return _plain(self, training, batches, recorder)


@recipe("stepped-in-a-helper", "a helper steps the optimizer, and so does the loop")
class SteppedInAHelper(MlpRecipe):
    defaults = replace(_MLP, optimizer=OptimizerConfig("adamw", lr=1e-3))

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        loss = _plain(self, training, batches, None)
        training.optimizers[0].step()
        recorder.end_step(loss)
        return loss


@recipe("bias-rate-nan", "the rate of the biases, the second group, becomes NaN")
class BiasRateNan(RegressionRecipe):
    defaults = replace(_LINEAR, optimizer=OptimizerConfig("sgd", lr=1e-2))

    def build(self, config: Config) -> Training:
        training = super().build(config)
        named = dict(training.model.named_parameters())
        groups = [
            {"params": [p for n, p in named.items() if "weight" in n]},
            {"params": [p for n, p in named.items() if "bias" in n]},
        ]
        optimizer = torch.optim.SGD(groups, lr=1e-2)
        rates = [lambda step: 1.0, lambda step: 1.0 if step < AT else math.nan]
        return replace(training, optimizers=[optimizer], schedulers=[LambdaLR(optimizer, rates)])


class _Average:
    """Shares of old and new as given."""

    def __init__(self, model: nn.Module, old: float, new: float, decay: float) -> None:
        self.old, self.new, self.decay = old, new, decay
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name].mul_(self.old).add_(parameter, alpha=self.new)

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": dict(self.shadow)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, value in state["shadow"].items():
            self.shadow[name].copy_(value)


@recipe(
    "average-that-grows", "an average that keeps 0.99 of itself and adds 0.1 of the new weights"
)
class AverageThatGrows(RegressionRecipe):
    defaults = _LINEAR

    def build(self, config: Config) -> Training:
        training = super().build(config)
        return replace(training, ema=_Average(training.model, 0.99, 0.1, 0.99))


@recipe("average-turned-round", "an average that keeps 1 - decay of itself")
class AverageTurnedRound(RegressionRecipe):
    defaults = _LINEAR

    def build(self, config: Config) -> Training:
        training = super().build(config)
        return replace(training, ema=_Average(training.model, 0.01, 0.99, 0.99))


@recipe("smoothed-over-a-mask", "a class is banned by -inf, and label smoothing sums over it")
class SmoothedOverAMask(MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        return replace(super().build(config), loss=self._loss)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, labels)] = super().batch(step)
        banned = torch.zeros(len(labels), 4, dtype=torch.bool)
        if step == AT:
            banned[5, (int(labels[5]) + 1) % 4] = True
        return [(inputs, labels, banned)]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels, banned = batch
        logits = model(inputs).masked_fill(banned, -math.inf)
        return F.cross_entropy(logits, labels, label_smoothing=0.1)


@recipe("too-short-for-its-target", "CTC: one input is shorter than its target")
class TooShortForItsTarget(MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        return replace(super().build(config), loss=self._loss)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, _)] = super().batch(step)
        drawn = torch.Generator().manual_seed(step)
        targets = torch.stack([torch.randperm(3, generator=drawn) + 1 for _ in range(4)])
        lengths = torch.full((4,), 4)
        if step == AT:
            lengths[2] = 1
        return [(inputs, targets, lengths)]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, targets, lengths = batch
        scores = model(inputs).view(4, 4, 4).log_softmax(-1)
        return F.ctc_loss(scores, targets, lengths, torch.full((4,), 3))


# -- sound ------------------------------------------------------------------------------------


@recipe("ok-average-warms-up", "an average whose decay rises from 0.1 on")
class OkAverageWarmsUp(RegressionRecipe):
    defaults = _LINEAR

    def build(self, config: Config) -> Training:
        training = super().build(config)
        return replace(training, ema=_WarmAverage(training.model, 0, 0, 0.999))


class _WarmAverage(_Average):
    updates = 0

    def update(self, model: nn.Module) -> None:
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates, self.old, self.new = self.updates + 1, decay, 1 - decay
        super().update(model)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.updates = state["updates"]


@recipe("ok-mean-of-weights", "torch's own mean of all weights so far")
class OkMeanOfWeights(RegressionRecipe):
    defaults = _LINEAR

    def build(self, config: Config) -> Training:
        training = super().build(config)
        return replace(training, ema=_Mean(training.model))


class _Mean(AveragedModel):
    def update(self, model: nn.Module) -> None:
        self.update_parameters(model)


@recipe("ok-one-optimizer-two-losses", "two losses, each with its backward and its step")
class OkOneOptimizerTwoLosses(MlpRecipe):
    defaults = _MLP

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        _plain(self, training, batches, None)
        return _plain(self, training, batches, recorder)


def _plain(
    own: Any, training: Training, batches: list[Batch], recorder: StepRecorder | None
) -> Tensor:
    optimizer = training.optimizers[0]
    optimizer.zero_grad()
    loss = forward(training, batches, own.config)
    loss.backward()
    if recorder is not None:
        recorder.gradients()
    optimizer.step()
    if recorder is not None:
        recorder.end_step(loss)
    return loss
