"""Faults in how a loop uses its GradScaler: by-passed, starved to 0, or misunderstood."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad_norm_

from forensics.record.config import Config, OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import (
    OneBadBatch,
    PlainLoop,
    StepCounter,
    clip,
    forward,
    plain,
)
from forensics.record.healthy import (
    FAULT_STEP,
    MlpRecipe,
    RegressionRecipe,
    build_training,
    regression_loss,
)
from forensics.record.recipe import Batch, StepRecorder, Training, recipe

FEATURES = 8
_DEFAULTS = plain(
    RegressionRecipe.defaults,
    12,
    optimizer=OptimizerConfig("sgd", lr=1e-2),
    model={"depth": 0},
    data={"samples": 16, "features": FEATURES, "noise": 0.1, FAULT_STEP: 5},
)


def with_scaler(training: Training, init_scale: float) -> Training:
    """The training with a loss scaler of its own, though its arithmetic is fp32's."""
    device = next(training.model.parameters()).device
    return replace(training, scaler=GradScaler(device.type, init_scale=init_scale))


@recipe("step-bypasses-scaler", "optimizer.step() for scaler.step(): updates times the loss scale")
class StepBypassesScaler(RegressionRecipe):
    """Nothing unscales the gradients, and nothing is ever skipped."""

    defaults = _DEFAULTS

    def build(self, config: Config) -> Training:
        """A linear model under the usual first scale."""
        return with_scaler(super().build(config), 65536.0)

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop that was given a scaler in one place only."""
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        training.scaler.scale(loss).backward()
        recorder.gradients()
        optimizer.step()  # FAULT: not scaler.step(optimizer)
        recorder.end_step(loss)
        return loss


@recipe(
    "spike-skipped-half", "a guard skips a step after unscale_ without update(): the next raises"
)
class SpikeSkippedHalf(OneBadBatch, RegressionRecipe):
    """The gradients are finite and large, and the loop means to be careful with them."""

    defaults = replace(_DEFAULTS, max_norm=1.0)
    most = 1e3

    def build(self, config: Config) -> Training:
        """A linear model under a scaler."""
        return with_scaler(super().build(config), 1024.0)

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """A batch in other units."""
        return inputs * 1e3, targets

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop with a guard of its own against large gradients."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        norm = clip_grad_norm_(training.model.parameters(), self.config.max_norm or math.inf)
        if norm <= self.most:
            scaler.step(optimizer)
            scaler.update()  # FAULT: due in a skipped step, too
        recorder.end_step(loss)
        return loss


class Loudness(nn.Module):
    """The logarithm of a sample's energy."""

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, 1)."""
        return inputs.square().mean(dim=-1, keepdim=True).log()  # FAULT: silence is -Inf


class LoudnessModel(nn.Module):
    """A linear model of the inputs and their loudness."""

    def __init__(self) -> None:
        super().__init__()
        self.loudness, self.head = Loudness(), nn.Linear(FEATURES + 1, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """(samples, features) → (samples, 1)."""
        out: Tensor = self.head(torch.cat([inputs, self.loudness(inputs)], dim=-1))
        return out


@recipe("scale-to-zero", "a long stretch of bad batches halves the loss scale to 0: NaN for good")
class ScaleToZero(PlainLoop, RegressionRecipe):
    """GradScaler has no floor. The data recover, but 1 / scale is Inf by then."""

    defaults = replace(
        _DEFAULTS, steps=200, data={**_DEFAULTS.data, FAULT_STEP: 5, "fault_until": 180}
    )

    def build(self, config: Config) -> Training:
        """The loudness model under a scaler."""
        return with_scaler(build_training(config, LoudnessModel(), regression_loss), 1024.0)

    def batch(self, step: int) -> list[Batch]:
        """A microphone that is off for a while."""
        settings, batches = self.config.data, super().batch(step)
        if settings[FAULT_STEP] <= step < settings["fault_until"]:
            return [(torch.zeros_like(inputs), targets) for inputs, targets in batches]
        return batches


@recipe("scheduler-ahead", "the schedule moves on in skipped steps, too: the rate falls untrained")
class SchedulerAhead(MlpRecipe):
    """The scale starts far too high, and a third of the schedule is over before the first step."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=60,
        precision="fp16",
        schedule=ScheduleConfig("cosine"),
        scaler=ScalerConfig(init_scale=2.0**32),
    )

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop that steps its schedule without a look at the scaler."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        recorder.gradients()
        clip(training, self.config)
        scaler.step(optimizer)
        scaler.update()
        with warnings.catch_warnings():  # torch's own warning, which it gives in step 0 alone
            warnings.simplefilter("ignore")
            training.schedulers[0].step()  # FAULT: whether or not the optimizer stepped
        recorder.end_step(loss)
        return loss


class CountsCalls:
    """Counts an optimizer's steps in a hook, as loops do that schedule by updates."""

    def __init__(self, counter: StepCounter) -> None:
        self.counter = counter

    def __call__(self, optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """The post-hook of ``Optimizer.step``."""
        del optimizer, args, kwargs
        self.counter.steps += 1  # FAULT: a fused optimizer is called in skipped steps, too


@recipe("fused-hidden-skip", "a fused AdamW skips an overflow inside its kernel: a hook miscounts")
class FusedHiddenSkip(OneBadBatch, PlainLoop, RegressionRecipe):
    """The scaler leaves the skip to the kernel: ``step()`` is entered, and changes nothing."""

    defaults = replace(_DEFAULTS, optimizer=OptimizerConfig("adamw", lr=1e-2, flavour="fused"))

    def build(self, config: Config) -> Training:
        """A linear model, a fused optimizer and a count of its updates."""
        training, updates = super().build(config), StepCounter()
        training.optimizers[0].register_step_post_hook(CountsCalls(updates))
        return replace(with_scaler(training, 1024.0), extra={"updates": updates})

    def spoil(self, inputs: Tensor, targets: Tensor) -> Batch:
        """A batch whose gradients overflow."""
        return inputs * 1e30, targets
