"""A recipe that gives each rank its share, with dropout, BatchNorm and one bad sample."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from forensics import Recipe, Training, recipe
from forensics.record.config import Config

BAD_STEP, BAD_RANK, BAD_SAMPLE = 12, 1, 6
"""The seventh sample of rank 1's two micro-batches of four."""
SAMPLES = 4


@recipe(
    "shares",
    "two micro-batches a rank, one negative target",
    defaults=Config(steps=16, precision="fp32", max_norm=1.0, accumulation=2),
)
class Shares(Recipe):
    """The logarithm of a target that is negative once, on one rank."""

    def build(self, config: Config) -> Training:
        """A small network whose step depends on everything that ranks have of their own."""
        model = nn.Sequential(
            nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Tanh(), nn.Dropout(0.2), nn.Linear(12, 1)
        )
        return Training(model, torch.optim.AdamW(model.parameters(), lr=1e-2), self.loss)

    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Mean squared error in the logarithm."""
        inputs, targets = batch
        return ((model(inputs) - targets.log()) ** 2).mean()

    def batch(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """This rank's two micro-batches."""
        made = []
        for part in range(2):
            seed = 1000 * step + 10 * self.rank + part
            inputs = torch.rand(SAMPLES, 6, generator=torch.Generator().manual_seed(seed))
            targets = inputs.sum(1, keepdim=True)
            if (step, self.rank, part) == (BAD_STEP, BAD_RANK, BAD_SAMPLE // SAMPLES):
                targets[BAD_SAMPLE % SAMPLES] = -1.0
            made.append((inputs, targets))
        return made


@recipe("alike", "every rank trains on the same data", defaults=Config(steps=3, precision="fp32"))
class Alike(Recipe):
    """Nobody asks for the rank."""

    def build(self, config: Config) -> Training:
        """A line."""
        model = nn.Linear(3, 1)
        return Training(model, torch.optim.SGD(model.parameters(), lr=0.1), self.loss)

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean square."""
        return (model(batch) ** 2).mean()

    def batch(self, step: int) -> list[Tensor]:
        """The same for all."""
        return [torch.rand(4, 3, generator=torch.Generator().manual_seed(step))]
