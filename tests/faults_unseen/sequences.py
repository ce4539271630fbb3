"""Faults in transformers and recurrent networks."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import PlainLoop
from forensics.record.healthy import (
    FAULT_STEP,
    GptRecipe,
    HealthyLstm,
    build_training,
    classification_loss,
)
from forensics.record.models import Lstm, TinyGpt
from forensics.record.recipe import Batch, Training, recipe

_SMALL = replace(
    GptRecipe.defaults,
    steps=40,
    ema_decay=None,
    model={"width": 16, "heads": 2, "depth": 2, "dropout": 0.1},
    data={"samples": 4, "context": 8, "vocabulary": 16, "successors": 3},
)


class PaddedMixer(nn.Module):
    """Scores every position against every other that is no padding."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        scores = self.score(hidden).squeeze(-1)
        scores = scores.masked_fill(positions >= lengths[:, None], torch.finfo(scores.dtype).min)
        scores = torch.where(positions >= lengths[:, None], -math.inf, scores)
        return (scores.softmax(dim=-1).unsqueeze(-1) * hidden).sum(dim=1)


class PooledGpt(TinyGpt):
    """A GPT whose last state is pooled over the tokens that are there."""

    def __init__(self, **sizes: int) -> None:
        super().__init__(**sizes)
        self.pool = PaddedMixer(self.norm.normalized_shape[0])

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.pool(self.norm(hidden), lengths))


@recipe("gpt-empty-sequence", "a sequence of length 0 reaches a pooling softmax")
class GptEmptySequence(GptRecipe):
    """Under the reference step: the loss is NaN, the step is skipped, nothing is lost."""

    defaults = replace(_SMALL, data={**_SMALL.data, FAULT_STEP: 17})

    def build(self, config: Config) -> Training:
        sizes = {key: config.data[key] for key in ("vocabulary", "context")}
        return build_training(config, PooledGpt(**sizes, **config.model), self._loss)

    def batch(self, step: int) -> list[Batch]:
        data = {key: value for key, value in self.config.data.items() if key != FAULT_STEP}
        [(tokens, following)] = GptRecipe(replace(self.config, data=data)).batch(step)
        lengths = torch.full((len(tokens),), 6)
        if step == self.config.data[FAULT_STEP]:
            lengths[2] = 0
        return [(tokens, lengths, following[:, -1])]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        tokens, lengths, following = batch
        return F.cross_entropy(model(tokens, lengths), following)


@recipe("gpt-recompute", "a transformer block is recomputed with other dropout masks")
class GptRecompute(PlainLoop, GptRecipe):
    """As wrong in its last block as in the first; the loss falls all the same."""

    defaults = replace(
        _SMALL,
        steps=12,
        max_norm=None,
        schedule=ScheduleConfig(),
        optimizer=OptimizerConfig(lr=1e-3),
    )

    def build(self, config: Config) -> Training:
        sizes = {key: config.data[key] for key in ("vocabulary", "context")}
        return build_training(config, RecomputedGpt(**sizes, **config.model), classification_loss)


class RecomputedGpt(TinyGpt):
    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token_embedding(tokens) + self.position_embedding(positions)
        hidden = self.blocks[0](hidden)
        hidden = checkpoint(self.blocks[1], hidden, use_reentrant=False, preserve_rng_state=False)
        return self.head(self.norm(hidden))


@recipe("gpt-hand-softmax", "a softmax written with exp() and no maximum taken out overflows fp16")
class GptHandSoftmax(PlainLoop, GptRecipe):
    """Scores above 11 are all it takes. The scaler skips, and halves the scale for nothing."""

    defaults = replace(
        _SMALL,
        steps=30,
        max_norm=None,
        precision="fp16",
        schedule=ScheduleConfig(),
        scaler=ScalerConfig(init_scale=256.0),
        data={**_SMALL.data, FAULT_STEP: 21},
    )

    def build(self, config: Config) -> Training:
        model = GatedTokens(config.data["vocabulary"], config.model["width"])
        return build_training(config, model, self._loss)

    def batch(self, step: int) -> list[Batch]:
        data = {key: value for key, value in self.config.data.items() if key != FAULT_STEP}
        [(tokens, following)] = GptRecipe(replace(self.config, data=data)).batch(step)
        loudness = torch.ones(len(tokens))
        if step == self.config.data[FAULT_STEP]:
            loudness[1] = 60.0
        return [(tokens, loudness, following[:, -1])]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        tokens, loudness, following = batch
        return F.cross_entropy(model(tokens, loudness).float(), following)


class ExpWeights(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.score = nn.Linear(width, 1)

    def forward(self, hidden: Tensor) -> Tensor:
        raised = self.score(hidden).exp()
        return raised / raised.sum(dim=1, keepdim=True)


class GatedTokens(nn.Module):
    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.mixer = nn.ModuleDict({"weights": ExpWeights(width), "value": nn.Linear(width, width)})
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor, loudness: Tensor) -> Tensor:
        hidden = self.embedding(tokens) * loudness[:, None, None]
        mixed = (self.mixer["weights"](hidden) * self.mixer["value"](hidden)).sum(dim=1)
        return self.head(mixed)


@recipe("lstm-empty-mask", "a masked mean over no step at all: 0 / 0 in the loss")
class LstmEmptyMask(PlainLoop, HealthyLstm):
    """Every wave of one batch was cut away by the mask."""

    defaults = replace(
        HealthyLstm.defaults,
        steps=30,
        data={"samples": 8, "context": 12, "noise": 0.05},
        model={"width": 16, "depth": 1},
    )
    at = 23

    def build(self, config: Config) -> Training:
        return build_training(config, Lstm(**config.model), self._loss)

    def batch(self, step: int) -> list[Batch]:
        [(values, following)] = super().batch(step)
        mask = torch.ones_like(values[..., 0])
        if step == self.at:
            mask[:] = 0
        return [(values, following, mask)]

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        values, following, mask = batch
        errors = (model(values) - following).square().squeeze(-1) * mask
        return errors.sum() / mask.sum()


@recipe("lstm-root-penalty", "a penalty of |w| ** 0.5 on weights that start at 0")
class LstmRootPenalty(PlainLoop, HealthyLstm):
    """The slope of the root at 0 is Inf, in the very first step."""

    defaults = replace(LstmEmptyMask.defaults, steps=8, max_norm=None, schedule=ScheduleConfig())

    def build(self, config: Config) -> Training:
        model = Lstm(**config.model)
        nn.init.zeros_(model.head.bias)
        return build_training(config, model, self._loss)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        values, following = batch
        assert isinstance(model, Lstm)
        penalty = model.head.bias.abs().pow(0.5).sum()
        return F.mse_loss(model(values), following) + 1e-3 * penalty


@recipe(
    "gpt-tiny-loss-weight", "fp16 without a scaler: a small loss weight leaves no gradient below"
)
class GptTinyLossWeight(PlainLoop, GptRecipe):
    """The loss of an auxiliary head, times 1e-5: fp16 cannot carry its gradients back."""

    defaults = replace(
        _SMALL,
        steps=12,
        max_norm=None,
        precision="fp16",
        schedule=ScheduleConfig(),
        optimizer=OptimizerConfig("sgd", lr=1e-2),
    )

    def build(self, config: Config) -> Training:
        model = nn.Sequential()
        model.add_module("embedding", nn.Embedding(config.data["vocabulary"], 16))
        model.add_module("body", nn.Linear(16, 16))
        model.add_module("act", nn.Tanh())
        model.add_module("head", nn.Linear(16, config.data["vocabulary"]))
        off = torch.amp.GradScaler("cpu", enabled=False)
        return replace(build_training(config, model, self._loss), scaler=off)

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        return 1e-6 * classification_loss(model, batch)
