"""The inputs of the operator at fault, caught as it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from forensics.diagnose.bisection_result import FaultKind, Origin, TensorFacts
from forensics.record.portable import NotPortableError, portable
from forensics.replay.tracing.operator_call import Lane, OperatorCall, storage_key
from forensics.replay.tracing.tensor_stats import nonfinite_kind, stats_of

LARGEST = 64 << 20
"""Bytes of inputs above which they are not kept: the state has them all."""

_MADE = {FaultKind.NAN: ("nan",), FaultKind.INF: ("inf",)}
"""What the operator of an origin made; of another kind it may have made either."""

_DEFAULTS = (None, torch.strided, torch.preserve_format)
"""Arguments that say nothing, and that a safe load does not know."""


@dataclass(frozen=True, kw_only=True)
class CaughtOperator:
    """One call of an operator.

    Attributes:
        name: overload and all, as ``torch.ops`` has it: ``aten.log.default``.
        kind: what it made: ``nan`` or ``inf``.
        args: positional arguments, tensors on the CPU.
        kwargs: keyword arguments.
    """

    name: str
    kind: str
    args: list[Any]
    kwargs: dict[str, Any]


class OperatorCatch(TorchDispatchMode):
    """Catches the call that an origin speaks of, as it is made.

    Args:
        origin: tells the operator, and its inputs in numbers.
        buffers: storages of the module's buffers, which BatchNorm writes without saying so.
    """

    def __init__(self, origin: Origin, buffers: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.caught: CaughtOperator | None = None
        self.note = ""
        self._origin, self._buffers = origin, buffers

    def wrap(self, run: Callable[[], Any]) -> Any:
        """Run a step under this mode."""
        with self:
            return run()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        kwargs = kwargs or {}
        call = OperatorCall(func, args, kwargs, self._buffers)
        if self.caught is not None or call.name != self._origin.operator:
            return func(*args, **kwargs)
        lanes = call.lanes()
        kinds = [[nonfinite_kind(t) for t in lane.inputs] for lane in lanes]
        facts = [_numbers(lane) for lane in lanes]
        said = {name: value for name, value in kwargs.items() if value not in _DEFAULTS}
        kept = self._copied(args), self._copied(said)
        out = func(*args, **kwargs)
        for result, lane in call.results(out, lanes):
            index = next(i for i, known in enumerate(lanes) if known is lane)
            if self._is_the_one(nonfinite_kind(result), kinds[index], facts[index]):
                made = nonfinite_kind(result)
                self._take(func, made, *kept, index if len(lanes) > 1 else None, len(lanes))
                break
        return out

    def _is_the_one(self, made: str, had: list[str], facts: list[TensorFacts]) -> bool:
        if not made or made not in _MADE.get(self._origin.kind, ("nan", "inf")):
            return False
        if made in had or (made == "inf" and any(had)):
            return False
        return not self._origin.inputs or _alike(facts, self._origin.inputs)

    def _copied(self, tree: Any) -> Any:
        """The arguments as they are now: an operator may write them. Aliases stay aliases."""
        copies: dict[int, Tensor] = {}

        def copy(value: Any) -> Any:
            if isinstance(value, Tensor):
                key = id(value)
                if key not in copies:
                    copies[key] = value.detach().clone()
                return copies[key]
            if isinstance(value, dict):
                return {name: copy(entry) for name, entry in value.items()}
            if isinstance(value, list | tuple):
                return [copy(entry) for entry in value]
            return value

        return copy(tree)

    def _take(
        self, func: Any, made: str, args: Any, kwargs: Any, lane: int | None, lanes: int
    ) -> None:
        if lane is not None:
            args = [_only(value, lane, lanes) for value in args]
            kwargs = {name: _only(value, lane, lanes) for name, value in kwargs.items()}
        if _bytes([args, kwargs]) > LARGEST:
            self.note = f"its inputs take more than {LARGEST >> 20} MiB"
            return
        try:
            plain = portable(_on_cpu(args), "args"), portable(_on_cpu(kwargs), "kwargs")
        except NotPortableError as error:
            self.note = f"an argument cannot be saved safely ({error})"
            return
        name = f"{func._schema.name.replace('::', '.')}.{func._overloadname}"
        self.caught = CaughtOperator(
            name=name, kind=made, args=list(plain[0]), kwargs=dict(plain[1])
        )


def catchable(origin: Origin | None) -> str:
    """Why the operator's inputs cannot be caught; empty where they can."""
    if origin is None:
        return "no operator is known"
    if origin.kind not in (FaultKind.NAN, FaultKind.INF, FaultKind.NORM_OVERFLOW, FaultKind.GROWTH):
        return "no operator made anything non-finite"
    if "." not in origin.operator or ":" in origin.operator:
        return f"the fault is no operator's: {origin.operator}"
    return ""


def buffers_of(model: torch.nn.Module) -> set[int]:
    """Storages of a module's buffers."""
    return {storage_key(buffer) for buffer in model.buffers()}


def _numbers(lane: Lane) -> list[TensorFacts]:
    stats = [stats_of(t) for t in lane.inputs]
    return [
        TensorFacts(
            dtype=s.dtype, shape=s.shape, absmax=s.absmax, nan=s.nan, inf=s.inf, numel=s.numel
        )
        for s in stats
    ]


def _alike(found: list[TensorFacts], told: tuple[TensorFacts, ...]) -> bool:
    """The same tensors in numbers; repr, since NaN is not equal to itself."""

    def key(facts: TensorFacts) -> str:
        return repr((facts.dtype, facts.shape, facts.absmax, facts.nan, facts.inf))

    return [key(f) for f in found] == [key(f) for f in told]


def _only(value: Any, lane: int, lanes: int) -> Any:
    """Of a list with one entry a lane the lane's own."""
    listed = isinstance(value, list) and len(value) == lanes
    return value[lane : lane + 1] if listed else value


def _on_cpu(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.cpu()
    if isinstance(tree, dict):
        return {name: _on_cpu(value) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_on_cpu(value) for value in tree]
    return torch.device("cpu") if isinstance(tree, torch.device) else tree


def _bytes(tree: Any) -> int:
    if isinstance(tree, Tensor):
        return tree.numel() * tree.element_size()
    if isinstance(tree, dict):
        return sum(map(_bytes, tree.values()))
    return sum(map(_bytes, tree)) if isinstance(tree, list | tuple) else 0
