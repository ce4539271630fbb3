"""What was found in one saved state: plain values that renderers print."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forensics.frozen import dataclass
from forensics.runlog.checkpoint_files import BadTensor


@dataclass(frozen=True)
class BadValue(BadTensor):
    """A bad tensor or number, and what it looks like.

    Attributes:
        shape: size per dimension; () for a number.
        dtype: such as ``float16``; ``number`` for a plain one.
        first: index of the first element that is not finite.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "number"
    first: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StateHealth:
    """What one saved state was found to be.

    Attributes:
        path: file or folder.
        format: in words.
        step: the step it stands before; None where nothing tells.
        size: bytes.
        tensors: how many it holds.
        elements: how many those have.
        dtypes: elements by dtype, most first.
        bad: what is bad, in the order of the state.
        infinite: what is infinite and may be meant to be, such as a mask.
        finite_names: the values that were finite and are judged by whether they stay so.
        extremes: per kind ``{"name", "absmax"}`` of the finite tensor with the largest element.
        numbers: learning rates and the loss scale, by name.
        missing: what a resume needs and the state has not, a clause each.
        risks: what is finite and will not stay so, a sentence each.
        notes: what else the reader must know, a sentence each.
    """

    path: Path
    format: str
    step: int | None
    size: int
    tensors: int
    elements: int
    dtypes: Mapping[str, int]
    bad: tuple[BadValue, ...]
    infinite: tuple[BadValue, ...]
    finite_names: frozenset[str]
    extremes: Mapping[str, Any]
    numbers: Mapping[str, float]
    missing: tuple[str, ...] = ()
    risks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def finite(self) -> bool:
        """True where nothing is bad."""
        return not self.bad
