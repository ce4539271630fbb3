"""Recipes for two ranks, each with one fault at ``BAD_STEP``; all with dropout and BatchNorm."""

from __future__ import annotations

import os
import signal
from typing import ClassVar

import torch
from torch import Tensor, nn

from forensics import Recipe, Training, recipe
from forensics.record.config import Config

BAD_STEP, BAD_SAMPLE, SAMPLES, STEPS = 5, 6, 4, 7
STOP = "FORENSICS_TEST_STOP"
"""``RANK:SIGNAL``: the rank that sends itself this signal in step 4, while it is replayed."""
CONFIG = Config(steps=STEPS, precision="fp32", max_norm=1.0, accumulation=2)
Batch = tuple[Tensor, Tensor, Tensor]


class Faulty(Recipe):
    """Two micro-batches of four samples a rank; the seventh of rank ``guilty`` is bad."""

    guilty: ClassVar[tuple[int, ...]] = (1,)

    def build(self, config: Config) -> Training:
        """A small network whose step depends on everything that ranks have of their own."""
        model = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 1)
        )
        return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), self.loss)

    def batch(self, step: int) -> list[Batch]:
        """(inputs, targets, which samples are bad), of this rank."""
        if step == 4 and (stop := os.environ.get(STOP)):
            rank, number = map(int, stop.split(":"))
            if rank == self.rank:
                os.kill(os.getpid(), signal.Signals(number))
        made = []
        for part in range(2):
            seed = 1000 * step + 10 * self.rank + part
            inputs = torch.rand(SAMPLES, 6, generator=torch.Generator().manual_seed(seed))
            bad = torch.zeros(SAMPLES, 1, dtype=torch.bool)
            if step == BAD_STEP and self.rank in self.guilty and part == BAD_SAMPLE // SAMPLES:
                bad[BAD_SAMPLE % SAMPLES] = True
            made.append((inputs, inputs.sum(1, keepdim=True), bad))
        return made

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Mean squared error; a bad sample makes something of it."""
        inputs, targets, bad = batch
        return self.spoilt(model(inputs), inputs, targets, bad)

    def spoilt(self, out: Tensor, inputs: Tensor, targets: Tensor, bad: Tensor) -> Tensor:
        """What each fault has of its own."""
        return ((out - targets) ** 2).mean()


@recipe("healthy", "nothing is wrong", defaults=CONFIG)
class Healthy(Faulty):
    """Bad samples are as good as any."""


@recipe("nan-batch", "a NaN in the data of rank 1", defaults=CONFIG)
class NanBatch(Faulty):
    """The data hold it."""

    def batch(self, step: int) -> list[Batch]:
        """One element of the bad sample is NaN."""
        made = super().batch(step)
        for inputs, _, bad in made:
            inputs[bad[:, 0], 2] = torch.nan
        return made


@recipe("logarithm", "a logarithm of a negative number on rank 1", defaults=CONFIG)
class Logarithm(Faulty):
    """In the loss."""

    def spoilt(self, out: Tensor, inputs: Tensor, targets: Tensor, bad: Tensor) -> Tensor:
        """The target is negative."""
        return ((out - torch.where(bad, -targets, targets).log()) ** 2).mean()


@recipe("division", "0 / 0 on rank 0", defaults=CONFIG)
class Division(Faulty):
    """Rank 0 is to blame this time."""

    guilty = (0,)

    def spoilt(self, out: Tensor, inputs: Tensor, targets: Tensor, bad: Tensor) -> Tensor:
        """A weight that is 0, and what it weighs, too."""
        weight = torch.where(bad, 0.0, 1.0)
        return ((out - targets) ** 2 * weight / weight).mean()


@recipe("gradient", "a bad gradient behind a finite loss, on rank 1", defaults=CONFIG)
class BadGradient(Faulty):
    """The square root of 0 has no derivative."""

    def spoilt(self, out: Tensor, inputs: Tensor, targets: Tensor, bad: Tensor) -> Tensor:
        """sqrt(0) is 0, and 0 times its infinite derivative is NaN."""
        root = torch.where(bad, out * 0.0, (out - targets) ** 2 + 1.0).sqrt()
        return root.mean()


@recipe("overflow", "an fp16 overflow on all ranks", defaults=CONFIG)
class Overflow(Faulty):
    """The data of a step are too large for fp16, everywhere."""

    guilty = (0, 1)

    def batch(self, step: int) -> list[Batch]:
        """Every sample of the bad step is large."""
        made = super().batch(step)
        if step != BAD_STEP:
            return made
        return [(inputs * 1e5, targets, bad) for inputs, targets, bad in made]


class Growing:
    """A moving average whose two shares sum to more than 1."""

    def __init__(self, model: nn.Module) -> None:
        self.held = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        """Takes in half of the new, and keeps nearly all of the old."""
        for name, parameter in model.named_parameters():
            self.held[name].mul_(0.99).add_(parameter.detach(), alpha=0.5)

    def state_dict(self) -> dict[str, Tensor]:
        """Its tensors."""
        return dict(self.held)

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Back to them."""
        for name, value in state.items():
            self.held[name].copy_(value)


@recipe("average", "a moving average in wrong shares: nothing is non-finite", defaults=CONFIG)
class WrongAverage(Faulty):
    """What single steps applied is wrong on every rank alike."""

    def build(self, config: Config) -> Training:
        """With the average."""
        training = super().build(config)
        training.ema = Growing(training.model)
        return training


class WearsOut(nn.Module):
    """Counts its steps in a buffer, and takes a root of how many are left."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """Two micro-batches a step; the root is NaN from ``BAD_STEP`` on."""
        self.seen += 1
        return hidden + (2.0 * BAD_STEP + 0.5 - self.seen).sqrt() * 1e-3


@recipe("wears-out", "a fault of the model, which all ranks have", defaults=CONFIG)
class WornOut(Faulty):
    """Whatever the data."""

    def build(self, config: Config) -> Training:
        """With the module that wears out."""
        training = super().build(config)
        training.model.append(WearsOut())  # type: ignore[operator]
        return training


@recipe("wrapped", "builds a model that is replicated already", defaults=CONFIG)
class Wrapped(Faulty):
    """Which no replay can take."""

    def build(self, config: Config) -> Training:
        """In DistributedDataParallel."""
        training = super().build(config)
        training.model = nn.parallel.DistributedDataParallel(training.model)
        return training


@recipe("raises", "rank 1 cannot read its data", defaults=CONFIG)
class Raises(Faulty):
    """An exception in the loss."""

    def spoilt(self, out: Tensor, inputs: Tensor, targets: Tensor, bad: Tensor) -> Tensor:
        """A check of the user's own."""
        if bool(bad.any()):
            raise ValueError("a target of no class")
        return ((out - targets) ** 2).mean()
