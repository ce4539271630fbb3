"""Faults of a resume: the checkpoint held the weights, but not all of the state.

The restart is played within one run: at its step, a part of the state is what a new process has.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from forensics.record.config import Config, OptimizerConfig, ScalerConfig
from forensics.record.faults.own_loop import PlainLoop, StepCounter, plain
from forensics.record.healthy import FAULT_STEP, RegressionRecipe
from forensics.record.recipe import Batch, StepRecorder, Training, recipe


class _Restarted(PlainLoop, RegressionRecipe):
    """The plain loop; before one step, something is forgotten."""

    def build(self, config: Config) -> Training:
        """The training, and a count of its steps."""
        return replace(super().build(config), extra={"progress": StepCounter()})

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """One step, after the restart where it is due."""
        progress = training.extra["progress"]
        if progress.steps == self.config.data[FAULT_STEP]:
            self.forget(training)
        progress.steps += 1
        return super().step(training, batches, recorder)

    def forget(self, training: Training) -> None:
        """What the checkpoint did not hold becomes new."""
        raise NotImplementedError


@recipe("resume-without-scaler", "a resume forgets the loss scale: back at 65,536, steps overflow")
class ResumeWithoutScaler(_Restarted):
    """The run had found its scale; the new scaler has to find it again, a skip at a time."""

    defaults = plain(
        RegressionRecipe.defaults,
        24,
        precision="fp16",
        optimizer=OptimizerConfig("sgd", lr=1e-2),
        scaler=ScalerConfig(init_scale=256.0),
        model={"depth": 0},
        data={"samples": 8, "features": 4, "noise": 0.1, FAULT_STEP: 12, "fault_factor": 8.0},
    )

    def batch(self, step: int) -> list[Batch]:
        """Targets large enough for gradients that the first scale lifts beyond fp16."""
        factor = self.config.data["fault_factor"]
        return [(inputs, factor * targets) for inputs, targets in super().batch(step)]

    def forget(self, training: Training) -> None:
        """A scaler as its constructor leaves it."""
        new = GradScaler(next(training.model.parameters()).device.type)
        training.scaler.load_state_dict(new.state_dict())  # FAULT: the scale is 65,536 again


@recipe("resume-without-optimizer", "a resume forgets Adam's moments: the first steps are large")
class ResumeWithoutOptimizer(_Restarted):
    """With empty moments Adam's update is the sign of the gradient times the rate, everywhere."""

    defaults = plain(
        RegressionRecipe.defaults,
        460,
        optimizer=OptimizerConfig("adam", lr=3e-2),
        model={"width": 32, "depth": 1, "activation": "tanh"},
        data={"samples": 32, "features": 8, "noise": 0.0, FAULT_STEP: 400},
    )

    def forget(self, training: Training) -> None:
        """An optimizer as its constructor leaves it."""
        training.optimizers[0].state.clear()  # FAULT: step counts and moments are gone
