"""Faults of optimizers, schedules, resumes and memory."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import PlainLoop, StepCounter, forward
from forensics.record.healthy import GptRecipe, MlpRecipe, RegressionRecipe, build_training
from forensics.record.models import Mlp
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

_MLP = replace(
    MlpRecipe.defaults,
    steps=40,
    max_norm=None,
    schedule=ScheduleConfig(),
    model={"width": 16, "depth": 2, "activation": "tanh", "gain": 1.0},
    data={"samples": 16, "features": 8, "classes": 4, "noise": 1.0},
)


@recipe("rate-inf", "an inverse square root schedule starts from 0 after a restart: a rate of Inf")
class RateInf(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, optimizer=OptimizerConfig("adam", lr=1e-3))

    def build(self, config: Config) -> Training:
        training = super().build(config)

        def factor(step: int) -> float:
            return float(torch.tensor(abs(step - 14.0)).rsqrt())

        return replace(training, schedulers=[LambdaLR(training.optimizers[0], factor)])


@recipe("moment-bit-flip", "an exponent bit of Adam's second moment flips")
class MomentBitFlip(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, steps=24)

    def build(self, config: Config) -> Training:
        return replace(super().build(config), extra={"progress": StepCounter()})

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        progress = training.extra["progress"]
        if progress.steps == 13 and not recorder.replaying:
            weight = training.model.get_parameter("layers.1.weight")
            moment = training.optimizers[0].state[weight]["exp_avg_sq"]
            moment.view(torch.int32)[2, 5] ^= 1 << 30
        progress.steps += 1
        return super().step(training, batches, recorder)


@recipe("momentum-lost", "a resume without the momentum of SGD")
class MomentumLost(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, steps=90, optimizer=OptimizerConfig("sgd", lr=2e-2, momentum=0.95))

    def build(self, config: Config) -> Training:
        return replace(super().build(config), extra={"progress": StepCounter()})

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        progress = training.extra["progress"]
        if progress.steps == 60:
            training.optimizers[0].state.clear()
        progress.steps += 1
        return super().step(training, batches, recorder)


@recipe("momentum-lr-too-high", "a linear model with momentum beyond its stable rate")
class MomentumLrTooHigh(PlainLoop, RegressionRecipe):
    defaults = replace(
        RegressionRecipe.defaults,
        steps=90,
        max_norm=None,
        schedule=ScheduleConfig(),
        optimizer=OptimizerConfig("sgd", lr=1.2, momentum=0.5),
        model={"depth": 0},
        data={"samples": 16, "features": 12, "noise": 0.1},
    )

    def build(self, config: Config) -> Training:
        training = super().build(config)
        return replace(
            training, loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean()
        )


@recipe("gpt-clip-first", "a transformer in fp16 that clips before unscale_, with momentum")
class GptClipFirst(GptRecipe):
    defaults = replace(
        GptRecipe.defaults,
        steps=20,
        ema_decay=None,
        precision="fp16",
        max_norm=1.0,
        optimizer=OptimizerConfig("sgd", lr=0.05, momentum=0.9),
        schedule=ScheduleConfig(),
        scaler=ScalerConfig(init_scale=2.0**10),
        model={"width": 16, "heads": 2, "depth": 1, "dropout": 0.0},
        data={"samples": 4, "context": 8, "vocabulary": 16, "successors": 3},
    )

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        recorder.gradients()
        clip_grad_norm_(training.model.parameters(), self.config.max_norm)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        recorder.end_step(loss)
        return loss


class HalfEmbedded(nn.Module):
    """Only the first layer is stored in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16).bfloat16()
        self.rest = Mlp(16, 1, width=16, depth=1)
        nn.init.constant_(self.first.weight, 0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.rest(self.first(inputs.bfloat16()).float().tanh())


@recipe("half-stored-layer", "one layer in bf16: its updates are rounded away, the others learn")
class HalfStoredLayer(PlainLoop, RegressionRecipe):
    defaults = replace(
        RegressionRecipe.defaults,
        steps=14,
        max_norm=None,
        schedule=ScheduleConfig(),
        optimizer=OptimizerConfig("sgd", lr=1e-4),
        model={},
        data={"samples": 16, "features": 8, "noise": 0.1},
    )

    def build(self, config: Config) -> Training:
        return build_training(config, HalfEmbedded(), self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0]) - batch[1]).square().mean()
