"""Sound trainings that do something unusual: a bisection must find nothing in any of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import PlainLoop, forward
from forensics.record.healthy import (
    GptRecipe,
    MlpRecipe,
    RegressionRecipe,
    build_training,
    classification_loss,
)
from forensics.record.models import Mlp, TinyGpt
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

_MLP = replace(
    MlpRecipe.defaults,
    steps=24,
    max_norm=None,
    schedule=ScheduleConfig(),
    model={"width": 16, "depth": 2, "activation": "relu", "gain": 1.0},
    data={"samples": 16, "features": 8, "classes": 4, "noise": 1.0},
)
_GPT = replace(
    GptRecipe.defaults,
    steps=16,
    ema_decay=None,
    max_norm=None,
    schedule=ScheduleConfig(),
    model={"width": 16, "heads": 2, "depth": 1, "dropout": 0.1},
    data={"samples": 4, "context": 8, "vocabulary": 16, "successors": 3},
)


def _sequence(**parts: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, part in parts.items():
        model.add_module(name, part)
    return model


@recipe("ok-zero-init", "the last layer starts at 0: the first step leaves the others as they are")
class OkZeroInit(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, optimizer=OptimizerConfig("sgd", lr=0.05))

    def build(self, config: Config) -> Training:
        training = super().build(config)
        nn.init.zeros_(training.model.get_parameter("head.weight"))
        return training


@recipe("ok-warm-up-from-zero", "the rate of the first step is 0")
class OkWarmUpFromZero(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, optimizer=OptimizerConfig("adam", lr=1e-3))

    def build(self, config: Config) -> Training:
        training = super().build(config)
        optimizer = training.optimizers[0]
        return replace(training, schedulers=[LambdaLR(optimizer, lambda k: min(1.0, k / 5))])


@recipe("ok-checkpointed", "activation checkpointing with dropout, as it should be")
class OkCheckpointed(PlainLoop, GptRecipe):
    defaults = _GPT

    def build(self, config: Config) -> Training:
        sizes = {key: config.data[key] for key in ("vocabulary", "context")}
        return build_training(config, CheckpointedGpt(**sizes, **config.model), classification_loss)


class CheckpointedGpt(TinyGpt):
    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False)
        return self.head(self.norm(hidden))


class Rounded(torch.autograd.Function):
    """A straight-through estimator: rounds, and passes the gradient on as if it had not."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        return (4 * values).round() / 4

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Quantised(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return Rounded.apply(values)


@recipe("ok-straight-through", "a gradient that is not the function's, on purpose")
class OkStraightThrough(PlainLoop, MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        model = _sequence(
            body=nn.Linear(8, 16), act=nn.Tanh(), round=Quantised(), head=nn.Linear(16, 4)
        )
        return build_training(config, model, classification_loss)


@recipe("ok-gradient-noise", "noise is added to the gradients before the step")
class OkGradientNoise(MlpRecipe):
    defaults = replace(_MLP, max_norm=1.0)

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        loss.backward()
        for parameter in training.model.parameters():
            parameter.grad += 0.01 * torch.randn_like(parameter.grad)
        recorder.gradients()
        clip_grad_norm_(training.model.parameters(), self.config.max_norm)
        optimizer.step()
        recorder.end_step(loss)
        return loss


@recipe("ok-clip-by-value", "every element of a gradient is clipped by itself")
class OkClipByValue(MlpRecipe):
    defaults = replace(_MLP, optimizer=OptimizerConfig("sgd", lr=0.05))

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        loss.backward()
        recorder.gradients()
        clip_grad_value_(training.model.parameters(), 0.01)
        optimizer.step()
        recorder.end_step(loss)
        return loss


@recipe(
    "ok-fused-overflow", "a fused AdamW under a scaler that calibrates; nobody counts its calls"
)
class OkFusedOverflow(PlainLoop, MlpRecipe):
    defaults = replace(
        _MLP,
        precision="fp16",
        optimizer=OptimizerConfig("adamw", lr=1e-3, flavour="fused"),
        scaler=ScalerConfig(init_scale=2.0**22),
    )


@recipe(
    "ok-scaler-late-overflow",
    "a scale that doubles every few steps meets its ceiling and backs off",
)
class OkScalerLateOverflow(PlainLoop, MlpRecipe):
    defaults = replace(
        _MLP,
        steps=60,
        precision="fp16",
        max_norm=1.0,
        schedule=ScheduleConfig("cosine"),
        scaler=ScalerConfig(init_scale=2.0**14, growth_interval=4),
    )


@recipe("ok-two-rates", "half of the model rests at a rate of 0; weight decay on the other half")
class OkTwoRates(PlainLoop, MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        model = Mlp(8, 4, width=16, depth=2)
        groups = [
            {"params": list(model.layers.parameters()), "lr": 0.0},
            {"params": list(model.head.parameters()), "weight_decay": 0.1},
        ]
        return Training(model, [torch.optim.AdamW(groups, lr=1e-3)], classification_loss)


@recipe("ok-dead-units", "some units never fire: their weights never get a gradient")
class OkDeadUnits(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, optimizer=OptimizerConfig("sgd", lr=0.05, momentum=0.9))

    def build(self, config: Config) -> Training:
        training = super().build(config)
        with torch.no_grad():
            training.model.get_parameter("layers.1.bias")[:8] = -1e3
        return training


@recipe("ok-bf16-parameters", "parameters in bf16 at a rate that moves them")
class OkBf16Parameters(PlainLoop, RegressionRecipe):
    defaults = replace(
        RegressionRecipe.defaults,
        steps=24,
        max_norm=None,
        schedule=ScheduleConfig(),
        optimizer=OptimizerConfig("sgd", lr=0.1),
        model={"depth": 0},
        data={"samples": 16, "features": 8, "noise": 0.1},
    )

    def build(self, config: Config) -> Training:
        training = super().build(config)
        training.model.bfloat16()
        return replace(training, loss=lambda m, b: F.mse_loss(m(b[0].bfloat16()).float(), b[1]))


@recipe("ok-unused-rows", "an embedding of which most rows never occur, under Adam in fp32")
class OkUnusedRows(PlainLoop, GptRecipe):
    defaults = _GPT

    def build(self, config: Config) -> Training:
        model = _sequence(embedding=nn.Embedding(200, 16), head=nn.Linear(16, 16))
        return build_training(config, model, classification_loss)


@recipe("ok-inner-penalty", "a gradient penalty: backward through a backward")
class OkInnerPenalty(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, model={**_MLP.model, "activation": "tanh"})

    def build(self, config: Config) -> Training:
        return replace(super().build(config), loss=self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels = batch
        inputs = inputs.clone().requires_grad_()
        logits = model(inputs)
        (slope,) = torch.autograd.grad(logits.sum(), inputs, create_graph=True)
        return F.cross_entropy(logits, labels) + 0.1 * slope.square().mean()


@recipe("ok-two-optimizers", "two optimizers, each with its own half; one rests in odd steps")
class OkTwoOptimizers(MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        model = Mlp(8, 4, width=16, depth=2)
        optimizers = [
            torch.optim.Adam(model.layers.parameters(), lr=1e-3),
            torch.optim.SGD(model.head.parameters(), lr=0.05),
        ]
        return Training(model, optimizers, classification_loss, extra={})

    def batch(self, step: int) -> list[Batch]:
        both = torch.full((self.config.data["samples"],), step % 2 == 0)
        return [(*batch, both) for batch in super().batch(step)]

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        [(inputs, labels, both)] = batches
        for optimizer in training.optimizers:
            optimizer.zero_grad()
        loss = training.loss(training.model, (inputs, labels))
        loss.backward()
        recorder.gradients()
        training.optimizers[1].step()
        if both[0]:
            training.optimizers[0].step()
        recorder.end_step(loss)
        return loss


@recipe("ok-masked-nan", "NaN in the data where the loss does not look")
class OkMaskedNan(PlainLoop, MlpRecipe):
    """Missing values are replaced before the model sees them."""

    defaults = _MLP

    def build(self, config: Config) -> Training:
        return replace(super().build(config), loss=self._loss)

    def batch(self, step: int) -> list[Batch]:
        batches = super().batch(step)
        for inputs, _ in batches:
            inputs[step % 16, step % 8] = torch.nan
        return batches

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return classification_loss(model, (batch[0].nan_to_num(), batch[1]))


@recipe(
    "ok-accumulated-fp16", "accumulation under fp16: divided by the count, unscaled once, clipped"
)
class OkAccumulatedFp16(MlpRecipe):
    """The reference step."""

    defaults = replace(
        _MLP,
        precision="fp16",
        accumulation=3,
        max_norm=1.0,
        ema_decay=0.9,
        schedule=ScheduleConfig("cosine", warmup_steps=4),
        scaler=ScalerConfig(init_scale=2.0**12),
    )


@recipe("ok-large-finite", "inputs of 1e6 in fp32, far from any limit")
class OkLargeFinite(PlainLoop, RegressionRecipe):
    defaults = replace(
        OkBf16Parameters.defaults, optimizer=OptimizerConfig("adam", lr=1e-6), max_norm=1.0
    )

    def batch(self, step: int) -> list[Batch]:
        return [(1e6 * inputs, targets) for inputs, targets in super().batch(step)]
