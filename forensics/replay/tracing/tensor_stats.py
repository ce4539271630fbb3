"""What a tensor holds, in a few numbers: enough to see why an operator failed on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TensorStats:
    """Statistics of one tensor.

    Attributes:
        dtype: such as ``float16``.
        shape: its size per dimension.
        absmax: largest magnitude among the finite elements; 0 where there is none.
        absmin: smallest magnitude among the finite elements; 0 where there is none.
        nan: how many elements are NaN.
        inf: how many are +Inf or -Inf.
        first_bad: index of the first non-finite element, or None.
        low: smallest finite element; 0 where there is none.
        high: largest finite element; 0 where there is none.
    """

    dtype: str
    shape: tuple[int, ...]
    absmax: float
    absmin: float
    nan: int
    inf: int
    first_bad: tuple[int, ...] | None = None
    low: float = 0.0
    high: float = 0.0

    @property
    def numel(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def finite(self) -> bool:
        """True when every element is finite."""
        return self.nan == 0 and self.inf == 0


def stats_of(tensor: Tensor) -> TensorStats:
    """The statistics of one floating tensor."""
    values = tensor.detach()
    finite = torch.isfinite(values)
    nan = int(torch.isnan(values).sum())
    bad = values.numel() - int(finite.sum())
    kept = values[finite]
    sizes = kept.abs()
    first = None
    if bad:
        flat = int((~finite).flatten().to(torch.uint8).argmax())
        first = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), values.shape))
    return TensorStats(
        dtype=str(values.dtype).removeprefix("torch."),
        shape=tuple(values.shape),
        absmax=float(sizes.max()) if kept.numel() else 0.0,
        absmin=float(sizes.min()) if kept.numel() else 0.0,
        nan=nan,
        inf=bad - nan,
        first_bad=first,
        low=float(kept.min()) if kept.numel() else 0.0,
        high=float(kept.max()) if kept.numel() else 0.0,
    )


def is_float(value: Any) -> bool:
    """Is it a dense floating tensor with elements: the only kind that can go non-finite here?"""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout is torch.strided
        and value.device.type != "meta"
        and value.numel() > 0
    )


def named_tensors(name: str, tree: Any) -> Iterator[tuple[str, Tensor]]:
    """The floating tensors in nested lists, tuples and dicts, by dotted name."""
    if is_float(tree):
        yield name, tree.detach()
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from named_tensors(f"{name}.{key}", value)
    elif isinstance(tree, list | tuple):
        for i, value in enumerate(tree):
            yield from named_tensors(f"{name}.{i}", value)


def float_tensors(tree: Any) -> Iterator[Tensor]:
    """The floating tensors in nested lists, tuples and dicts, in order; of sparse ones values."""
    if is_float(tree):
        yield tree
    elif _is_sparse_float(tree):
        yield tree.detach()._values()
    elif isinstance(tree, dict):
        yield from _each(tree.values())
    elif isinstance(tree, list | tuple):
        yield from _each(tree)


def _is_sparse_float(value: Any) -> bool:
    sparse = isinstance(value, Tensor) and value.layout is torch.sparse_coo
    return sparse and value.is_floating_point() and value.device.type != "meta" and value._nnz() > 0


def _each(trees: Iterable[Any]) -> Iterator[Tensor]:
    for tree in trees:
        yield from float_tensors(tree)


def nonfinite_kind(tensor: Tensor) -> str:
    """``nan`` when any element is NaN, ``inf`` when any is infinite, else the empty text.

    The sum is non-finite whenever an element is, and costs a third of ``isfinite().all()``; a sum
    that overflows over finite elements is looked at again.
    """
    values = tensor.detach()
    if bool(torch.isfinite(values.sum(dtype=_wide(values.dtype)))):
        return ""
    if bool(torch.isnan(values).any()):
        return "nan"
    return "inf" if bool(torch.isinf(values).any()) else ""


def _wide(dtype: torch.dtype) -> torch.dtype:
    """A sum of many large halves is no overflow: halves are summed in fp32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
