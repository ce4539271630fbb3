"""The operator trace: the first operator that makes a non-finite value which does damage.

A dispatch mode looks at every operator of one step. A NaN made from NaN-free inputs, or an Inf made
from finite ones, is a birth. Every non-finite tensor carries the birth it descends from, so damage
found anywhere (the loss, a gradient, a weight, a buffer, an optimizer state) is traced back to its
origin, and what is absorbed on the way (a masked score, a value that ``where`` drops) is no origin
of anything. A deliberate ±Inf, written by a fill or a mask from a constant, is not a birth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from forensics.replay.tracing.call_site import CallSite, Parts, Phase, call_site
from forensics.replay.tracing.graph_parameters import nearest_parameter, parameter_names
from forensics.replay.tracing.node_sites import marking_nodes, node_name, site_of_node
from forensics.replay.tracing.operator_call import Lane, OperatorCall, storage_key
from forensics.replay.tracing.tensor_stats import TensorStats, nonfinite_kind, stats_of
from forensics.replay.tracing.underflow import Underflow, lost_to_rounding, underflow_of

_CONSTANT = -1
"""Birth index of an infinity that nobody saw being made; those below are deliberate ones."""
INPUT = "input"
"""Label of a bad value that came with the data."""
_UNDERFLOWS = 20
"""Operators that lost their result of which the numbers are kept."""
_MEASURES = frozenset(
    {
        *("norm", "linalg_vector_norm", "foreach_norm", "pow", "square", "sum", "dot", "abs"),
        *("max", "amax", "stack", "cat", "mean"),
    }
)
"""Operators with which a hand-written clip measures gradients."""
_COPIED = 1 << 20
"""Elements up to which a tensor is kept as it was before an operator writes it."""


@dataclass(frozen=True, kw_only=True)
class Birth:
    """Where a non-finite value came into the step.

    Attributes:
        kind: ``nan`` or ``inf``.
        operator: dispatched name without overload and trailing ``_``, such as ``aten.log``;
            ``input``, ``param:NAME``, ``buffer:NAME`` or ``optimizer:NAME`` for a bad leaf.
        phase: where the operator ran.
        module: the module in whose forward it ran, or whose backward it belongs to; of a bad
            input the first module whose result it spoils.
        autograd_node: the node of backward that ran it, or empty.
        source_line: the user's line; for a backward node the line of its forward.
        traceback: the user's lines that led to it, or to the forward of its node; innermost last.
        inputs: statistics of the floating inputs.
        output: statistics of the first bad output; of a leaf its own.
        parent: the index of the Inf that this NaN was made of, or None.
        parameter: the parameter that the inputs come from most directly, or empty.
        direct: the operator works on a parameter itself: it is its first input.
        leaf: it was bad before any operator touched it.
        number: the non-finite plain number among the arguments, such as a learning rate.
        numbers: the plain numbers among the arguments, such as an exponent.
    """

    kind: str
    operator: str
    phase: Phase
    module: str = ""
    autograd_node: str = ""
    source_line: str = ""
    traceback: tuple[str, ...] = ()
    inputs: tuple[TensorStats, ...] = ()
    output: TensorStats | None = None
    parent: int | None = None
    parameter: str = ""
    direct: bool = False
    leaf: bool = False
    number: float | None = None
    numbers: tuple[float, ...] = ()


@dataclass
class _Before:
    """An argument as it was before the operator wrote it."""

    kind: str
    stats: Callable[[], TensorStats]


@dataclass
class _Judged:
    """One bad result under judgement."""

    call: OperatorCall
    kind: str
    result: Tensor
    lane: Lane
    before: dict[int, _Before] = field(default_factory=dict)

    def kind_of(self, tensor: Tensor) -> str:
        """Was this input bad when the operator got it?"""
        held = self.before.get(id(tensor))
        return held.kind if held else nonfinite_kind(tensor)

    def stats(self) -> tuple[TensorStats, ...]:
        """The inputs in numbers, as the operator got them."""
        return tuple(
            self.before[id(t)].stats() if id(t) in self.before else stats_of(t)
            for t in self.lane.inputs
        )


class OpTrace:
    """The trace of one step: births, and which birth each non-finite tensor descends from."""

    def __init__(self, model: nn.Module, parts: Parts | None = None) -> None:
        self.births: list[Birth] = []
        self.masks: list[Birth] = []
        """Infinities that were put there on purpose."""
        self.readers: dict[int, Birth] = {}
        """By mask, the first operator that made less of it: a sum or a choice that reads it."""
        self.underflows: list[Underflow] = []
        self.roots: list[Tensor] = []
        """What ``backward()`` was called on, detached."""
        self.parts = parts or Parts.of(model)
        self.buffers = {storage_key(b): name for name, b in model.named_buffers()}
        self.parameters = {storage_key(p): name for name, p in model.named_parameters()}
        self.last_read: int | None = None
        """Birth of the last non-finite number that the host read off a tensor (``item()``)."""
        self.last_scalar: tuple[int, str] | None = None
        """Birth and kind of the last non-finite single number outside backward: a loss, a norm."""
        self.raised_in = ""
        """The operator that raised last, or empty."""
        self.raised_inputs: tuple[TensorStats, ...] = ()
        """Its floating inputs."""
        self.edited: list[tuple[str, CallSite]] = []
        """Nodes whose backward refused a value that was changed in place, with their forward."""
        self.parameter_names = parameter_names(model)
        self._descent: dict[int, int] = {}
        self._unused: set[int] = set()  # leaves of the data that no operator has used yet
        self._alive: list[Any] = []  # keeps storages, so that an address is not used twice

    def add_leaf(self, label: str, phase: Phase, tensor: Tensor, module: str = "") -> None:
        """Take in a tensor that exists before the step; a non-finite one is a birth of its own.

        An -Inf in the data is taken for a mask, and deliberate.
        """
        kind = nonfinite_kind(tensor)
        if kind and label == INPUT and kind == "inf" and not bool(torch.isposinf(tensor).any()):
            self.add_mask(tensor, label)
        elif kind:
            birth = Birth(
                kind=kind,
                operator=label,
                phase=phase,
                module=module,
                output=stats_of(tensor),
                leaf=True,
            )
            self._unused.add(self.record(birth))
            self.descend(tensor, len(self.births) - 1)

    def add_mask(self, tensor: Tensor, label: str) -> None:
        """Take in a tensor whose infinities are deliberate."""
        stats = stats_of(tensor)
        self._put(
            tensor, Birth(kind="inf", operator=label, phase=Phase.INPUT, output=stats, leaf=True)
        )

    def mask_of(self, tensor: Tensor) -> int | None:
        """Index of the deliberate infinity that a tensor descends from, if it is no other."""
        index = self._descent.get(storage_key(tensor))
        return None if index is None or index >= _CONSTANT else _CONSTANT - 1 - index

    def _put(self, tensor: Tensor, mask: Birth) -> None:
        self.masks.append(mask)
        self.descend(tensor, _CONSTANT - len(self.masks))

    def origin_of(self, tensor: Tensor) -> int | None:
        """Index of the birth that a non-finite tensor descends from; None when it is unknown."""
        index = self._descent.get(storage_key(tensor))
        return None if index is None or index < 0 else self.first(index)

    def first(self, index: int) -> int:
        """Follow NaN made of Inf back to the Inf's own birth."""
        parent = self.births[index].parent
        return index if parent is None else self.first(parent)

    def record(self, birth: Birth) -> int:
        """Take in a birth; returns its index."""
        self.births.append(birth)
        return len(self.births) - 1

    def descend(self, tensor: Tensor, index: int) -> None:
        """A tensor descends from a birth, by index."""
        self._descent[storage_key(tensor)] = index
        self._alive.append(tensor.untyped_storage())

    # -- one operator ------------------------------------------------------------------------

    def observe(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run one operator, and take note of what it makes."""
        call = OperatorCall(func, args, kwargs, self.buffers.keys())
        lanes = call.lanes()
        before = {id(t): _before(t) for lane in lanes for t in lane.written}
        try:
            out = func(*args, **kwargs)
        except Exception:
            self._note_refusal(call, lanes[0])
            raise
        self._note_reading(call, lanes[0])
        if not call.allocates:
            for result, lane in call.results(out, lanes):
                kind = nonfinite_kind(result)
                if kind:
                    self._judge(_Judged(call, kind, result, lane, before))
                    self._note_scalar(result, kind)
            self._note_underflow(call, out)
        return out

    def _note_underflow(self, call: OperatorCall, out: Any) -> None:
        node = torch._C._current_autograd_node()
        if node is None or len(self.underflows) == _UNDERFLOWS:
            return
        found = lost_to_rounding(call, out)
        if found is not None:
            site = site_of_node(node) or call_site(self.parts, depth=4, in_backward=True)
            self.underflows.append(
                underflow_of(
                    call, found, node=node_name(node), module=site.module, line=site.source_line
                )
            )

    def _note_refusal(self, call: OperatorCall, lane: Lane) -> None:
        if not self.raised_in:
            self.raised_in = call.name
            with suppress(RuntimeError):  # after a device-side assertion nothing can be read
                self.raised_inputs = tuple(stats_of(t) for t in lane.inputs)

    def _note_scalar(self, result: Tensor, kind: str) -> None:
        index = self.origin_of(result) if result.numel() == 1 else None
        if index is not None and torch._C._current_autograd_node() is None:
            self.last_scalar = index, kind

    def _note_reading(self, call: OperatorCall, lane: Lane) -> None:
        read = call.name == "aten._local_scalar_dense" and lane.inputs
        if read and nonfinite_kind(lane.inputs[0]):
            self.last_read = self.origin_of(lane.inputs[0])

    def _judge(self, judged: _Judged) -> None:
        """Is this bad result a birth, a deliberate infinity, or inherited?"""
        call, kind, result = judged.call, judged.kind, judged.result
        bad = [(t, k) for t in judged.lane.inputs if (k := judged.kind_of(t))]
        for tensor, its_kind in bad:
            self._use(tensor, its_kind)
        parents = [self._descent.get(storage_key(t)) for t, _ in bad]
        if kind == "nan" and any(k == "nan" for _, k in bad):
            parents = [self._descent.get(storage_key(t)) for t, k in bad if k == "nan"]
            return self._inherit(result, parents)
        if kind == "inf" and bad:
            self._inherit(result, parents)
            return self._note_reader(judged)
        if kind == "inf" and call.asks_for_infinity():
            return self._put(result, self._birth(judged))
        real = [p for p in parents if p is not None and p >= 0]
        birth = replace(self._birth(judged), parent=real[0] if real else None)
        self.descend(result, self.record(birth))
        return None

    def _use(self, tensor: Tensor, kind: str) -> None:
        """A bad input: one that nobody saw being made is data; of data the first use is noted."""
        key = storage_key(tensor)
        if key not in self._descent and kind == "nan":
            self.add_leaf(INPUT, Phase.INPUT, tensor)
        index = self._descent.get(key)
        if index in self._unused:
            self._unused.discard(index)
            birth, site = self.births[index], call_site(self.parts, depth=5)
            module = site.module if birth.operator == INPUT else birth.module
            self.births[index] = replace(birth, module=module, source_line=site.source_line)

    def _note_reader(self, judged: _Judged) -> None:
        mask, result = self.mask_of(judged.result), judged.result
        if mask is None or mask < 0 or mask in self.readers:
            return
        sizes = [t.numel() for t in judged.lane.inputs if judged.kind_of(t)]
        of_its_own = all(storage_key(t) != storage_key(result) for t in judged.lane.inputs)
        if of_its_own and result.numel() < max(sizes, default=0):
            self.readers[mask] = self._birth(judged)

    def _inherit(self, result: Tensor, parents: list[int | None]) -> None:
        known = [p for p in parents if p is not None]
        real = [p for p in known if p >= 0]
        # An infinity nobody saw being made (a literal, a foreign library) is taken as deliberate.
        self.descend(result, real[0] if real else min(known, default=_CONSTANT))

    def _birth(self, judged: _Judged) -> Birth:
        call, lane = judged.call, judged.lane
        node = torch._C._current_autograd_node()
        site = call_site(self.parts, depth=5, in_backward=node is not None)
        parameter, direct = nearest_parameter(lane.inputs, self.parameter_names)
        birth = Birth(
            kind=judged.kind,
            operator=call.name,
            phase=site.phase if site.known else self._phase_by_data(call, lane, site.phase),
            module=site.module,
            source_line=site.source_line,
            traceback=site.traceback,
            inputs=judged.stats(),
            output=stats_of(judged.result),
            parameter=parameter,
            direct=direct,
            number=call.bad_number(),
            numbers=call.numbers(),
        )
        return birth if node is None else _in_backward(birth, node, site)

    def _phase_by_data(self, call: OperatorCall, lane: Lane, otherwise: Phase) -> Phase:
        """Where the stack tells nothing: a hand-written clip or update is known by its data."""
        if any(storage_key(t) in self.parameters for t in lane.written):
            return Phase.OPTIMIZER
        held = [p.grad for p in self.parameter_names.tensors if p.grad is not None]
        grads = {storage_key(g) for g in held if g.layout is torch.strided}
        if any(storage_key(t) in grads for t in lane.inputs):
            in_place = any(storage_key(t) in grads for t in lane.written)
            return Phase.CLIP if in_place or call.bare_name in _MEASURES else Phase.OPTIMIZER
        return otherwise


def _in_backward(birth: Birth, node: Any, site: CallSite) -> Birth:
    """A birth in backward belongs to the forward of its node, or to a forward recomputed there."""
    made = site_of_node(node)
    at = site if site.in_module or made is None else made.entered_from(site)
    return replace(
        birth,
        phase=Phase.BACKWARD,
        module=at.module,
        autograd_node=node_name(node),
        source_line=at.source_line,
        traceback=at.traceback,
    )


def _before(tensor: Tensor) -> _Before:
    """An argument before it is written: whether it is bad now, its numbers when asked for."""
    if tensor.numel() <= _COPIED:
        copied = tensor.detach().clone()
        return _Before(nonfinite_kind(copied), lambda: stats_of(copied))
    stats = stats_of(tensor)
    return _Before("nan" if stats.nan else "inf" if stats.inf else "", lambda: stats)


@contextmanager
def tracing(trace: OpTrace) -> Iterator[OpTrace]:
    """Trace every operator, forward and backward, that runs inside the ``with`` block."""
    with marking_nodes(trace.parts, trace.roots, trace.edited), _Operators(trace):
        yield trace


class _Operators(TorchDispatchMode):
    """Below autograd: sees every operator as it is executed, backward and optimizer included."""

    def __init__(self, trace: OpTrace) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return self.trace.observe(func, args, kwargs or {})
