"""A moving average beside the weights that it follows, as they are at one time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from forensics.record.recipe import Training
from forensics.replay.tracing.tensor_stats import named_tensors

_PARAMETERS = 16
_SAMPLED = 4096
"""Parameters, and elements of each, that are looked at: one number is asked of all of them."""


@dataclass(frozen=True, kw_only=True)
class AverageLook:
    """A sample of an average and of the weights that it follows, at one time.

    Attributes:
        average, weights: float64, shape (elements,), all parameters after one another.
        eps: spacing of the average's own dtype at 1.
    """

    average: Tensor
    weights: Tensor
    eps: float

    @classmethod
    @torch.no_grad()
    def of(cls, training: Training) -> AverageLook | None:
        """Look now; None where there is no average, or none of this model's parameters in it."""
        pairs = _pairs(training)
        if not pairs:
            return None
        average = torch.cat([_sample(held) for held, _ in pairs])
        weights = torch.cat([_sample(weight) for _, weight in pairs])
        return cls(average=average, weights=weights, eps=torch.finfo(pairs[0][0].dtype).eps)


def _pairs(training: Training) -> Sequence[tuple[Tensor, Tensor]]:
    """Tensors of the average beside the parameters that they follow."""
    ema: Any = training.ema
    if ema is None:
        return []
    tree = ema.state_dict() if hasattr(ema, "state_dict") else getattr(ema, "shadow", None)
    held = dict(named_tensors("", tree))
    named = [(name, p) for name, p in training.model.named_parameters() if p.is_floating_point()]
    prefix = _prefix([name for name, _ in named], held)
    pairs = [(held[prefix + name], p) for name, p in named if prefix + name in held]
    return [(a, p) for a, p in pairs if a.shape == p.shape][:_PARAMETERS]


def _prefix(names: Sequence[str], held: Mapping[str, Tensor]) -> str:
    """What stands before a parameter's name in the average; that which most of them share."""
    found = {k.removesuffix(n) for n in names[:1] for k in held if k.endswith(f".{n}")}
    return max(sorted(found), key=lambda p: sum(p + n in held for n in names), default="")


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _SAMPLED)].to("cpu", torch.float64, copy=True)
