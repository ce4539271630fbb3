"""What has been seen of a step of somebody's loop so far."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from torch import Tensor

from forensics.record.clipping import GradNorms
from forensics.record.loop_entries import Entry, Stamps


@dataclass
class SeenStep:
    """One step, from the end of the one before to its own.

    Attributes:
        scales: in force; of the step before it (``stale``) where nothing has been read since.
        turns: ids of the optimizers whose gradients were measured.
        loss, loss_value: as given to ``gradients``, and as read there.
        overflowed: ids of the optimizers whose gradients the scaler found to be non-finite.
        scaled: of each optimizer measured, stamps of its gradients and whether they were scaled.
    """

    lrs: tuple[float, ...]
    scales: list[float]
    stale: bool = False
    norms: GradNorms | None = None
    measured: int = 0
    turns: set[int] = field(default_factory=set)
    loss: Tensor | float | None = None
    loss_value: float | None = None
    overflowed: set[int] = field(default_factory=set)
    scaled: dict[int, tuple[Stamps, bool]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def told(self, loss: Tensor | float, value: float, turn: set[int]) -> bool:
        """Take the loss that a turn was given; True where other optimizers' turn had another one.

        Of several losses the first counts, unless a later one is not finite: who steps now and then
        comes later, and a row is compared with those before it.

        Args:
            loss: as given.
            value: as read.
            turn: ids of the optimizers whose gradients are measured now.
        """
        earlier = self.loss_value
        other = earlier is not None and earlier != value and self.turns.isdisjoint(turn)
        if not other or not math.isfinite(value):
            self.loss, self.loss_value = loss, value
        return other
