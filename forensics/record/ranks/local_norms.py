"""What one rank's own gradients came to in one step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LocalNorms:
    """The gradients of one rank in one step.

    Attributes:
        total: global L2 norm, still multiplied by the loss scale; not divided by the world size.
        nonfinite: how many elements are NaN or Inf.
        bad: the parameters with any, in the order their gradients were reduced.
    """

    total: float
    nonfinite: int
    bad: tuple[Tensor, ...] = ()
