"""Faults of fp16 and its loss scaler: overflow in forward; a scale that swings or freezes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from forensics.record import data
from forensics.record.config import Config, ScalerConfig
from forensics.record.faults.own_loop import clip, forward
from forensics.record.healthy import MlpRecipe, build_training, classification_loss
from forensics.record.recipe import Batch, StepRecorder, Training, recipe


class SquaredFeedForward(nn.Module):
    """A feed-forward block with squared ReLU, then LayerNorm and a head.

    The block's output grows with the square of its input. LayerNorm takes that out again, but
    only after the block's last product has been stored: in fp16 it must stay below 65,504.
    """

    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.up = nn.Linear(inputs, width)
        self.down = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, inputs) → (samples, outputs)."""
        hidden = self.down(self.up(inputs).relu().square())
        out: Tensor = self.head(self.norm(hidden))
        return out


class _LoudSamples(MlpRecipe):
    """Clusters whose samples differ in loudness by orders of magnitude, as raw recordings do."""

    defaults = replace(
        MlpRecipe.defaults,
        precision="fp16",
        model={"width": 32},
        data={**MlpRecipe.defaults.data, "fault_spread": 1.6},
    )

    def build(self, config: Config) -> Training:
        """The feed-forward block and cross-entropy."""
        sizes = (config.data["features"], config.data["classes"])
        return build_training(
            config, SquaredFeedForward(*sizes, **config.model), classification_loss
        )

    def batch(self, step: int) -> list[Batch]:
        """Each sample times a log-normal factor of its own."""
        config, batches = self.config, []
        for micro, (inputs, labels) in enumerate(super().batch(step)):
            draw = data.generator(config.seed + 1, step, micro)
            loudness = torch.randn(len(labels), 1, generator=draw) * config.data["fault_spread"]
            batches.append((inputs * loudness.exp(), labels))
        return batches


@recipe("fp16-overflow", "the loudest samples overflow fp16 in forward; bf16 never skips a step")
class Fp16Overflow(_LoudSamples):
    """A natural overflow: nothing is injected. Halving the loss scale cannot help."""


@recipe("scaler-frozen", "loop that skips on a non-finite loss and never backs the scale off")
class ScalerFrozen(_LoudSamples):
    """The skip path returns before ``update()``, which is right, and does nothing in its place."""

    defaults = replace(_LoudSamples.defaults, scaler=ScalerConfig(init_scale=2.0**10))

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop with an early return."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad(set_to_none=True)
        loss = forward(training, batches, self.config)
        if not math.isfinite(loss.item()):
            recorder.end_step(loss)  # FAULT: the scale stays as it is
            return loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        clip(training, self.config)
        scaler.step(optimizer)
        scaler.update()
        for scheduler in training.schedulers:
            scheduler.step()
        recorder.end_step(loss)
        return loss


@recipe("update-forgotten", "loop that skips after unscale_ without update(): the next step raises")
class UpdateForgotten(MlpRecipe):
    """The scale doubles until a gradient overflows; the path that was never tested is taken."""

    defaults = replace(
        MlpRecipe.defaults,
        precision="fp16",
        scaler=ScalerConfig(init_scale=2.0**14, growth_interval=10),
    )

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop with an early return after ``unscale_``."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad(set_to_none=True)
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not math.isfinite(recorder.gradients()):
            recorder.end_step(loss)  # FAULT: no scaler.update()
            return loss
        clip(training, self.config)
        scaler.step(optimizer)
        scaler.update()
        for scheduler in training.schedulers:
            scheduler.step()
        recorder.end_step(loss)
        return loss


class CosineClassifier(nn.Module):
    """Embeds without bias, and compares directions alone."""

    def __init__(self, inputs: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(inputs, width, bias=False)
        self.prototypes = nn.Linear(width, outputs, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, inputs) → (samples, outputs), within ±10."""
        directions = F.normalize(self.embed(inputs).float(), dim=-1)
        return 10.0 * directions @ F.normalize(self.prototypes.weight, dim=-1).T


@recipe("scaler-oscillation", "silent stretches every 60 steps and a growth interval of 5")
class ScalerOscillation(MlpRecipe):
    """The scale falls by many octaves in each stretch and climbs back before the next.

    The slope of a normalisation is 1 / length: where the inputs are nearly silent, the gradient
    of the embedding is large, though the loss and the gradients of the weights are as ever.
    """

    defaults = replace(
        MlpRecipe.defaults,
        steps=360,
        precision="fp16",
        scaler=ScalerConfig(growth_interval=5),
        model={"width": 32},
        data={
            **MlpRecipe.defaults.data,
            "fault_every": 60,
            "fault_length": 12,
            "fault_factor": 2.0**-11,
        },
    )

    def build(self, config: Config) -> Training:
        """The cosine classifier and cross-entropy."""
        sizes = (config.data["features"], config.data["classes"])
        return build_training(config, CosineClassifier(*sizes, **config.model), classification_loss)

    def batch(self, step: int) -> list[Batch]:
        """The last steps of each period nearly silent."""
        batches, settings = super().batch(step), self.config.data
        every, length = settings["fault_every"], settings["fault_length"]
        if step % every < every - length:
            return batches
        return [(inputs * settings["fault_factor"], labels) for inputs, labels in batches]
