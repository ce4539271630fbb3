"""What an optimizer was handed when its ``step`` was called, kept without reading anything."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from forensics.record.local_part import is_distributed
from forensics.record.tensor_norms import combine, l2_norms

Stamps = list[tuple[weakref.ref[Tensor], float]]
"""Of each gradient the tensor itself and how often it has been written: nothing is read."""


@dataclass
class Entry:
    """One call of an optimizer's ``step``: what it was handed, still on the device.

    Attributes:
        optimizer: whose call it was.
        gradients: stamps of all its gradients.
        grad_l2: the norm of each, shape (); empty where they are not wanted, or are known.
        found_inf, grad_scale: what a scaler handed a fused optimizer.
        closure: the gradients were computed within the call.
        overflowed: it was called and did nothing.
        l2: the norms as read, unscaled, or as they are known.
        post: the global norm at its entry.
    """

    optimizer: Optimizer
    gradients: Stamps
    grad_l2: list[Tensor]
    found_inf: Tensor | None
    grad_scale: Tensor | None
    closure: bool = False
    overflowed: bool = False
    l2: list[float] = field(default_factory=list)
    post: float = 0.0


def entry_of(
    optimizer: Optimizer,
    grads: Sequence[Tensor],
    known: list[float] | None = None,
    *,
    measure: bool,
    closure: bool,
) -> Entry:
    """What an optimizer is being handed: its gradients, and with ``measure`` their norms.

    Args:
        optimizer: whose call it is.
        grads: its gradients.
        known: the norm of each, where they need not be measured.
        measure: are the norms wanted?
        closure: were the gradients computed within the call?
    """
    wanted = measure and known is None
    # Under a fused optimizer the scaler leaves the unscaling and the skip to the kernel.
    return Entry(
        optimizer,
        stamps(grads),
        l2_norms([_values(grad) if grad.is_sparse else grad for grad in grads]) if wanted else [],
        getattr(optimizer, "found_inf", None),
        getattr(optimizer, "grad_scale", None),
        closure,
        l2=known or [],
    )


def scalars_of(entries: Sequence[Entry]) -> list[Tensor]:
    """What entries hold on the device, in the order that ``take_scalars`` wants it."""
    scalars: list[Tensor] = []
    for entry in entries:
        scalars += [t for t in (entry.found_inf, entry.grad_scale) if t is not None]
        scalars += entry.grad_l2
    return scalars


def take_scalars(entries: Sequence[Entry], values: Iterator[float]) -> None:
    """Set ``overflowed``, ``l2`` and ``post`` of each entry from what was read."""
    for entry in entries:
        entry.overflowed = entry.found_inf is not None and next(values) > 0
        unscale = 1.0 if entry.grad_scale is None else next(values)
        if entry.grad_l2:
            entry.l2 = [next(values) / unscale for _ in entry.grad_l2]
        entry.post = combine(entry.l2)


def post_clip_norm(entries: Sequence[Entry], factor: float = 1.0) -> float | None:
    """Over all optimizers, of each its last call: two calls are no larger gradient.

    Args:
        entries: as read.
        factor: the norm of all over that of what this rank holds, before the clip; NaN where it
            holds nothing, which tells nothing.
    """
    own = combine(list({id(entry.optimizer): entry.post for entry in entries}.values()))
    return None if math.isnan(factor) and not math.isnan(own) else own * factor


def gradients_of(optimizer: Optimizer) -> list[Tensor]:
    """The gradients that its parameters have."""
    return [
        p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None
    ]


def stamps(gradients: Sequence[Tensor]) -> Stamps:
    """Which tensors these are, and how often each has been written.

    What is written to a DTensor is not counted, neither in it nor in its local part: its count is
    NaN, which is like no other, so that it never passes for unwritten.
    """
    return [
        (weakref.ref(grad), math.nan if is_distributed(grad) else grad._version)
        for grad in gradients
    ]


def unwritten(before: Stamps, gradients: Sequence[Tensor], writes: int = 0) -> bool:
    """Are these the same tensors, none written more than ``writes`` times since?"""
    return len(before) == len(gradients) and all(
        old() is grad and grad._version - version <= writes
        for (old, version), grad in zip(before, gradients, strict=True)
    )


def applied_again(entries: Sequence[Entry]) -> bool:
    """Did an optimizer that stepped enter again with the same gradients, unwritten in between?"""
    earlier: dict[int, Stamps] = {}
    for entry in entries:
        if entry.overflowed or not entry.gradients:
            continue
        before = earlier.get(id(entry.optimizer))
        if before is not None and _same(before, entry.gradients):
            return True
        earlier[id(entry.optimizer)] = entry.gradients
    return False


def has_closure(args: Any, kwargs: Any) -> bool:
    """Was ``step`` handed a closure, that is, are the gradients computed within it?

    Args:
        args: of the call, the optimizer itself first.
        kwargs: of the call.
    """
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce()._values()


def _same(before: Stamps, after: Stamps) -> bool:
    if len(before) != len(after):
        return False
    return all(
        old_version == version and (grad := new()) is not None and old() is grad
        for (old, old_version), (new, version) in zip(before, after, strict=True)
    )
