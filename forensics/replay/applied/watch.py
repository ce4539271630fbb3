"""A cheap watch over many replayed steps: which of them may have applied the wrong thing.

It dates a fault that happens once (a state that is lost, a scale that is reset) or begins late,
where looking closely into every step would cost too much. It looks at calls and at numbers that the
host has anyway, so a suspicion is not proof: ``audit_step`` has the last word on a suspected step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forensics.record.recipe import Training
from forensics.replay.applied.movement import first_state
from forensics.replay.applied.step_watch import (
    OptimizerCall,
    StepEvents,
    StepWatch,
    hooks_of_users,
)
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.tracing.step_facts import schedule_moves

_HALVES = (torch.float16, torch.bfloat16)
_PROBE = 1024
"""Elements of one half-precision parameter that are held against their values before the step."""


class AppliedWatch:
    """Watches the steps of a session, one after the other.

    Use::

        watch = AppliedWatch(session.training)
        with watch.watching():
            replayed = session.run_step(trace=watch.step)
            if watch.suspicion(replayed):
                ...  # go back to before this step, and audit it

    Args:
        training: as the session holds it; make another watch where it has been built anew.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._watch = StepWatch(owners=training.optimizers)
        self._probe = _largest_half(training)
        self._filled: dict[int, tuple[int, float]] = {}
        self._moves: tuple[int, ...] = ()
        self._unmoved: Tensor | None = None
        self._grad_kept = False
        self._scale: float | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep everything hooked while the context lasts."""
        with self._watch.watching():
            yield

    def step(self, run: Callable[[], Any]) -> Any:
        """Run one step under watch: the ``trace`` of ``Session.run_step``."""
        self._watch.reset()
        self._moves = schedule_moves(self._training)
        self._filled = {id(o): first_state(o) for o in self._training.optimizers}
        before = None if self._probe is None else _sample(self._probe).clone()
        held = [p.grad for p in self._first_parameters()]
        loss = run()
        if before is not None and self._probe is not None:
            self._unmoved = (_sample(self._probe) == before).all()
        now = [p.grad for p in self._first_parameters()]
        self._grad_kept = any(a is not None and a is b for a, b in zip(held, now, strict=True))
        return loss

    def suspicion(self, replayed: ReplayedStep) -> str:
        """What may be wrong in the step just watched, as ``Origin.operator`` names it; or empty.

        Args:
            replayed: what the step came to.
        """
        events, log = self._watch.events, replayed.log
        before, self._scale = self._scale, None if log is None else self._scale_after(events)
        found = (
            self._state_lost(events),
            self._scaled(events),
            _skipped_inside(events),
            _schedule_ahead(events),
            self._reset(events, before),
            "zero_grad" if self._grad_kept and not events.cleared else "",
            self._rounded(events),
        )
        return next((name for name in found if name), "")

    def _state_lost(self, events: StepEvents) -> str:
        for call in events.optimizers:
            had = self._filled.get(id(call.optimizer), (0, -1.0))
            if call.filled[0] < had[0] or call.filled[1] < had[1]:
                return "resume"
        moved = zip(self._moves, schedule_moves(self._training), strict=False)
        return "resume" if any(0 <= after < before for before, after in moved) else ""

    def _scaled(self, events: StepEvents) -> str:
        """A clip or an optimizer that got gradients which are still scaled."""
        if not events.scalers or all(float(scale) == 1 for _, scale in events.scalers.values()):
            return ""
        if any(clip.scaled and clip.max_norm < float(clip.norm) for clip in events.clips):
            return "clip"
        past = any(call.scaler is None and not call.unscaled for call in events.optimizers)
        return "optimizer" if past else ""

    def _reset(self, events: StepEvents, before: float | None) -> str:
        """The scale that the step used is not the one that the step before left."""
        scales = [float(scale) for _, scale in events.scalers.values()]
        return "resume" if before is not None and scales and scales[0] != before else ""

    def _scale_after(self, events: StepEvents) -> float | None:
        scaler = next((scaler for scaler, _ in events.scalers.values()), None)
        return None if scaler is None or scaler._scale is None else float(scaler._scale)

    def _rounded(self, events: StepEvents) -> str:
        """A whole sample of half-precision weights did not move in a step with a rate."""
        if self._unmoved is None or not any(r > 0 for c in events.optimizers for r in c.rates):
            return ""
        return "optimizer rounding" if bool(self._unmoved) else ""

    def _first_parameters(self) -> list[Tensor]:
        """The first trained parameter of every optimizer stands for all of it."""
        groups = [o.param_groups[0]["params"] for o in self._training.optimizers if o.param_groups]
        return [params[0] for params in groups if params]


def _skipped_inside(events: StepEvents) -> str:
    """A fused optimizer that skips in its kernel while the user's hooks count a step."""
    for call in events.optimizers:
        counted = call.found_inf is not None and hooks_of_users(call.optimizer)
        if counted and call.skipped_inside:
            return f"_fused_{type(call.optimizer).__name__.lower()}_"
    return ""


def _schedule_ahead(events: StepEvents) -> str:
    """A schedule that moved while its optimizer, which the scaler was asked to step, did not."""
    asked = {id(optimizer) for optimizer, _ in events.scaled_steps}

    def took(call: OptimizerCall, optimizer: Optimizer) -> bool:
        return call.optimizer is optimizer and not call.skipped_inside

    for moved in events.schedulers:
        optimizer = moved.optimizer
        if optimizer is None or id(optimizer) not in asked:
            continue
        if not any(took(call, optimizer) for call in events.optimizers):
            return "lr_scheduler.step"
    return ""


def _largest_half(training: Training) -> Tensor | None:
    """The largest trained half-precision parameter; None where there is none."""
    params = [p for o in training.optimizers for group in o.param_groups for p in group["params"]]
    half = [p for p in params if p.dtype in _HALVES and p.requires_grad]
    return max(half, key=lambda p: p.numel(), default=None)


def _sample(tensor: Tensor) -> Tensor:
    flat = tensor.detach().reshape(-1)
    return flat[:: max(1, flat.numel() // _PROBE)]
