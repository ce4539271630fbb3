"""Which parameter a tensor comes from, read off the autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_NODES = 300
"""Nodes looked at before giving up: a parameter farther away explains nothing."""
_BESIDE = 3
"""Levels behind the first parameter in which its companions (a weight by its bias) are found."""


@dataclass(frozen=True)
class ParameterNames:
    """The parameters of a model.

    Attributes:
        names: all names of each, by ``id``; a tied one has several.
        tensors: the parameters themselves.
    """

    names: Mapping[int, tuple[str, ...]]
    tensors: tuple[Tensor, ...]

    def first(self, tensor: Any) -> str:
        """The first name of a parameter; empty for any other tensor."""
        return self.names.get(id(tensor), ("",))[0]


def parameter_names(model: nn.Module) -> ParameterNames:
    """The names of a model's parameters, tied ones with all of theirs."""
    names: dict[int, tuple[str, ...]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[id(parameter)] = (*names.get(id(parameter), ()), name)
    return ParameterNames(names, tuple(model.parameters()))


def nearest_parameter(inputs: Iterable[Tensor], names: ParameterNames) -> tuple[str, bool]:
    """The parameter that an operator's inputs come from most directly.

    Args:
        inputs: the operator's arguments, in order; an earlier one wins where two are as near.
        names: of the model.

    Returns:
        Its name, or empty, and whether a parameter is what the operator works on: its first input.
        Among the parameters of one module the largest is named: of a layer the weight, not the
        bias.
    """
    tensors = list(inputs)
    found = [(0, t) for t in tensors if names.first(t)]
    direct = bool(tensors) and bool(names.first(tensors[0]))
    for level, parameter in _leaves([t.grad_fn for t in tensors if t.grad_fn is not None]):
        if found and level > found[0][0] + _BESIDE:
            break
        if names.first(parameter):
            found.append((level, parameter))
    if not found:
        return "", False
    return _largest_of_first([p for _, p in found], names), direct


def _largest_of_first(parameters: list[Tensor], names: ParameterNames) -> str:
    """The largest of those that belong to the same module as the first."""
    owner = names.first(parameters[0]).rpartition(".")[0]
    own = [p for p in parameters if names.first(p).rpartition(".")[0] == owner]
    return names.first(max(own, key=lambda p: p.numel()))


def _leaves(nodes: list[Any]) -> Iterator[tuple[int, Tensor]]:
    """The leaves behind some autograd nodes, nearest first, each with its level."""
    level = 0
    seen: set[Any] = set()
    while nodes and len(seen) < _NODES:
        following: list[Any] = []
        for node in nodes:
            if node is None or node in seen:
                continue
            seen.add(node)
            if hasattr(node, "variable"):
                yield level, node.variable
            following += [n for n, _ in node.next_functions]
        nodes, level = following, level + 1
