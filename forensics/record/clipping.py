"""Gradient norms, the non-finite scan and the clip: one foreach pass and one blocking read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from forensics.record.readback import read_scalars

CLIP_EPSILON = 1e-6
"""Added to the norm before dividing, as ``torch.nn.utils.clip_grad_norm_`` does."""


@dataclass(frozen=True)
class GradNorms:
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
    """

    names: tuple[str, ...]
    grads: tuple[Tensor, ...]
    l2: tuple[float, ...]
    nonfinite: Mapping[str, int]
    total: float
    overflowed: bool = False
    alongside: tuple[float, ...] = ()


class ClipResult(NamedTuple):
    """The global L2 norm before and after clipping; equal where nothing was clipped."""

    pre: float
    post: float


@torch.no_grad()
def grad_norms(
    named_parameters: Iterable[tuple[str, Tensor]], alongside: Sequence[Tensor] = ()
) -> GradNorms:
    """Measure the gradients of ``named_parameters``; those without one are left out.

    One foreach pass takes the norms and one blocking read fetches them. A norm is non-finite
    whenever an element is, so elements are counted (a second read) only where a norm is bad.

    Args:
        named_parameters: as ``model.named_parameters()`` gives them.
        alongside: one-element tensors to fetch in the same read.
    """
    held = [(name, _dense_grad(p)) for name, p in named_parameters if p.grad is not None]
    names = tuple(name for name, _ in held)
    grads = tuple(grad for _, grad in held)
    values = read_scalars([*l2_norms(grads), *alongside])
    l2, extra = values[: len(grads)], tuple(values[len(grads) :])
    suspects = [i for i, norm in enumerate(l2) if not math.isfinite(norm)]
    nonfinite: dict[str, int] = {}
    overflowed = False
    for i, (count, true_norm) in zip(suspects, _closer_look(grads, suspects), strict=True):
        if count:
            nonfinite[names[i]] = count
        else:
            l2[i], overflowed = true_norm, True
    return GradNorms(names, grads, tuple(l2), nonfinite, _combine(l2), overflowed, extra)


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


def l2_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The L2 norm of each tensor, on its device, shape (); float32, of float64 tensors float64."""
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    norms: dict[int, Tensor] = {}
    for (_, dtype), members in groups.items():
        out = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else None
        found = torch._foreach_norm([tensors[i] for i in members], 2, out)
        norms.update(zip(members, found, strict=True))
    return [norms[i] for i in range(len(tensors))]


def count_nonfinite(tensor: Tensor) -> Tensor:
    """How many elements are NaN or Inf; shape (), int64."""
    return tensor.isfinite().logical_not_().sum()


def _closer_look(grads: Sequence[Tensor], suspects: Sequence[int]) -> list[tuple[int, float]]:
    """Per suspect the count of non-finite elements and its norm in float64, in one read."""
    pairs = [(count_nonfinite(grads[i]), _float64_norm(grads[i])) for i in suspects]
    values = read_scalars([scalar for pair in pairs for scalar in pair])
    return [(int(values[i]), values[i + 1]) for i in range(0, len(values), 2)]


def _float64_norm(tensor: Tensor) -> Tensor:
    """The L2 norm of finite elements, in float64 and with the largest divided out first."""
    if tensor.device.type == "mps":
        tensor = tensor.cpu()  # Metal has no float64
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)
    largest = wide.abs().amax()
    norm: Tensor = torch.linalg.vector_norm(wide / largest) * largest
    return norm


def _combine(norms: Sequence[float]) -> float:
    """The norm of norms, without overflow; NaN wins over Inf, as in torch."""
    return math.nan if any(math.isnan(norm) for norm in norms) else math.hypot(*norms)


def _dense_grad(parameter: Tensor) -> Tensor:
    """A parameter's gradient; of a sparse one its values, each index once."""
    grad = parameter.grad
    assert grad is not None
    if grad.layout is torch.strided:
        return grad
    parameter.grad = grad.coalesce()
    return parameter.grad._values()


def _as_norms(grads: GradNorms | Iterable[Tensor]) -> GradNorms:
    if isinstance(grads, GradNorms):
        return grads
    parameters = [grads] if isinstance(grads, Tensor) else grads
    return grad_norms((str(i), parameter) for i, parameter in enumerate(parameters))
