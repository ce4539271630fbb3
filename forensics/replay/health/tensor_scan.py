"""Is a tensor finite? One pass over its elements in bounded memory; a closer look where not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PIECE = 1 << 24
"""Elements looked at in one go where none is copied."""
_COPIED = 1 << 22
"""Elements looked at in one go where they are copied or converted (16 MiB in float32)."""
_COUNTED = 1 << 18
"""Elements that are counted in one go: what is made of them stays in the processor's cache."""
_HALF_INFINITY = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
"""The bits of +Inf; greater ones, the sign aside, are NaN."""
_NO_NONFINITE = frozenset(
    dtype for name in ("float4_e2m1fn_x2",) if (dtype := getattr(torch, name, None)) is not None
)


@dataclass(frozen=True)
class Scan:
    """What a pass over a tensor found.

    Attributes:
        smallest: least element; NaN where one is.
        largest: greatest element; NaN where one is.
        nan: elements that are NaN.
        inf: elements that are +Inf or -Inf.
        numel: elements in all.
        first: index of the first element that is not finite; () where all are.
    """

    smallest: float
    largest: float
    nan: int
    inf: int
    numel: int
    first: tuple[int, ...]

    @property
    def finite(self) -> bool:
        """True when every element is finite."""
        return self.nan == 0 and self.inf == 0

    @property
    def absmax(self) -> float:
        """Largest magnitude."""
        return max(abs(self.smallest), abs(self.largest))


@torch.no_grad()
def scan_tensor(tensor: Tensor) -> Scan | None:
    """Look at every element of a floating or complex tensor; None where none could be non-finite.

    The least and the greatest element are NaN or infinite whenever an element is, and cost no more
    than a sum (17 to 19 GB/s on one core; an infinity norm 0.5 to 2). Where they are not finite a
    second pass counts.
    """
    floating = tensor.is_floating_point() or tensor.is_complex()
    if not floating or tensor.dtype in _NO_NONFINITE or tensor.is_meta or not tensor.numel():
        return None
    smallest, largest = math.inf, -math.inf
    for piece in _pieces(_once(tensor)):
        low, high = (float(bound) for bound in torch.aminmax(_bounding(piece)))
        if math.isnan(low):
            smallest = largest = math.nan
            break
        smallest, largest = min(smallest, low), max(largest, high)
    if math.isfinite(smallest) and math.isfinite(largest):
        return Scan(smallest, largest, 0, 0, tensor.numel(), ())
    return _counted(tensor, smallest, largest)


@torch.no_grad()
def looks_like_a_mask(tensor: Tensor) -> bool:
    """Are all its infinities -Inf, and all its other elements 0: an additive attention mask?"""
    if tensor.dim() < 2:
        return False
    blocked = allowed = 0
    for piece in _pieces(_once(tensor)):
        for part in piece.split(_COUNTED):
            values = _real(part)
            here = int((values == -math.inf).sum())
            free = int((values == 0).sum())
            if here + free < values.numel():
                return False
            blocked, allowed = blocked + here, allowed + free
    return blocked > 0 and allowed > 0


def _counted(tensor: Tensor, smallest: float, largest: float) -> Scan:
    """How many elements are NaN or infinite, and which is the first of them."""
    nan = inf = start = 0
    first: int | None = None
    for piece in _in_order(tensor):
        for part in piece.split(_COUNTED):
            missing, infinite = _marks(part)
            nan += int(np.count_nonzero(missing))
            inf += int(np.count_nonzero(infinite))
            if first is None and (missing.any() or infinite.any()):
                first = start + int((missing | infinite).argmax())
            start += len(part)
    place = _unravelled(first or 0, tuple(tensor.shape))
    return Scan(smallest, largest, nan, inf, tensor.numel(), place)


def _marks(part: Tensor) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which elements are NaN, and which are infinite.

    By numpy, which counts 5 to 20 times as fast as torch: a run that went bad is often NaN
    throughout. Half precision by its bits, since numpy has no bfloat16 and is slow with float16.
    """
    largest = _HALF_INFINITY.get(part.dtype)
    if largest is not None:
        bits = part.view(torch.int16).numpy() & 0x7FFF
        return bits > largest, bits == largest
    if part.dtype.itemsize == 1:
        codes = part.view(torch.uint8).numpy()
        missing, infinite = np.zeros(len(codes), np.bool_), np.zeros(len(codes), np.bool_)
        for marks, bad in zip((missing, infinite), _eight_bit_codes(part.dtype), strict=True):
            for code in bad:  # six at most; an index into a table of 256 is 20 times slower
                marks |= codes == code
        return missing, infinite
    if part.dtype is torch.complex32:
        part = part.to(torch.complex64)
    values = part.numpy()
    missing = np.isnan(values)
    if missing.all():
        return missing, np.zeros_like(missing)
    return missing, np.isinf(values) & ~missing


@lru_cache
def _eight_bit_codes(dtype: torch.dtype) -> tuple[list[int], list[int]]:
    """The codes of an eight-bit format that are NaN, and those that are infinite."""
    values = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    return values.isnan().nonzero().flatten().tolist(), values.isinf().nonzero().flatten().tolist()


def _unravelled(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    place = []
    for size in reversed(shape):
        index, rest = divmod(index, size)
        place.append(rest)
    return tuple(reversed(place))


def _once(tensor: Tensor) -> Tensor:
    """The tensor without the dimensions along which ``expand`` repeats one element."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if not stride and size > 1:
            tensor = tensor.narrow(dim, 0, 1)
    return tensor


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """All elements in whatever order they lie in memory, flat, a piece at a time, not copied."""
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    tensor = tensor.permute(order)
    if tensor.is_contiguous():
        yield from tensor.view(-1).split(PIECE)
    else:
        yield from _in_order(tensor)


def _in_order(tensor: Tensor) -> Iterator[Tensor]:
    """All elements in the order of their indices, flat, a piece at a time, copied where need be."""
    if tensor.numel() <= _COPIED or not tensor.dim():
        yield tensor.reshape(-1)
        return
    rows = _COPIED // max(tensor.numel() // tensor.shape[0], 1)
    if rows:
        for part in tensor.split(rows):
            yield part.reshape(-1)
    else:
        for row in tensor:
            yield from _in_order(row)


def _bounding(piece: Tensor) -> Tensor:
    """Elements with the same bounds, in a form that ``aminmax`` takes.

    Of eight bits it takes none, and converting them costs 100 times the look. Read as integers
    with and without a sign, the greatest and the least codes are the elements of the greatest and
    the least magnitude of either sign, NaN and Inf among them in every such format.
    """
    if piece.dtype.itemsize > 1:
        return _real(piece)
    unsigned, signed = piece.view(torch.uint8), piece.view(torch.int8)
    bounds = [bound.view(torch.uint8) for view in (unsigned, signed) for bound in view.aminmax()]
    return torch.stack(bounds).view(piece.dtype).float()


def _real(piece: Tensor) -> Tensor:
    """Complex numbers as pairs, eight bits as float32."""
    if piece.is_complex():
        return torch.view_as_real(piece)
    return piece.float() if piece.dtype.itemsize == 1 else piece
