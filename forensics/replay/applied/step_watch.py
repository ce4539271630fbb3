"""Watches one training step from outside: who called the scaler, the optimizers, the schedulers.

A loop does not say what it does. So the methods of GradScaler, of the schedulers and torch's own
clip are wrapped while the watch lasts, and every optimizer's step is hooked. Nothing is computed
that the step itself would see, and unless ``measure`` is asked for, nothing is read off a device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.utils import clip_grad
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import _disable_current_modes

from forensics.record.loop_entries import has_closure
from forensics.record.loop_watch import LoopWatch
from forensics.record.parameters import learning_rates
from forensics.replay.applied.movement import (
    ParameterLook,
    enter,
    first_state,
    look_at,
    state_counts,
)
from forensics.replay.tracing.call_site import Parts, call_site

_Look = Callable[[Optimizer], dict[int, ParameterLook]]


@dataclass
class OptimizerCall:
    """One call of an optimizer's ``step``.

    Attributes:
        optimizer: whose.
        scaler: the GradScaler that called it, or None.
        unscaled: its gradients had been unscaled by then, or its kernel unscales them itself.
        found_inf: what a kernel that skips by itself was handed, shape (); or None.
        rates: learning rates in force.
        source_line: the user's line.
        filled: how many states it had as it was entered, and the step count of the first.
        counts: step counts of all its states, by id of the parameter; where it is measured.
        entry: its parameters as it was entered, by id; empty where nothing is measured.
        left: the same as it was left.
    """

    optimizer: Optimizer
    scaler: GradScaler | None
    unscaled: bool
    found_inf: Tensor | None
    rates: tuple[float, ...]
    source_line: str
    filled: tuple[int, float] = (0, -1.0)
    counts: dict[int, float] = field(default_factory=dict)
    entry: dict[int, ParameterLook] = field(default_factory=dict)
    left: dict[int, ParameterLook] = field(default_factory=dict)

    @property
    def skipped_inside(self) -> bool:
        """Did its kernel leave everything as it was? Reads one number off the device."""
        return self.found_inf is not None and bool(self.found_inf > 0)


@dataclass
class SchedulerCall:
    """One call of a scheduler's ``step``, by the user rather than by another scheduler."""

    scheduler: Any
    optimizer: Optimizer | None
    before: tuple[float, ...]
    after: tuple[float, ...]
    source_line: str


@dataclass
class ClipCall:
    """One call of torch's clip.

    Attributes:
        max_norm: the threshold.
        norm: that it saw, shape ().
        scaled: the gradients were still multiplied by the loss scale.
        source_line: the user's line.
        owners: ids of the optimizers whose parameters it was handed.
        after: optimizer calls that had come before it.
    """

    max_norm: float
    norm: Tensor
    scaled: bool
    source_line: str
    owners: frozenset[int] = frozenset()
    after: int = 0


@dataclass
class StepEvents:
    """What was called in one step, in order.

    Attributes:
        scalers: every enabled scaler that scaled something, with the scale in force at its first
            ``scale()``: a tensor of its own, shape ().
        unscaled: ids of the optimizers that ``unscale_`` was called for.
        scaled_steps: optimizers that ``GradScaler.step`` was called for, whether or not it
            stepped.
        updates: calls of ``GradScaler.update``, each by the user's line.
        cleared: calls of ``zero_grad``, of optimizers and modules.
    """

    scalers: dict[int, tuple[GradScaler, Tensor]] = field(default_factory=dict)
    unscaled: set[int] = field(default_factory=set)
    scaled_steps: list[tuple[Optimizer, str]] = field(default_factory=list)
    updates: list[str] = field(default_factory=list)
    cleared: int = 0
    optimizers: list[OptimizerCall] = field(default_factory=list)
    schedulers: list[SchedulerCall] = field(default_factory=list)
    clips: list[ClipCall] = field(default_factory=list)

    def calls_of(self, optimizer: Optimizer) -> list[OptimizerCall]:
        """The calls of one optimizer's step."""
        return [call for call in self.optimizers if call.optimizer is optimizer]


class StepWatch:
    """Notes what a step calls while ``watching()`` lasts.

    Args:
        parts: who is who, for the user's source lines; None leaves them out, which is cheaper.
        measure: look at gradients and parameters as an optimizer is entered and left.
        owners: the training's optimizers, to know whose gradients a clip is handed.
    """

    def __init__(
        self, parts: Parts | None = None, *, measure: bool = False, owners: Sequence[Optimizer] = ()
    ) -> None:
        self.events = StepEvents()
        self._parts, self._measure = parts, measure
        self._owner = {
            id(p): id(o) for o in owners for group in o.param_groups for p in group["params"]
        }
        self._stepping: GradScaler | None = None
        self._depth = 0

    def reset(self) -> None:
        """Begin the next step with nothing noted."""
        self.events = StepEvents()

    @contextmanager
    def watching(self) -> Iterator[StepEvents]:
        """Hook everything, and unhook it at the end."""
        self.events = StepEvents()
        with ExitStack() as undo:
            for name, wrap in (
                ("scale", self._scale),
                ("unscale_", self._unscale),
                ("step", self._scaled_step),
                ("update", self._update),
            ):
                undo.enter_context(_wrapped(GradScaler, name, wrap))
            for owner in (Optimizer, nn.Module):
                undo.enter_context(_wrapped(owner, "zero_grad", self._clear))
            for kind in _scheduler_classes():
                undo.enter_context(_wrapped(kind, "step", self._scheduler_step))
            if hasattr(clip_grad, "_clip_grads_with_norm_"):
                undo.enter_context(_wrapped(clip_grad, "_clip_grads_with_norm_", self._clip))
            for handle in (
                register_optimizer_step_pre_hook(self._entered),
                register_optimizer_step_post_hook(self._left),
            ):
                undo.callback(handle.remove)
            yield self.events

    # -- the scaler ----------------------------------------------------------------------

    def _scale(self, own: Callable[..., Any], scaler: GradScaler, outputs: Any) -> Any:
        out = own(scaler, outputs)
        if scaler.is_enabled() and scaler._scale is not None:
            with _disable_current_modes():
                scale = scaler._scale.detach().clone()
            self.events.scalers.setdefault(id(scaler), (scaler, scale))
        return out

    def _unscale(self, own: Callable[..., Any], scaler: GradScaler, optimizer: Optimizer) -> Any:
        out = own(scaler, optimizer)
        self.events.unscaled.add(id(optimizer))
        return out

    def _scaled_step(
        self,
        own: Callable[..., Any],
        scaler: GradScaler,
        optimizer: Optimizer,
        *rest: Any,
        **kw: Any,
    ) -> Any:
        self.events.scaled_steps.append((optimizer, self._line()))
        outer, self._stepping = self._stepping, scaler if scaler.is_enabled() else None
        try:
            return own(scaler, optimizer, *rest, **kw)
        finally:
            self._stepping = outer

    def _update(self, own: Callable[..., Any], scaler: GradScaler, *rest: Any, **kw: Any) -> Any:
        self.events.updates.append(self._line())
        return own(scaler, *rest, **kw)

    def _clear(self, own: Callable[..., Any], owner: Any, *rest: Any, **kw: Any) -> Any:
        self.events.cleared += 1
        return own(owner, *rest, **kw)

    # -- optimizers and schedulers -------------------------------------------------------

    def _entered(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        if has_closure(args, kwargs):
            return self._after_closure(optimizer, args, kwargs)
        self._note_entry(optimizer)
        return None

    def _after_closure(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """What the optimizer gets is there once it has evaluated its closure."""
        owner, *rest = args
        own = rest.pop(0) if rest else kwargs["closure"]
        noted: list[bool] = []

        def closure(*given: Any, **named: Any) -> Any:
            out = own(*given, **named)
            if not noted:
                noted.append(True)
                self._note_entry(optimizer)
            return out

        return (owner, closure, *rest), {k: v for k, v in kwargs.items() if k != "closure"}

    def _note_entry(self, optimizer: Optimizer) -> None:
        found_inf = getattr(optimizer, "found_inf", None)
        handles_scale = self._stepping is not None and found_inf is not None
        self.events.optimizers.append(
            OptimizerCall(
                optimizer=optimizer,
                scaler=self._stepping,
                unscaled=handles_scale or id(optimizer) in self.events.unscaled,
                found_inf=found_inf,
                rates=learning_rates([optimizer]),
                source_line=self._line(),
                filled=first_state(optimizer),
                counts=state_counts(optimizer) if self._measure else {},
                entry=self._look(optimizer, enter),
            )
        )

    def _left(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        calls = self.events.calls_of(optimizer)
        if calls:
            calls[-1].left = self._look(optimizer, look_at)

    def _scheduler_step(
        self, own: Callable[..., Any], scheduler: Any, *rest: Any, **kw: Any
    ) -> Any:
        optimizer = getattr(scheduler, "optimizer", None)
        rates = [optimizer] if isinstance(optimizer, Optimizer) else []
        before = learning_rates(rates)
        self._depth += 1
        try:
            out = own(scheduler, *rest, **kw)
        finally:
            self._depth -= 1
        if not self._depth:  # a scheduler of schedulers calls the others
            after, line = learning_rates(rates), self._line()
            call = SchedulerCall(scheduler, rates[0] if rates else None, before, after, line)
            self.events.schedulers.append(call)
        return out

    def _clip(
        self,
        own: Callable[..., Any],
        parameters: Any,
        max_norm: float,
        total_norm: Tensor,
        *rest: Any,
        **kw: Any,
    ) -> Any:
        held = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        with _disable_current_modes():
            norm = total_norm.detach().clone()
        found = (self._owner.get(id(p)) for p in held if p.grad is not None)
        owners = frozenset(owner for owner in found if owner is not None)
        still = bool(owners - self.events.unscaled) if owners else not self.events.unscaled
        scaled = bool(self.events.scalers) and still
        after = len(self.events.optimizers)
        clip = ClipCall(float(max_norm), norm, scaled, self._line(), owners, after)
        self.events.clips.append(clip)
        return own(held, max_norm, total_norm, *rest, **kw)

    def _look(self, optimizer: Optimizer, look: _Look) -> dict[int, ParameterLook]:
        if not self._measure:
            return {}
        with _disable_current_modes():
            return look(optimizer)

    def _line(self) -> str:
        return call_site(self._parts, depth=3).source_line if self._parts is not None else ""


def hooks_of_users(optimizer: Optimizer) -> int:
    """How many hooks count an optimizer's steps; the recorder's own asks the loss scale."""
    hooks = optimizer._optimizer_step_post_hooks.values()
    return sum(not isinstance(getattr(hook, "__self__", None), LoopWatch) for hook in hooks)


@contextmanager
def _wrapped(owner: Any, name: str, wrap: Callable[..., Any]) -> Iterator[None]:
    """``owner.name`` calls ``wrap`` with the original first, while the context lasts."""
    own = vars(owner)[name]

    @functools.wraps(own)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return wrap(own, *args, **kwargs)

    setattr(owner, name, wrapper)
    try:
        yield
    finally:
        setattr(owner, name, own)


def _scheduler_classes() -> list[type]:
    """Every class of scheduler with a ``step`` of its own."""
    found: list[type] = []
    todo: list[type] = [LRScheduler]
    while todo:
        kind = todo.pop()
        todo += kind.__subclasses__()
        if "step" in vars(kind) and kind not in found:
            found.append(kind)
    return found


def host_scales(events: StepEvents) -> Mapping[int, float]:
    """The scale in force of every scaler, by id; reads one number each off the device."""
    return {key: float(scale) for key, (_, scale) in events.scalers.items()}
