"""Gradient norms, the non-finite scan and the clip: one foreach pass and one blocking read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from forensics.record.loop_entries import gradients_of
from forensics.record.readback import Read
from forensics.record.tensor_norms import combine, measure

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as ``torch.nn.utils.clip_grad_norm_`` does."""


class GradNorms(NamedTuple):
    """The gradients of one step, measured once: for the skip decision, the clip and the record.

    It holds the gradients themselves: drop it when the step ends, or their memory stays taken.

    Attributes:
        names: of the parameters that have a gradient.
        grads: their gradients (of a sparse one the values), in the same order.
        l2: L2 norm of each.
        nonfinite: how many elements are NaN or Inf, for the parameters where any is.
        total: global L2 norm, combined in float64; NaN or Inf where an element is.
        overflowed: a norm was Inf in the gradients' own precision though every element is finite;
            ``l2`` and ``total`` hold the true ones.
        alongside: whatever else was read from the device in the same go.
        own: where gradients are sharded, the L2 norm of the part of each that this rank holds.
    """

    names: tuple[str, ...]
    grads: tuple[Tensor, ...]
    l2: tuple[float, ...]
    nonfinite: Mapping[str, int]
    total: float
    overflowed: bool = False
    alongside: tuple[float, ...] = ()
    own: tuple[float, ...] | None = None

    @property
    def whole_over_own(self) -> float:
        """``total`` over the norm of what this rank holds: 1 where that is all of it."""
        if self.own is None or not self.total:
            return 1.0
        held = combine(self.own)
        return self.total / held if 0 < held < math.inf else math.nan


class ClipResult(NamedTuple):
    """The global L2 norm before and after clipping; equal where nothing was clipped."""

    pre: float
    post: float


def grad_norms(
    named_parameters: Iterable[tuple[str, Tensor]],
    alongside: Sequence[Tensor] = (),
    read: Read | None = None,
) -> GradNorms:
    """Measure the gradients of ``named_parameters``; those without one are left out.

    Args:
        named_parameters: as ``model.named_parameters()`` gives them.
        alongside: one-element tensors to fetch in the same blocking read.
        read: how they are read; at once by default.
    """
    held = [(name, p, grad) for name, p in named_parameters if (grad := p.grad) is not None]
    names = tuple([name for name, _, _ in held])
    grads = tuple([g if g.layout is torch.strided else _values(p) for _, p, g in held])
    found = measure(grads, alongside, read)
    nonfinite = {name: count for name, count in zip(names, found.nonfinite, strict=True) if count}
    return GradNorms(
        names=names,
        grads=grads,
        l2=found.l2,
        nonfinite=nonfinite,
        total=combine(found.l2),
        overflowed=any(found.overflowed),
        alongside=found.alongside,
    )


def clip_global_l2_norm(grads: GradNorms | Iterable[Tensor], max_norm: float | None) -> ClipResult:
    """Scale all gradients by one factor so that their global L2 norm is at most ``max_norm``.

    The factor is ``max_norm / (norm + 1e-6)``, where that is below 1. Unlike torch's function this
    one leaves the gradients alone where the norm is non-finite: multiplying would spread one bad
    element over every parameter.

    Args:
        grads: what ``grad_norms`` measured, or parameters still to be measured.
        max_norm: the threshold; None measures without clipping.

    Returns:
        The norm before and after. The latter is derived from the factor, not measured again.
    """
    norms = _as_norms(grads)
    if max_norm is None or not math.isfinite(norms.total):
        return ClipResult(norms.total, norms.total)
    factor = max_norm / (norms.total + CLIP_EPSILON)
    if factor >= 1.0:
        return ClipResult(norms.total, norms.total)
    with torch.no_grad():
        torch._foreach_mul_(list(norms.grads), factor)
    return ClipResult(norms.total, norms.total * factor)


def has_non_finite_grad(grads: GradNorms | Iterable[Tensor]) -> bool:
    """Does any gradient hold a NaN or an Inf? A norm that merely overflows does not count.

    Args:
        grads: what ``grad_norms`` measured, or parameters still to be measured.
    """
    return bool(_as_norms(grads).nonfinite)


def first_non_finite_grad(
    grads: GradNorms | Iterable[tuple[str, Tensor]], arrival_order: Sequence[str] = ()
) -> str | None:
    """The parameter whose gradient went bad first, that is nearest the loss; None where none did.

    Ask before clipping: the clip of a non-finite norm makes every gradient bad.

    Args:
        grads: what ``grad_norms`` measured, or named parameters still to be measured.
        arrival_order: names in the order their gradients arrive in backward. Parameters it does
            not know come last; without it the last in network order is taken as nearest the loss.
    """
    norms = grads if isinstance(grads, GradNorms) else grad_norms(grads)
    rank = {name: i for i, name in enumerate(arrival_order)}
    backwards = [name for name in reversed(norms.names) if name in norms.nonfinite]
    return min(backwards, key=lambda name: rank.get(name, len(rank)), default=None)


def _values(parameter: Tensor) -> Tensor:
    """Of a parameter's sparse gradient: its values, each index once."""
    assert parameter.grad is not None
    parameter.grad = parameter.grad.coalesce()
    return parameter.grad._values()


def _as_norms(grads: GradNorms | Iterable[Tensor]) -> GradNorms:
    if isinstance(grads, GradNorms):
        return grads
    parameters = [grads] if isinstance(grads, Tensor) else grads
    return grad_norms((str(i), parameter) for i, parameter in enumerate(parameters))


def torchs_norm(optimizers: Optimizer | Iterable[Optimizer]) -> float:
    """The global norm of what optimizers hold, as torch takes it, where measuring failed."""
    chosen = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
    grads = [grad for optimizer in chosen for grad in gradients_of(optimizer)]
    return float(torch.nn.utils.get_total_norm(grads))
