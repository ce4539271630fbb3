"""The operator trace: the first operator that makes a non-finite value which does damage.

A dispatch mode looks at every operator of one step. A NaN made from NaN-free inputs, or an Inf made
from finite ones, is a birth. Every non-finite tensor carries the birth it descends from, so damage
found anywhere (the loss, a gradient, a weight, a buffer, an optimizer state) is traced back to its
origin, and what is absorbed on the way (a masked score, a value that ``where`` drops) is no origin
of anything. A deliberate ±Inf, written by a fill or a mask from a constant, is not a birth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from forensics.replay.call_site import CallSite, Phase, call_site
from forensics.replay.tensor_stats import TensorStats, float_tensors, nonfinite_kind, stats_of

_SITE = "forensics_call_site"
"""Key under which an autograd node remembers where its forward was called."""
_ALLOCATORS = ("empty", "new_empty", "empty_like", "empty_strided", "resize")
_CONSTANTS = ("masked_fill", "fill", "full", "full_like", "new_full", "where", "scalar_tensor")
_CONSTANT = -1
"""Birth index of a deliberate infinity."""


@dataclass(frozen=True, kw_only=True)
class Birth:
    """Where a non-finite value came into the step.

    Attributes:
        kind: ``nan`` or ``inf``.
        operator: dispatched name without overload and trailing ``_``, such as ``aten.log``;
            ``input``, ``param:NAME``, ``buffer:NAME`` or ``optimizer:NAME`` for a bad leaf.
        phase: where the operator ran.
        module: the module in whose forward it ran, or whose backward it belongs to.
        autograd_node: the node of backward that ran it, or empty.
        source_line: the user's line; for a backward node the line of its forward.
        inputs: statistics of the floating inputs.
        output: statistics of the first bad output, or None for a leaf.
        parent: the index of the Inf that this NaN was made of, or None.
    """

    kind: str
    operator: str
    phase: Phase
    module: str = ""
    autograd_node: str = ""
    source_line: str = ""
    inputs: tuple[TensorStats, ...] = ()
    output: TensorStats | None = None
    parent: int | None = None


class OpTrace:
    """The trace of one step: births, and which birth each non-finite tensor descends from."""

    def __init__(self, model: nn.Module) -> None:
        self.births: list[Birth] = []
        self.names = {id(module): name for name, module in model.named_modules()}
        self.buffers = {_key(b): name for name, b in model.named_buffers()}
        self.last_read: int | None = None
        """Birth of the last non-finite number that the host read off a tensor (``item()``)."""
        self._descent: dict[int, int] = {}
        self._alive: list[Any] = []  # keeps storages, so that an address is not used twice

    def add_leaf(self, label: str, phase: Phase, tensor: Tensor, module: str = "") -> None:
        """Take in a tensor that exists before the step; a non-finite one is a birth of its own."""
        kind = nonfinite_kind(tensor)
        if kind:
            stats = stats_of(tensor)
            birth = Birth(kind=kind, operator=label, phase=phase, module=module, output=stats)
            self._descend(tensor, self._record(birth))

    def origin_of(self, tensor: Tensor) -> int | None:
        """Index of the birth that a non-finite tensor descends from; None when it is unknown."""
        index = self._descent.get(_key(tensor))
        return None if index is None or index == _CONSTANT else self._first(index)

    def _first(self, index: int) -> int:
        """Follow NaN made of Inf back to the Inf's own birth."""
        parent = self.births[index].parent
        return index if parent is None else self._first(parent)

    def _record(self, birth: Birth) -> int:
        self.births.append(birth)
        return len(self.births) - 1

    def _descend(self, tensor: Tensor, index: int) -> None:
        self._descent[_key(tensor)] = index
        self._alive.append(tensor.untyped_storage())

    # -- one operator ------------------------------------------------------------------------

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator, and take note of what it makes."""
        inputs = list(float_tensors([args, kwargs]))
        touched = [t for t in inputs if _key(t) in self._written(func, args, kwargs, inputs)]
        before = {id(t): (nonfinite_kind(t), stats_of(t)) for t in touched}
        out = func(*args, **kwargs)
        name = _operator_name(func)
        if name == "aten._local_scalar_dense" and inputs and nonfinite_kind(inputs[0]):
            self.last_read = self.origin_of(inputs[0])
        if name.removeprefix("aten.").lstrip("_") in _ALLOCATORS:
            return out
        for result in (*float_tensors(out), *touched):
            kind = nonfinite_kind(result)
            if kind:
                self._judge(func, name, kind, result, inputs, before, (args, kwargs))
        return out

    def _written(self, func: Any, args: Any, kwargs: Any, inputs: list[Tensor]) -> set[int]:
        """Storages the operator writes: what its schema says, and module buffers among its inputs.

        BatchNorm's statistics are not marked as mutated, and their version does not move.
        """
        keys = {_key(t) for t in inputs} & self.buffers.keys()
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                keys |= {_key(t) for t in float_tensors(value)}
        return keys

    def _judge(
        self,
        func: Any,
        name: str,
        kind: str,
        result: Tensor,
        inputs: list[Tensor],
        before: dict[int, tuple[str, TensorStats]],
        call: tuple[Any, Any],
    ) -> None:
        """Is this bad result a birth, a deliberate infinity, or inherited?"""
        bad = [(t, before[id(t)][0] if id(t) in before else nonfinite_kind(t)) for t in inputs]
        bad = [(t, k) for t, k in bad if k]
        parents = [self._descent.get(_key(t)) for t, _ in bad]
        if kind == "nan" and any(k == "nan" for _, k in bad):
            parents = [self._descent.get(_key(t)) for t, k in bad if k == "nan"]
            return self._inherit(result, parents)
        if kind == "inf" and bad:
            return self._inherit(result, parents)
        if kind == "inf" and _has_infinite_constant(func, name, call):
            return self._descend(result, _CONSTANT)
        real = [p for p in parents if p is not None and p != _CONSTANT]
        stats = tuple(before[id(t)][1] if id(t) in before else stats_of(t) for t in inputs)
        birth = self._birth(kind, name, stats, stats_of(result))
        self._descend(result, self._record(replace(birth, parent=real[0] if real else None)))
        return None

    def _inherit(self, result: Tensor, parents: list[int | None]) -> None:
        known = [p for p in parents if p is not None]
        real = [p for p in known if p != _CONSTANT]
        # A bad tensor nobody saw being made (a literal, a foreign library) is taken as deliberate.
        self._descend(result, real[0] if real else _CONSTANT)

    def _birth(
        self, kind: str, name: str, inputs: tuple[TensorStats, ...], output: TensorStats
    ) -> Birth:
        site = call_site(self.names, depth=4)
        node = torch._C._current_autograd_node()
        if node is None:
            return Birth(
                kind=kind,
                operator=name,
                phase=site.phase,
                module=site.module,
                source_line=site.source_line,
                inputs=inputs,
                output=output,
            )
        made: CallSite | None = _metadata(node).get(_SITE)
        return Birth(
            kind=kind,
            operator=name,
            phase=Phase.BACKWARD,
            module=made.module if made else "",
            autograd_node=node.name().rsplit("::", 1)[-1],
            source_line=made.source_line if made else site.source_line,
            inputs=inputs,
            output=output,
        )


@contextmanager
def tracing(trace: OpTrace) -> Iterator[OpTrace]:
    """Trace every operator, forward and backward, that runs inside the ``with`` block."""
    with _Sites(trace), _Operators(trace):
        yield trace


class _Operators(TorchDispatchMode):
    """Below autograd: sees every operator as it is executed, backward and optimizer included."""

    def __init__(self, trace: OpTrace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return self.trace.observe(func, args, kwargs or {})


class _Sites(TorchFunctionMode):
    """Above autograd: tells each new autograd node where its forward was called."""

    def __init__(self, trace: OpTrace) -> None:
        super().__init__()
        self.trace = trace

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        out = func(*args, **(kwargs or {}))
        site: CallSite | None = None
        for tensor in float_tensors(out):
            if tensor.grad_fn is not None and _SITE not in _metadata(tensor.grad_fn):
                site = site or call_site(self.trace.names, depth=2)
                _mark(tensor.grad_fn, site)
        return out


def _mark(node: Any, site: CallSite) -> None:
    """Mark a node and the unmarked ones behind it: one function may make several nodes."""
    todo = [node]
    while todo:
        here = todo.pop()
        if here is None or _SITE in here.metadata:
            continue
        here.metadata[_SITE] = site
        todo += [following for following, _ in here.next_functions]


def _metadata(node: Any) -> dict[Any, Any]:
    """The dict that belongs to an autograd node (the stubs take it for a method)."""
    metadata: dict[Any, Any] = node.metadata
    return metadata


def _key(tensor: Tensor) -> int:
    """Identity of a tensor's memory: views and detached aliases share it."""
    return int(tensor.untyped_storage()._cdata)


def _operator_name(func: Any) -> str:
    """``aten.log`` for ``aten::log_.out``: namespace and name, without overload or trailing _."""
    return str(func._schema.name).replace("::", ".").rstrip("_")


def _has_infinite_constant(func: Any, name: str, call: tuple[Any, Any]) -> bool:
    """Was an infinity asked for by a plain number?"""
    if name.removeprefix("aten.").lstrip("_") not in _CONSTANTS:
        return False
    args, kwargs = call
    del func
    constants = [v for v in (*args, *kwargs.values()) if isinstance(v, float)]
    return any(v in (torch.inf, -torch.inf) for v in constants)
