"""Faults in clipping: too low a threshold, and the clip before unscale."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from forensics.record.config import OptimizerConfig, ScalerConfig, ScheduleConfig
from forensics.record.faults.own_loop import clip, forward
from forensics.record.healthy import MlpRecipe
from forensics.record.recipe import Batch, StepRecorder, Training, recipe


@recipe("clip-every-step", "the threshold is far below every gradient; AdamW learns all the same")
class ClipEveryStep(MlpRecipe):
    """Every step is clipped, which Adam hardly notices: it divides by the gradient's own size."""

    defaults = replace(MlpRecipe.defaults, steps=400, max_norm=0.02)


@recipe("clip-starved", "the same under SGD: steps of a fixed, tiny length, and no learning")
class ClipStarved(MlpRecipe):
    """Under SGD the threshold bounds the step itself: 300 of them lead nowhere."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=400,
        max_norm=0.001,
        optimizer=OptimizerConfig("sgd", lr=0.05),
        schedule=ScheduleConfig(),
    )


@recipe("clip-before-unscale", "fp16 loop that clips the scaled gradients: SGD hardly moves")
class ClipBeforeUnscale(MlpRecipe):
    """The effective threshold is ``max_norm`` divided by the loss scale."""

    defaults = replace(
        MlpRecipe.defaults,
        precision="fp16",
        optimizer=OptimizerConfig("sgd", lr=0.05, momentum=0.9),
        schedule=ScheduleConfig(),
        scaler=ScalerConfig(init_scale=2.0**12, growth_interval=60),
    )

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """A loop without ``unscale_``."""
        optimizer, scaler = training.optimizers[0], training.scaler
        optimizer.zero_grad(set_to_none=True)
        loss = forward(training, batches, self.config)
        scaler.scale(loss).backward()
        recorder.gradients()
        clip(training, self.config)  # FAULT: still scaled
        scaler.step(optimizer)
        scaler.update()
        recorder.end_step(loss)
        return loss
