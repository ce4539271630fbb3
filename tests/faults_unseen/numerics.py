"""Further operators outside their domain, further ranges left, further errors raised."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import PlainLoop
from forensics.record.healthy import MlpRecipe, build_training, classification_loss
from forensics.record.recipe import Batch, Training, recipe

_BASE = replace(
    MlpRecipe.defaults,
    steps=16,
    max_norm=None,
    schedule=ScheduleConfig(),
    optimizer=OptimizerConfig("sgd", lr=1e-3),
    model={},
    data={"samples": 8, "features": 8, "classes": 4, "noise": 1.0},
)
_FP16 = replace(_BASE, precision="fp16", scaler=ScalerConfig(init_scale=256.0))
AT = 11


class _Spoilt(PlainLoop, MlpRecipe):
    """One sample of the batch of step 11 is changed."""

    defaults = _BASE
    parts: Callable[[], nn.Module]
    loss: Any = staticmethod(classification_loss)

    def build(self, config: Config) -> Training:
        return build_training(config, type(self).parts(), type(self).loss)

    def batch(self, step: int) -> list[Batch]:
        [(inputs, labels)] = super().batch(step)
        return [self.spoil(inputs, labels) if step == AT else (inputs, labels)]

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        inputs[3] = 0
        return inputs, labels


class _Net(nn.Module):
    """A body without bias, one special part, a head."""

    def __init__(self, special: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Linear(8, width, bias=False)
        self.special, self.head = special, nn.Linear(width, 4)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.special(self.body(inputs)))


class _Of(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, hidden: Tensor) -> Tensor:
        return self.function(hidden)


@recipe("norm-without-eps", "LayerNorm with eps=0 on a constant row")
class NormWithoutEps(_Spoilt):
    parts = staticmethod(lambda: _Net(nn.LayerNorm(8, eps=0.0)))


@recipe("unit-vector-of-zero", "a vector divided by its own length, which is 0")
class UnitVectorOfZero(_Spoilt):
    parts = staticmethod(lambda: _Net(_Of(lambda h: h / h.norm(dim=-1, keepdim=True))))


@recipe("logit-of-one", "logit() of a probability that a sigmoid rounded to 1")
class LogitOfOne(_Spoilt):
    parts = staticmethod(lambda: _Net(_Of(lambda h: torch.logit(h.sigmoid()))))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return inputs * 200, labels


@recipe("root-of-negative", "a fractional power of values that are mostly positive")
class RootOfNegative(_Spoilt):
    parts = staticmethod(lambda: _Net(_Of(lambda h: (h + 30).pow(0.3))))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return inputs * 100, labels


@recipe("class-weight-zero", "every label of a batch has the class weight 0")
class ClassWeightZero(_Spoilt):
    parts = staticmethod(lambda: _Net(nn.ReLU()))
    loss = staticmethod(
        lambda model, batch: F.cross_entropy(
            model(batch[0]), batch[1], weight=torch.tensor([0.0, 1.0, 1.0, 1.0])
        )
    )

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return inputs, torch.zeros_like(labels)


@recipe("sum-in-fp16", "a sum of moderate numbers, in fp16")
class SumInFp16(_Spoilt):
    defaults = _FP16
    parts = staticmethod(
        lambda: _Net(_Of(lambda h: h - h.abs().sum(dim=-1, keepdim=True) / 64), width=64)
    )

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return inputs * 4e3, labels


@recipe("mask-added-twice", "two masks of the least fp16 number are added: a row of -Inf")
class MaskAddedTwice(_Spoilt):
    defaults = _FP16

    def build(self, config: Config) -> Training:
        return build_training(config, _TwoMasks(), self._loss)

    def batch(self, step: int) -> list[Batch]:
        batches = MlpRecipe.batch(self, step)
        padding = torch.zeros(8, 8)
        padding[:, 6:] = 1
        if step == AT:
            padding[5] = 1
        return [(inputs, padding, labels) for inputs, labels in batches]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return F.cross_entropy(model(batch[0], batch[1]).float(), batch[2])


class _TwoMasks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, inputs: Tensor, padding: Tensor) -> Tensor:
        scores = self.body(inputs)
        least = torch.finfo(scores.dtype).min
        mask = (padding * least).to(scores.dtype)
        return self.head((scores + mask + mask).softmax(dim=-1))


@recipe("fill-too-low", "masked_fill with -1e9 in fp16 raises")
class FillTooLow(_Spoilt):
    defaults = _FP16
    parts = staticmethod(lambda: _Net(_Fill()))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return inputs.abs() * 50, labels


class _Fill(nn.Module):
    def forward(self, hidden: Tensor) -> Tensor:
        if hidden.abs().max() < 20:
            return hidden
        return hidden.masked_fill(hidden < 0, -1e9)


@recipe("index-out-of-range", "a token beyond the vocabulary")
class IndexOutOfRange(_Spoilt):
    parts = staticmethod(lambda: _Tokens())

    def batch(self, step: int) -> list[Batch]:
        draw = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 12, (8, 5), generator=draw)
        if step == AT:
            tokens[6, 2] = 12
        return [(tokens, tokens[:, 0] % 4)]


class _Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleDict({"tokens": nn.Embedding(12, 8)})
        self.head = nn.Linear(8, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder["tokens"](tokens).mean(dim=1))


@recipe("weight-norm-of-zero", "weight_norm over a row of weights that is exactly 0")
class WeightNormOfZero(_Spoilt):
    """Nothing is wrong with the data: the layer is NaN from its first step on."""

    defaults = replace(_BASE, steps=6)

    @staticmethod
    def parts() -> nn.Module:
        net = _Net(nn.ReLU())
        nn.init.zeros_(net.head.weight)
        weight_norm(net.head)
        return net


@recipe("eigen-degenerate", "two equal eigenvalues: their eigenvectors have no gradient")
class EigenDegenerate(_Spoilt):
    parts = staticmethod(lambda: _Spectrum())
    loss = staticmethod(lambda model, batch: model(batch[0]))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return torch.zeros_like(inputs), labels


class _Spectrum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 4, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.body(inputs)
        _, vectors = torch.linalg.eigh(hidden.T @ hidden + torch.eye(4))
        return (vectors * torch.arange(16.0).reshape(4, 4)).square().sum() + hidden.mean()


@recipe("variance-by-moments", "E[x²] − E[x]² is 0 under a square root: its slope is Inf")
class VarianceByMoments(_Spoilt):
    parts = staticmethod(lambda: _Net(_Of(_scaled_by_moments)))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return 1e4 * torch.ones_like(inputs) + 1e-4 * inputs, labels


def _scaled_by_moments(hidden: Tensor) -> Tensor:
    deviation = (hidden.square().mean(dim=0) - hidden.mean(dim=0).square()).sqrt()
    return hidden / (deviation + 1e-3)


@recipe("penalty-at-zero", "a gradient penalty whose norm is exactly 0: backward of a backward")
class PenaltyAtZero(_Spoilt):
    parts = staticmethod(lambda: _Net(nn.ReLU()))

    @staticmethod
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs = batch[0].clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        length = slope.square().sum(dim=-1).sqrt()
        return classification_loss(model, batch) + 0.1 * (length - 1).square().mean()


@recipe("softplus-inverse", "log(exp(x) − 1) beyond the range of exp")
class SoftplusInverse(_Spoilt):
    parts = staticmethod(lambda: _Net(_Of(lambda h: torch.log(torch.expm1(h.abs() + 0.1)))))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        return 300 * inputs, labels


@recipe("infinite-attention-bias", "a bias of Inf − Inf in a mask made of logarithms")
class InfiniteAttentionBias(_Spoilt):
    parts = staticmethod(lambda: _Net(_Of(lambda h: h + _log_bias(h))))

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        inputs[2] = 0
        return inputs, labels


def _log_bias(hidden: Tensor) -> Tensor:
    level = hidden.detach().abs().sum(dim=-1, keepdim=True).log()
    return level - level.mean(dim=0)


@recipe("ema-poisoned", "an average over weights that were NaN for one step keeps the NaN")
class EmaPoisoned(_Spoilt):
    """The weights are put back by a guard, the average is not."""

    defaults = replace(_BASE, ema_decay=0.9)
    parts = staticmethod(lambda: _Net(nn.ReLU()))

    def step(self, training: Training, batches: list[Batch], recorder: Any) -> Tensor:
        before = {k: v.clone() for k, v in training.model.state_dict().items()}
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = training.loss(training.model, batches[0])
        loss.backward()
        recorder.gradients()
        optimizer.step()
        training.ema.update(training.model)
        if not math.isfinite(float(loss.detach())):
            training.model.load_state_dict(before)
        recorder.end_step(loss)
        return loss

    def spoil(self, inputs: Tensor, labels: Tensor) -> Batch:
        inputs[1, 1] = math.nan
        return inputs, labels
