"""L2 norms and non-finite counts of many tensors: one foreach pass and one blocking read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from forensics.record.local_part import local_part
from forensics.record.readback import Read, read_scalars

_PIECE = 1 << 22
"""Elements that are looked at in float64 at a time (32 MiB)."""


class TensorNorms(NamedTuple):
    """What ``measure`` found, one entry a tensor.

    Attributes:
        l2: the norms; NaN or Inf where an element is, and only there.
        nonfinite: how many elements are NaN or Inf.
        overflowed: the norm was Inf in the tensor's own precision though every element is finite;
            ``l2`` holds the true one.
        alongside: whatever else was read in the same go.
    """

    l2: tuple[float, ...]
    nonfinite: tuple[int, ...]
    overflowed: tuple[bool, ...]
    alongside: tuple[float, ...] = ()


def measure(
    tensors: Sequence[Tensor], alongside: Sequence[Tensor] = (), read: Read | None = None
) -> TensorNorms:
    """Norms and non-finite counts, read from the device at once.

    A norm is non-finite whenever an element is, and costs a fraction of an ``isfinite`` scan. So
    elements are counted (in a second read) only where the norm is bad; where none of them is, the
    norm itself has overflowed and is taken again in float64.

    Of a DTensor all this is about the part that this rank holds.

    Args:
        tensors: of any devices and types.
        alongside: one-element tensors to be read in the same go.
        read: how; at once by default.
    """
    values = tuple((read or read_scalars)([*l2_norms(tensors), *alongside]))
    size = len(tensors)
    found = TensorNorms(values[:size], (0,) * size, (False,) * size, values[size:])
    # As nearly always all are finite: this is what each step costs, and looks no further.
    return found if math.isfinite(sum(found.l2)) else _looked_into(tensors, found)


@torch.no_grad()
def _looked_into(tensors: Sequence[Tensor], found: TensorNorms) -> TensorNorms:
    l2, counts, overflowed = list(found.l2), list(found.nonfinite), list(found.overflowed)
    suspects = [i for i, norm in enumerate(l2) if not math.isfinite(norm)]
    closer = read_scalars([scalar for i in suspects for scalar in closer_look(tensors[i])])
    for i, count, true_norm in zip(suspects, closer[::2], closer[1::2], strict=True):
        counts[i] = int(count)
        if not count:
            l2[i], overflowed[i] = true_norm, True
    return TensorNorms(tuple(l2), tuple(counts), tuple(overflowed), found.alongside)


def l2_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The L2 norm of each tensor, on its device, shape ().

    They are float32, those of float64 tensors float64; of a DTensor that of this rank's part.
    """
    if wide_and_alike(tensors):
        return [*torch._foreach_norm([*tensors], 2.0)]
    with torch.no_grad():
        return _norms([local_part(tensor) for tensor in tensors], 2.0)


@torch.no_grad()
def largest_magnitudes(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The largest absolute value of each tensor, on its device, shape (); NaN where one is.

    The tensors have elements; of a DTensor the part that this rank holds may have none, and has 0.
    On a CPU ``aminmax`` takes a tenth of the time of a norm of order infinity; elsewhere one launch
    for all of them is better than three for each.
    """
    tensors = [t if (t := local_part(tensor)).numel() else t.new_zeros(1) for tensor in tensors]
    quick = [_ordered(tensor) for tensor in tensors]
    others = iter(_norms([t for t, fast in zip(tensors, quick, strict=True) if not fast], math.inf))
    return [
        _widest(*torch.aminmax(tensor)) if fast else next(others)
        for tensor, fast in zip(tensors, quick, strict=True)
    ]


_ORDERED = frozenset((torch.float64, torch.float32, torch.float16, torch.bfloat16))


def _ordered(tensor: Tensor) -> bool:
    """Does ``aminmax`` take it? Not sparse, complex or distributed ones."""
    plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided
    return plain and tensor.device.type == "cpu" and tensor.dtype in _ORDERED


def _widest(least: Tensor, greatest: Tensor) -> Tensor:
    return torch.maximum(least.neg(), greatest)


def wide_and_alike(tensors: Sequence[Tensor]) -> bool:
    """Are they plain tensors on the CPU, all float32 or all float64, and no part of a graph?

    Asked of hundreds of tensors a step, so it is a matter of microseconds.
    """
    kinds = {(tensor.dtype, tensor.is_cpu, tensor.requires_grad) for tensor in tensors}
    return len(kinds) == 1 and kinds <= _WIDE and {*map(type, tensors)} <= _PLAIN


_PLAIN = frozenset((Tensor, nn.Parameter))
_WIDE = frozenset((dtype, True, False) for dtype in (torch.float32, torch.float64))


def _norms(tensors: Sequence[Tensor], order: float) -> list[Tensor]:
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, tensor in enumerate(tensors):
        groups.setdefault((tensor.device, tensor.dtype), []).append(i)
    norms: dict[int, Tensor] = {}
    for (_, dtype), members in groups.items():
        # A norm in half precision would overflow at 65,504; of eight bits torch takes none.
        narrow = dtype.is_floating_point and dtype.itemsize < 4
        held = [tensors[i].float() if dtype.itemsize == 1 else tensors[i] for i in members]
        found = torch._foreach_norm(held, order, torch.float32 if narrow else None)
        norms.update(zip(members, found, strict=True))
    return [norms[i] for i in range(len(tensors))]


def combine(norms: Sequence[float]) -> float:
    """The L2 norm of a whole from the norms of its parts, in float64; NaN wins over Inf."""
    return math.nan if any(map(math.isnan, norms)) else math.hypot(*norms)


def closer_look(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """How many elements are not finite, and the L2 norm in float64, safe from overflow.

    Piece by piece: the step that goes bad must not be the one that runs out of memory.
    """
    tensor = local_part(tensor)
    if tensor.device.type == "mps":
        tensor = tensor.cpu()  # Metal has no float64
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    pieces = tensor.detach().reshape(-1).split(_PIECE)
    nonfinite = torch.stack([piece.isfinite().logical_not_().sum() for piece in pieces]).sum()
    largest = torch.stack([piece.abs().amax() for piece in pieces]).amax().to(torch.float64)
    norms = torch.stack([torch.linalg.vector_norm(piece.to(wide) / largest) for piece in pieces])
    return nonfinite, torch.linalg.vector_norm(norms) * largest
