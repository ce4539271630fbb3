"""Faults of few bits: overflow, underflow and rounding in fp16 and bf16."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from forensics.record import data
from forensics.record.config import Config, OptimizerConfig, ScalerConfig
from forensics.record.faults.own_loop import OneBadBatch, PlainLoop, plain
from forensics.record.healthy import (
    FAULT_STEP,
    MlpRecipe,
    RegressionRecipe,
    build_training,
    classification_loss,
    regression_loss,
)
from forensics.record.models import Mlp
from forensics.record.recipe import Batch, Training, recipe

FEATURES, CLASSES = 8, 4
_DATA = {"samples": 16, "features": FEATURES, "classes": CLASSES, "noise": 1.0}
_FP16 = plain(
    MlpRecipe.defaults,
    12,
    precision="fp16",
    scaler=ScalerConfig(init_scale=1024.0),
    model={},
    data={**_DATA, FAULT_STEP: 5},
)
_REGRESSION = plain(
    RegressionRecipe.defaults,
    12,
    model={"depth": 0},
    data={"samples": 16, "features": FEATURES, "noise": 0.1},
)


class HandWrittenNorm(nn.Module):
    """LayerNorm from a tutorial, with an eps that fp16 does not have."""

    def forward(self, hidden: Tensor) -> Tensor:
        """(samples, width) → the same shape."""
        centred = hidden - hidden.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        return centred * torch.rsqrt(variance + 1e-12)  # FAULT: 1e-12 is 0 in fp16


@recipe("norm-eps-fp16", "a hand-written LayerNorm whose eps is 0 in fp16 meets a row of zeros")
class NormEpsFp16(OneBadBatch, PlainLoop, MlpRecipe):
    """The scaler skips the step and halves the scale, which has nothing to do with it."""

    defaults = _FP16

    def build(self, config: Config) -> Training:
        """A body without bias, the norm and a head."""
        model = nn.Sequential()
        model.add_module("body", nn.Linear(FEATURES, 16, bias=False))
        model.add_module("norm", HandWrittenNorm())
        model.add_module("head", nn.Linear(16, CLASSES))
        return build_training(config, model, classification_loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """One sample of padding."""
        inputs[3] = 0
        return inputs, targets


class LoudFeedForward(nn.Module):
    """A feed-forward block whose last product is large, a LayerNorm that takes it in, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(FEATURES, 32), nn.Linear(32, 16)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, CLASSES)
        with torch.no_grad():
            self.down.weight.abs_().mul_(16)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, classes)."""
        hidden = self.down(self.up(inputs).relu())  # FAULT: above 65,504 it is Inf in fp16
        out: Tensor = self.head(self.norm(hidden))
        return out


@recipe("ffn-overflow-fp16", "a feed-forward output passes 65,504 in fp16; fp32 and bf16 hold it")
class FfnOverflowFp16(OneBadBatch, PlainLoop, MlpRecipe):
    """What fp16 does to models that were trained in bf16."""

    defaults = _FP16

    def build(self, config: Config) -> Training:
        """The loud block and cross-entropy."""
        return build_training(config, LoudFeedForward(), classification_loss)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """Loud inputs that fp16 itself still holds."""
        return (inputs * 1e4).clamp(-6e4, 6e4), targets


class TokenClassifier(nn.Module):
    """The mean of a sequence's embeddings, and a head."""

    def __init__(self, vocabulary: int, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(vocabulary, 8), nn.Linear(8, outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """(samples, context) → (samples, outputs)."""
        out: Tensor = self.head(self.embedding(tokens).mean(dim=1))
        return out


@recipe("adam-eps-fp16", "parameters in fp16, where Adam's eps is 0: rows without gradient get 0/0")
class AdamEpsFp16(PlainLoop, MlpRecipe):
    """Half of the vocabulary never occurs, and its embedding becomes NaN in the first step."""

    defaults = plain(
        MlpRecipe.defaults,
        6,
        optimizer=OptimizerConfig("adam", lr=1e-3),
        model={},
        data={"samples": 8, "context": 5, "vocabulary": 10, "successors": 3},
    )

    def build(self, config: Config) -> Training:
        """A model in half precision throughout."""
        vocabulary = config.data["vocabulary"]
        model = TokenClassifier(2 * vocabulary, vocabulary).half()  # FAULT: eps=1e-8 rounds to 0
        return build_training(config, model, self._loss)

    def batch(self, step: int) -> list[Batch]:
        """Sequences of tokens."""
        config = self.config
        return [
            data.tokens(config.seed, step, micro, **config.data)
            for micro in range(config.accumulation)
        ]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        tokens, following = batch
        return F.cross_entropy(model(tokens).float(), following[:, -1])


@recipe("gradient-underflow-fp16", "fp16 without a GradScaler: the gradients of the body are 0")
class GradientUnderflowFp16(PlainLoop, RegressionRecipe):
    """The least fp16 number is 6e-8; what is smaller than half of it vanishes on its way back."""

    defaults = replace(
        _REGRESSION,
        precision="fp16",
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        model={"width": 16, "depth": 1, "activation": "relu"},
    )

    def build(self, config: Config) -> Training:
        """A head that starts small, and a loss of little weight."""
        training = super().build(config)
        with torch.no_grad():
            training.model.get_parameter("head.weight").mul_(1e-4)
        off = GradScaler("cpu", enabled=False)  # FAULT: fp16 gradients need a loss scale
        return replace(training, loss=self._loss, scaler=off)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return 1e-3 * regression_loss(model, batch)


class Bf16Linear(Mlp):
    """A linear model whose parameters are bfloat16."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, inputs) → (samples, outputs)."""
        return super().forward(inputs.bfloat16())


@recipe(
    "stale-update-bf16", "parameters in bf16: an update below half a last place is rounded away"
)
class StaleUpdateBf16(PlainLoop, RegressionRecipe):
    """After 1 comes 1.008 in bf16. Gradients flow, the optimizer steps, and nothing moves."""

    defaults = replace(_REGRESSION, optimizer=OptimizerConfig("sgd", lr=1e-4))

    def build(self, config: Config) -> Training:
        """A linear model in bf16 that starts from ones."""
        model = Bf16Linear(config.data["features"], 1, **config.model)
        nn.init.ones_(model.head.weight)
        model.bfloat16()  # FAULT: no fp32 copy of the weights
        return build_training(config, model, regression_loss)
