"""One dispatched operator: its name, what it writes, and which of its arguments belong together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from forensics.replay.tracing.tensor_stats import float_tensors, is_float

_ALLOCATORS = ("empty", "new_empty", "empty_like", "empty_strided", "resize")
_CONSTANTS = (
    *("masked_fill", "fill", "full", "full_like", "new_full", "where", "scalar_tensor"),
    *("lift_fresh", "lift_fresh_copy", "masked_scatter", "index_fill", "constant_pad_nd"),
)
"""Operators that put a number where it was asked for."""
_LISTED = ("aten._foreach_", "aten._fused_", "aten._amp_foreach_")
"""Operators that do the same to each tensor of their lists."""


@dataclass(frozen=True)
class Lane:
    """What one result of an operator can depend on.

    An ordinary operator has one lane. A foreach or fused one has a lane a tensor of its lists: a
    bad gradient of one parameter is no excuse for another's.

    Attributes:
        inputs: the floating tensors among the arguments.
        written: those of them that the operator writes.
    """

    inputs: tuple[Tensor, ...]
    written: tuple[Tensor, ...]


class OperatorCall:
    """One call of a dispatched operator.

    Args:
        func: the overload that is called.
        args: positional arguments.
        kwargs: keyword arguments.
        held: storages to count as written if they are among the arguments: module buffers.
            BatchNorm's statistics are not marked as mutated, and their version does not move.
    """

    def __init__(self, func: Any, args: Any, kwargs: Any, held: Collection[int]) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        schema = getattr(func, "_schema", None)  # a higher-order operator has none
        self.name = operator_name(func)
        self._arguments = schema.arguments if schema is not None else ()
        self._held = held

    @property
    def allocates(self) -> bool:
        """Does it only make room? What is in there then is nobody's doing."""
        return self.bare_name in _ALLOCATORS

    @property
    def bare_name(self) -> str:
        """``log`` for ``aten.log``, ``softmax`` for ``aten._softmax``."""
        return self.name.rpartition(".")[2].lstrip("_")

    def lanes(self) -> list[Lane]:
        """The lanes, in the order of the lists."""
        written = self._written()
        groups = self._listed() or [tuple(float_tensors([self.args, self.kwargs]))]
        return [
            Lane(inputs, tuple(t for t in inputs if storage_key(t) in written)) for inputs in groups
        ]

    def results(self, out: Any, lanes: list[Lane]) -> Iterator[tuple[Tensor, Lane]]:
        """Every floating result, written arguments too, with its lane."""
        made = list(float_tensors(out))
        one_each = len(lanes) > 1 and len(made) == len(lanes)
        for i, tensor in enumerate(made):
            yield tensor, lanes[i] if one_each else lanes[0]
        for lane in lanes:
            for tensor in lane.written:
                yield tensor, lane

    def asks_for_infinity(self) -> bool:
        """Does a plain number among the arguments put the infinity there?"""
        return self.bare_name in _CONSTANTS and self.has_infinite_number()

    def has_infinite_number(self) -> bool:
        """Is one of the plain arguments infinite?"""
        values = (*self.args, *self.kwargs.values())
        return any(isinstance(v, float) and math.isinf(v) for v in values)

    def bad_number(self) -> float | None:
        """A NaN or Inf among the plain arguments, such as a learning rate; None where none is."""
        values = [v for v in (*self.args, *self.kwargs.values()) if isinstance(v, float)]
        return next((v for v in values if not math.isfinite(v)), None)

    def numbers(self) -> tuple[float, ...]:
        """The plain numbers among the positional arguments."""
        plain = [v for v in self.args if isinstance(v, int | float) and not isinstance(v, bool)]
        return tuple(float(v) for v in plain)

    def _written(self) -> set[int]:
        keys = {storage_key(t) for t in float_tensors([self.args, self.kwargs])} & set(self._held)
        for i, argument in enumerate(self._arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = self.args[i] if i < len(self.args) else self.kwargs.get(argument.name)
                keys |= {storage_key(t) for t in float_tensors(value)}
        return keys

    def _listed(self) -> list[tuple[Tensor, ...]]:
        """The arguments that belong to each tensor of the lists; empty for no such operator."""
        if not self.name.startswith(_LISTED):
            return []
        values = [*self.args, *self.kwargs.values()]
        lists = [v for v in values if isinstance(v, list | tuple) and any(map(is_float, v))]
        size = max(map(len, lists), default=0)
        shared = [v for v in values if is_float(v)]
        lists = [v for v in lists if len(v) == size]
        return [
            tuple(t for t in (*(v[i] for v in lists), *shared) if is_float(t)) for i in range(size)
        ]


def operator_name(func: Any) -> str:
    """``aten.log`` for ``aten::log_.out``: namespace and name, without overload or trailing _."""
    schema = getattr(func, "_schema", None)
    name = str(schema.name).replace("::", ".") if schema is not None else str(func)
    return name.rstrip("_")


def storage_key(tensor: Tensor) -> int:
    """Identity of a tensor's memory: views and detached aliases share it."""
    return int(tensor.untyped_storage()._cdata)
