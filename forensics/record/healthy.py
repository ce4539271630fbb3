"""Healthy recipes: each learns visibly, and no rule has anything to say about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record import data
from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.models import Lstm, Mlp, ResidualCnn, TinyGpt
from forensics.record.optimizers import build_optimizer
from forensics.record.recipe import Batch, Recipe, Training, recipe
from forensics.record.schedule import build_scheduler

FAULT_STEP = "fault_step"
"""Setting that some faults have in their ``data`` table: the step at which they strike."""


def build_training(config: Config, model: nn.Module, loss: Callable[..., Tensor]) -> Training:
    """A training of ``model`` with the optimizer and the schedule that the config asks for."""
    optimizer = build_optimizer(model.parameters(), config.optimizer)
    scheduler = build_scheduler(optimizer, config.schedule, config.steps)
    return Training(model, [optimizer], loss, [] if scheduler is None else [scheduler])


def classification_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy in float32; logits may have any dimensions before the classes."""
    inputs, labels = batch
    logits = model(inputs).float()  # CUDA's autocast does so by itself, the CPU's does not
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten())


def task_settings(config: Config) -> dict[str, Any]:
    """The settings of the data alone: those named ``fault_…`` are the recipe's."""
    return {key: value for key, value in config.data.items() if not key.startswith("fault_")}


def regression_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error in float32."""
    inputs, targets = batch
    return F.mse_loss(model(inputs).float(), targets)


class MlpRecipe(Recipe):
    """An MLP that tells clusters apart: the base of most faults."""

    defaults = Config(
        steps=300,
        max_norm=4.0,
        optimizer=OptimizerConfig(lr=1e-3),
        schedule=ScheduleConfig("cosine", warmup_steps=20),
        model={"width": 32, "depth": 2, "activation": "relu", "gain": 1.0},
        data={"samples": 32, "features": 16, "classes": 8, "noise": 2.0},
    )

    def build(self, config: Config) -> Training:
        """The MLP, its optimizer and schedule, and cross-entropy."""
        model = Mlp(config.data["features"], config.data["classes"], **config.model)
        return build_training(config, model, classification_loss)

    def batch(self, step: int) -> list[Batch]:
        """One batch of clusters a micro-batch."""
        config = self.config
        return [
            data.clusters(config.seed, step, micro, **task_settings(config))
            for micro in range(config.accumulation)
        ]


class RegressionRecipe(Recipe):
    """An MLP that fits a linear function: the base of faults in unbounded losses."""

    defaults = replace(MlpRecipe.defaults, data={"samples": 32, "features": 16, "noise": 0.1})

    def build(self, config: Config) -> Training:
        """The MLP with one output, its optimizer and schedule, and the squared error."""
        model = Mlp(config.data["features"], 1, **config.model)
        return build_training(config, model, regression_loss)

    def batch(self, step: int) -> list[Batch]:
        """One batch of inputs and targets a micro-batch."""
        config = self.config
        return [
            data.linear_targets(config.seed, step, micro, **task_settings(config))
            for micro in range(config.accumulation)
        ]


class GptRecipe(Recipe):
    """A tiny GPT on sequences with a few successors a token."""

    defaults = Config(
        steps=300,
        max_norm=2.0,
        ema_decay=0.99,
        optimizer=OptimizerConfig(lr=1e-3, weight_decay=0.01, betas=(0.9, 0.95)),
        schedule=ScheduleConfig("cosine", warmup_steps=30),
        model={"width": 32, "heads": 4, "depth": 2, "dropout": 0.1},
        data={"samples": 8, "context": 24, "vocabulary": 32, "successors": 3},
    )

    def build(self, config: Config) -> Training:
        """The GPT, its optimizer and schedule, and the cross-entropy of every next token."""
        sizes = {key: config.data[key] for key in ("vocabulary", "context")}
        return build_training(config, TinyGpt(**sizes, **config.model), classification_loss)

    def batch(self, step: int) -> list[Batch]:
        """One batch of sequences a micro-batch."""
        config = self.config
        return [
            data.tokens(config.seed, step, micro, **config.data)
            for micro in range(config.accumulation)
        ]


@recipe("healthy-fp32", "MLP classifier in fp32: AdamW, warm-up, cosine; nothing goes wrong")
class HealthyFp32(MlpRecipe):
    """The twin of ``healthy-fp16``."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=1000,
        optimizer=OptimizerConfig(lr=5e-4),
        model={**MlpRecipe.defaults.model, "width": 48},
        data={"samples": 64, "features": 32, "classes": 32, "noise": 2.0},
    )


@recipe("healthy-fp16", "the same in fp16: a GradScaler calibrates, then overflows now and then")
class HealthyFp16(MlpRecipe):
    """The sawtooth of a sound loss scaler.

    The scale starts too high and is halved a few times in a row. Then it doubles every growth
    interval until a gradient overflows, and is halved again: about one overflow an interval, for
    the whole run. The interval is a tenth of the usual one, so that a short run shows several.
    """

    defaults = replace(
        HealthyFp32.defaults,
        precision="fp16",
        scaler=ScalerConfig(init_scale=2.0**22, growth_interval=200),
    )


@recipe("healthy-mlp", "MLP classifier, SGD with momentum at a constant rate")
class HealthyMlp(MlpRecipe):
    """The simplest training there is."""

    defaults = replace(
        MlpRecipe.defaults,
        optimizer=OptimizerConfig("sgd", lr=3e-3, momentum=0.9),
        schedule=ScheduleConfig("constant"),
        data={**MlpRecipe.defaults.data, "samples": 64},
    )


@recipe("healthy-gpt", "tiny GPT with tied embeddings, dropout, accumulation of 2 and an EMA")
class HealthyGpt(GptRecipe):
    """Everything the reference step can do, in one run."""

    defaults = replace(GptRecipe.defaults, accumulation=2)


@recipe("healthy-cnn", "residual CNN with BatchNorm on small images")
class HealthyCnn(Recipe):
    """Its buffers move every step."""

    defaults = Config(
        steps=200,
        max_norm=5.0,
        optimizer=OptimizerConfig(lr=3e-4),
        schedule=ScheduleConfig("constant", warmup_steps=20),
        model={"channels": 12, "depth": 2},
        data={"samples": 32, "size": 8, "classes": 6, "noise": 2.0},
    )

    def build(self, config: Config) -> Training:
        """The CNN, its optimizer and schedule, and cross-entropy."""
        model = ResidualCnn(config.data["classes"], **config.model)
        return build_training(config, model, classification_loss)

    def batch(self, step: int) -> list[Batch]:
        """One batch of images a micro-batch."""
        config = self.config
        return [
            data.images(config.seed, step, micro, **task_settings(config))
            for micro in range(config.accumulation)
        ]


@recipe("healthy-lstm", "LSTM that predicts the next value of a noisy sine wave")
class HealthyLstm(Recipe):
    """A squared error that falls to the noise and stays there."""

    defaults = Config(
        steps=300,
        optimizer=OptimizerConfig(lr=1e-3),
        schedule=ScheduleConfig("constant", warmup_steps=20),
        model={"width": 32, "depth": 1},
        data={"samples": 16, "context": 24, "noise": 0.05},
    )

    def build(self, config: Config) -> Training:
        """The LSTM, its optimizer and schedule, and the squared error."""
        return build_training(config, Lstm(**config.model), regression_loss)

    def batch(self, step: int) -> list[Batch]:
        """One batch of waves a micro-batch."""
        config = self.config
        return [
            data.waves(config.seed, step, micro, **config.data)
            for micro in range(config.accumulation)
        ]


RECIPES: tuple[type[Recipe], ...] = (
    HealthyFp32,
    HealthyFp16,
    HealthyMlp,
    HealthyGpt,
    HealthyCnn,
    HealthyLstm,
)
"""What ``forensics record --list`` shows first."""
