"""Faults in backward: the loss is finite, the gradients are not, or do not arrive."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.faults.own_loop import clip, forward
from forensics.record.healthy import FAULT_STEP, MlpRecipe, build_training, classification_loss
from forensics.record.models import Mlp
from forensics.record.recipe import Batch, StepRecorder, Training, recipe


class _Plant(torch.autograd.Function):
    """A term of value 0 whose gradient to ``parameter`` is ``value`` in its first element."""

    @staticmethod
    def forward(ctx: Any, parameter: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(parameter, value)
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        parameter, value = ctx.saved_tensors
        planted = torch.zeros_like(parameter)
        planted.view(-1)[0] = grads[0] * value
        return planted, None


@recipe("inf-gradient", "an Inf is put into the gradients at step 5; the step is skipped")
class InfGradient(MlpRecipe):
    """The least fault there is: one element of one gradient, in one step."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=20,
        schedule=ScheduleConfig(),
        data={**MlpRecipe.defaults.data, FAULT_STEP: 5},
    )

    def build(self, config: Config) -> Training:
        """The loss takes what to plant from the batch."""
        return replace(super().build(config), loss=self._loss)

    def batch(self, step: int) -> list[Batch]:
        """Beside inputs and labels a column of zeros, with one Inf at the fault's step."""
        batches = []
        for inputs, labels in super().batch(step):
            planted = torch.zeros(len(labels))
            if step == self.config.data[FAULT_STEP]:
                planted[0] = math.inf
            batches.append((inputs, labels, planted))
        return batches

    @staticmethod
    def _loss(model: nn.Module, batch: Batch) -> Tensor:
        inputs, labels, planted = batch
        assert isinstance(model, Mlp)
        loss = classification_loss(model, (inputs, labels))
        # Used last, it comes first in backward: the gradient of the head still arrives before
        # those of the layers below it.
        fault: Tensor = _Plant.apply(model.head.weight, planted.sum())  # type: ignore[no-untyped-call]
        return loss + fault


def spread_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy, and a reward for neighbours of a batch that are told apart.

    The distance is guarded against the slope of the square root at 0, but ``torch.where`` selects
    values, not gradients: the branch not taken sends back 0 · Inf = NaN.
    """
    inputs, labels = batch
    logits = model(inputs).float()
    squares = (logits[1:] - logits[:-1]).square().sum(dim=-1)
    distances = torch.where(squares > 0, squares.sqrt(), 0.0)
    fit = nn.functional.cross_entropy(logits, labels)
    return fit - 0.01 * distances.mean()


class _WhereTrap(MlpRecipe):
    """A batch with the same sample twice in a row springs the trap."""

    defaults = replace(
        MlpRecipe.defaults,
        steps=80,
        data={**MlpRecipe.defaults.data, FAULT_STEP: 40},
    )

    def build(self, config: Config) -> Training:
        """Cross-entropy with the guarded distance."""
        return replace(super().build(config), loss=spread_loss)

    def batch(self, step: int) -> list[Batch]:
        """A repeated sample in the first micro-batch of one step."""
        batches = super().batch(step)
        if step == self.config.data[FAULT_STEP]:
            inputs, labels = batches[0]
            inputs[5], labels[5] = inputs[4], labels[4]
        return batches


@recipe("where-trap", "finite loss, NaN gradient: torch.where guards a square root in forward only")
class WhereTrap(_WhereTrap):
    """The reference step skips the one bad step."""


@recipe("nan-applied", "the same in a loop that checks nothing: NaN goes into the weights")
class NanApplied(_WhereTrap):
    """A plain fp32 loop. The loss is still finite when the weights are lost."""

    def step(self, training: Training, batches: list[Batch], recorder: StepRecorder) -> Tensor:
        """The loop of many tutorials."""
        optimizer = training.optimizers[0]
        optimizer.zero_grad()
        loss = forward(training, batches, self.config)
        loss.backward()
        recorder.gradients()
        clip(training, self.config)
        optimizer.step()  # FAULT: whatever the gradients are
        for scheduler in training.schedulers:
            scheduler.step()
        recorder.end_step(loss)
        return loss


@recipe("vanishing", "12 sigmoid layers, narrowly initialised: no gradient reaches the first ones")
class Vanishing(MlpRecipe):
    """Each layer multiplies the gradient by at most a quarter of its weights' gain."""

    defaults = replace(
        MlpRecipe.defaults,
        optimizer=OptimizerConfig("sgd", lr=0.05, momentum=0.9),
        model={"width": 32, "depth": 12, "activation": "sigmoid", "gain": 0.5},
    )


@recipe("frozen-layer", "a stray detach(): the layers before it never get a gradient")
class FrozenLayer(MlpRecipe):
    """The head still learns something from random features, so the loss falls a little."""

    def build(self, config: Config) -> Training:
        """An MLP that detaches after its second layer."""
        sizes = (config.data["features"], config.data["classes"])
        return build_training(config, _Detached(*sizes, **config.model), classification_loss)


class _Detached(Mlp):
    def forward(self, inputs: Tensor) -> Tensor:
        hidden = inputs
        for layer in self.layers:
            hidden = self.activation(layer(hidden))
        out: Tensor = self.head(hidden.detach())  # FAULT
        return out
