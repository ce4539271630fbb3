"""A third lot: other ways to make the same mistakes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.faults.backward import PairRecipe
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

AT = 14
_MLP = replace(
    MlpRecipe.defaults,
    steps=20,
    max_norm=None,
    schedule=ScheduleConfig(),
    model={"width": 16, "depth": 2, "activation": "relu", "gain": 1.0},
    data={"samples": 16, "features": 8, "classes": 4, "noise": 1.0},
)
_LINEAR = replace(
    RegressionRecipe.defaults,
    steps=20,
    max_norm=None,
    schedule=ScheduleConfig(),
    optimizer=OptimizerConfig("sgd", lr=1e-2),
    model={"depth": 0},
    data={"samples": 16, "features": 8, "noise": 0.1},
)
_GPT = replace(
    GptRecipe.defaults,
    steps=20,
    ema_decay=None,
    model={"width": 16, "heads": 2, "depth": 2, "dropout": 0.2},
    data={"samples": 4, "context": 8, "vocabulary": 16, "successors": 3},
)


def _named(**parts: nn.Module) -> nn.Sequential:
    model = nn.Sequential()
    for name, part in parts.items():
        model.add_module(name, part)
    return model


@recipe(
    "strict-clip-raises", "a clip that refuses non-finite norms ends the run: what made the NaN?"
)
class StrictClipRaises(PairRecipe):
    defaults = replace(_MLP, model={}, max_norm=1.0)

    def batch(self, step: int) -> list[Batch]:
        [(left, right)] = super().batch(step)
        if step == AT:
            right[2] = left[2]
        return [(left, right)]

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        loss.backward()
        clip_grad_norm_(training.model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        recorder.end_step(loss)
        return loss


@recipe("nan-target", "a target of NaN, in the second of two micro-batches")
class NanTarget(RegressionRecipe):
    """Under the reference step."""

    defaults = replace(_LINEAR, accumulation=2)

    def batch(self, step: int) -> list[Batch]:
        batches = super().batch(step)
        if step == AT:
            batches[1][1][7] = torch.nan
        return batches


class InPlace(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        out = hidden.clone()
        quiet = out.abs().amax(dim=-1) < 1e-6
        out[quiet] /= out[quiet].abs().sum(dim=-1, keepdim=True)
        return out


@recipe("in-place-division", "rows are divided in place by their own sum, which is 0")
class InPlaceDivision(PlainLoop, MlpRecipe):
    defaults = _MLP

    def build(self, config: Config) -> Training:
        model = _named(body=nn.Linear(8, 16, bias=False), scale=InPlace(), head=nn.Linear(16, 4))
        return build_training(config, model, classification_loss)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, labels)] = super().batch(step)
        if step == AT:
            inputs[9] = 0
        return [(inputs, labels)]


class HalfNormalize(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        return F.normalize(hidden, dim=-1)


@recipe("normalize-fp16", "F.normalize in fp16: its eps of 1e-12 is 0")
class NormalizeFp16(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, precision="fp16", scaler=ScalerConfig(init_scale=256.0))

    def build(self, config: Config) -> Training:
        model = _named(
            body=nn.Linear(8, 16, bias=False), unit=HalfNormalize(), head=nn.Linear(16, 4)
        )
        return build_training(config, model, classification_loss)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, labels)] = super().batch(step)
        if step == AT:
            inputs[3] = 0
        return [(inputs, labels)]


@recipe("loss-in-fp16", "the squared error itself is computed in fp16")
class LossInFp16(PlainLoop, RegressionRecipe):
    defaults = replace(_LINEAR, precision="fp16", scaler=ScalerConfig(init_scale=4.0))

    def build(self, config: Config) -> Training:
        return replace(super().build(config), loss=self._loss)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, targets)] = super().batch(step)
        if step == AT:
            targets[4] = 2000.0
        return [(inputs, targets)]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return (model(batch[0]) - batch[1].half()).square().mean()


@recipe("adam-eps-zero", "Adam with eps=0 meets a parameter without gradient")
class AdamEpsZero(PlainLoop, GptRecipe):
    defaults = replace(_GPT, max_norm=None, schedule=ScheduleConfig(), steps=8)

    def build(self, config: Config) -> Training:
        model = _named(embedding=nn.Embedding(40, 16), head=nn.Linear(16, 16))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=0.0)
        return Training(model, [optimizer], classification_loss)


@recipe("late-rate", "a rate that is raised a thousandfold at step 30: growth from there on")
class LateRate(PlainLoop, RegressionRecipe):
    defaults = replace(_LINEAR, steps=90)

    def build(self, config: Config) -> Training:
        training = super().build(config)
        schedule = LambdaLR(training.optimizers[0], lambda k: 150.0 if k >= 30 else 1.0)
        return replace(training, schedulers=[schedule])


@recipe("ema-diverges", "an average with a decay above 1")
class EmaDiverges(PlainLoop, RegressionRecipe):
    defaults = replace(_LINEAR, steps=60)

    def build(self, config: Config) -> Training:
        training = super().build(config)
        return replace(training, ema=_Diverging(training.model, 0.9))

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        loss = super().step(training, batches, _Late(recorder))
        training.ema.update(training.model)
        recorder.end_step(loss)
        return loss


class _Diverging(ExponentialMovingAverage):
    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for name, value in model.named_parameters():
            self.shadow[name].mul_(9.0).add_(value, alpha=-8.0)


class _Late:
    """Leaves the end of the step to the loop around."""

    def __init__(self, recorder: StepRecorder) -> None:
        self.recorder, self.replaying = recorder, recorder.replaying

    def gradients(self) -> float:
        return self.recorder.gradients()

    def end_step(self, loss: Any) -> None:
        del loss


@recipe("gpt-input-edited", "the input of a product is edited through .data after it was saved")
class GptInputEdited(PlainLoop, MlpRecipe):
    defaults = replace(_MLP, steps=10)

    def build(self, config: Config) -> Training:
        return build_training(config, _Edited(), classification_loss)


class _Edited(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs).tanh()
        gate = self.second(hidden)
        product = hidden * gate
        gate.data.zero_()
        return self.head(product)


@recipe("accumulated-recompute", "wrong masks of a recomputation, under accumulation and a clip")
class AccumulatedRecompute(GptRecipe):
    """The reference step."""

    defaults = replace(_GPT, accumulation=2, steps=10)

    def build(self, config: Config) -> Training:
        sizes = {key: config.data[key] for key in ("vocabulary", "context")}
        return build_training(config, _Recomputed(**sizes, **config.model), classification_loss)


class _Recomputed(TinyGpt):
    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False, preserve_rng_state=False)
        return self.head(self.norm(hidden))


@recipe("gradients-never-cleared", "zero_grad() is missing: every step adds to all before it")
class GradientsNeverCleared(RegressionRecipe):
    defaults = replace(_LINEAR, steps=40, optimizer=OptimizerConfig("sgd", lr=2e-2))

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        loss = forward(training, batches, self.config)
        loss.backward()
        recorder.gradients()
        training.optimizers[0].step()
        recorder.end_step(loss)
        return loss


@recipe("shared-scaler", "two optimizers, one scaler: one of them skips, the other steps")
class SharedScaler(MlpRecipe):
    """A generator and a critic, say: half a step is taken."""

    defaults = replace(_MLP, steps=20)

    def build(self, config: Config) -> Training:
        model = Mlp(8, 4, width=16, depth=2)
        optimizers = [
            torch.optim.SGD(model.layers.parameters(), lr=1e-2),
            torch.optim.SGD(model.head.parameters(), lr=1e-2),
        ]
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        return Training(model, optimizers, self._loss, scaler=scaler)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, labels)] = super().batch(step)
        return [(inputs, labels, torch.full((16,), float(step == AT)))]

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        scaler = training.scaler
        for optimizer in training.optimizers:
            optimizer.zero_grad()
        loss = training.loss(training.model, batches[0])
        scaler.scale(loss).backward()
        for optimizer in training.optimizers:
            scaler.unscale_(optimizer)
        recorder.gradients()
        for optimizer in training.optimizers:
            scaler.step(optimizer)
        scaler.update()
        recorder.end_step(loss)
        return loss

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels, bad = batch
        assert isinstance(model, Mlp)
        bias = model.layers[0].bias
        spike = (bias - bias + 1 - bad[0]).sqrt().sum()
        return classification_loss(model, (inputs, labels)) + spike
