"""What a training loop of somebody else's did in one step, found out from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from forensics.record import loop_notes
from forensics.record.clipping import GradNorms, first_non_finite_grad, grad_norms
from forensics.record.given_loss import given_loss
from forensics.record.local_part import local_part
from forensics.record.loop_entries import (
    Entry,
    Stamps,
    entry_of,
    gradients_of,
    has_closure,
    post_clip_norm,
    scalars_of,
    stamps,
    take_scalars,
    unwritten,
)
from forensics.record.loop_notes import LoopNotes
from forensics.record.loop_order import LoopOrder, is_sound
from forensics.record.loop_scalers import LoopScalers, as_scalers
from forensics.record.measured_step import Named, merged, of_members
from forensics.record.parameters import ArrivalOrder, learning_rates
from forensics.record.readback import read_each, read_scalars
from forensics.record.seen_step import SeenStep
from forensics.record.step_log import SkipLog, StepLog
from forensics.record.untouched import Untouched
from forensics.runlog.schema import SKIP_NONFINITE_GRAD, SKIP_NONFINITE_LOSS, SKIP_OTHER

Measure = Callable[[Sequence[tuple[str, Tensor]], Sequence[Tensor]], GradNorms]
"""As ``grad_norms``: of named parameters, reading further scalars along."""

_WRITES_BY_STEP = 2
"""A clip and the unscaling inside ``scaler.step`` write each gradient once."""


class LoopWatch:
    """Tells, from hooks and from the scaler, whether and how a foreign loop stepped.

    An optimizer stepped when its ``step`` was entered and, for a fused one under a GradScaler,
    the ``found_inf`` that it was handed is 0: fused optimizers are always called and skip inside
    their kernel. The step counts as skipped when none stepped, or when one stayed behind because
    of non-finite gradients (its found_inf was seen, or the loss scale fell).

    Where ``gradients`` is given the loss, it reads all that a step needs at once. What remains is
    the norm after the clip. With ``defer`` that is read together with the gradients of the next
    step, and the row is handed out late, unless something in it is bad.

    Args:
        named_parameters: what the gradients are taken of; may be replaced when there are others.
        optimizers: those whose steps count.
        scaler: the loop's GradScaler, several of them, or None.
        measure_post_clip: take the norm again at optimizer entry, after the loop's own clip.
        max_norm: the threshold of the loop's clip, where it is known.
        first_step: index of the next step.
        arrival: in which order gradients arrive.
        notes: where wrong orders are counted.
        defer: wait for the device once a step only.
        shield: what keeps an error in a hook from the loop's ``optimizer.step()``.
        measure: takes the gradients where they are spread over ranks.

    Attributes:
        late: the row of the step before, now complete; whoever takes it sets None.
        repeated: steps so far in which one optimizer's ``step`` was called more than once.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, Tensor]],
        optimizers: Sequence[Optimizer],
        scaler: Any = None,
        *,
        measure_post_clip: bool = True,
        max_norm: float | None = None,
        first_step: int = 0,
        arrival: ArrivalOrder | None = None,
        notes: LoopNotes | None = None,
        defer: bool = False,
        shield: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
        measure: Measure | None = None,
    ) -> None:
        self._norms_of = measure
        self.parameters, self.optimizers = list(named_parameters), list(optimizers)
        self.arrival = arrival or ArrivalOrder(self.parameters)
        self.step_index = first_step
        self.notes = notes or LoopNotes()
        self.repeated = 0
        self.late: StepLog | None = None
        self._waiting: tuple[StepLog, list[Entry], float] | None = None
        self._measure, self._defer, self._shield = measure_post_clip, defer, shield
        self._scalers = LoopScalers(as_scalers(scaler), self.parameters[0][1].device)
        self._order = LoopOrder(self.notes, self._scalers, max_norm)
        self._untouched = Untouched(max_norm if len(self.optimizers) == 1 else None, first_step)
        self._applied: dict[int, Stamps] = {}
        self._inside: set[int] = set()
        self._hooks = [o.register_step_pre_hook(self._entered) for o in self.optimizers]
        self._leaving: dict[int, RemovableHandle] = {}
        scales = read_scalars(self._scalers.scales()) or [1.0]
        self._seen = SeenStep(learning_rates(self.optimizers), scales)

    @property
    def reapplied(self) -> int:
        """Steps in which an optimizer was handed the very same gradients again."""
        return self.notes.count(loop_notes.REAPPLIED)

    @property
    def first_reapplied(self) -> int | None:
        """The first such step, or None."""
        return self.notes.first(loop_notes.REAPPLIED)

    @property
    def norms(self) -> GradNorms | None:
        """Of the step under way, over all optimizers measured so far."""
        return self._seen.norms

    @property
    def waiting(self) -> bool:
        """Is the last row waiting for its norm after the clip?"""
        return self._waiting is not None

    @property
    def grads_scaled(self) -> bool:
        """Were gradients measured that are still multiplied by the loss scale?"""
        return any(scaled for _, scaled in self._seen.scaled.values())

    @property
    def closure(self) -> bool:
        """Did an optimizer evaluate the loss itself in the step under way?"""
        return any(entry.closure for entry in self._seen.entries)

    def gradients(
        self,
        loss: Tensor | float | None = None,
        optimizers: Optimizer | Iterable[Optimizer] | None = None,
    ) -> GradNorms:
        """Measure the gradients where the loop is about to clip them; one blocking read.

        Args:
            loss: of the step, where it is known already; it is read along.
            optimizers: whose gradients; by default those that have not been applied yet.
        """
        self.arrival.settle()
        loss = given_loss(loss, self._shield)
        seen, turn = self._seen, self._turn(optimizers)
        owners, found = self._scalers.found_infs(self.optimizers)
        scales = self._scalers.scales()
        given = [local_part(loss)] if isinstance(loss, Tensor) else []
        waiting = [] if self._waiting is None else scalars_of(self._waiting[1])
        members = of_members(self.parameters, self.optimizers, turn)
        norms = self._measured(members, [*scales, *found, *given, *waiting])
        values = iter(norms.alongside)
        seen.scales, seen.stale = [next(values) for _ in scales] or [1.0], False
        seen.overflowed |= {owner for owner in owners if next(values) > 0}
        if loss is not None:
            value = next(values) if given else float(loss)
            if seen.told(loss, value, {id(optimizer) for optimizer in turn}):
                self.notes.note(loop_notes.IN_TURN, self.step_index)
        self._complete(list(values))
        seen.lrs = learning_rates(self.optimizers)
        seen.norms = merged(seen.norms, norms, members)
        self._untouched.begin(norms)
        seen.turns |= {id(optimizer) for optimizer in turn}
        seen.measured += 1
        self._mark_scaled(turn, norms)
        return norms

    def end_step(self, loss: Tensor | float | None = None) -> StepLog | SkipLog:
        """What the step came to.

        Args:
            loss: of the step; not needed where ``gradients`` was given it.

        Returns:
            The row. Where ``waiting``, it still lacks the norm after the clip, and ``late`` holds
            all of it after the next ``gradients``.
        """
        seen, loss = self._seen, given_loss(loss, self._shield)
        after: list[float] | None = None
        try:
            self.resolve()  # no gradients() came between
            self.arrival.settle()
            late = self._order.clip.norms(seen.entries)
            if self._knows_all(loss) and not late:
                return self._known_step()
            mean_loss, after = self._read(loss, late)
            return self._log(mean_loss, after)
        finally:
            self._applied |= {id(e.optimizer): e.gradients for e in seen.entries}
            self._untouched.end(seen.entries)
            self.step_index += 1
            lrs, scales = learning_rates(self.optimizers), after or seen.scales
            self._seen = SeenStep(lrs, scales, stale=after is None)

    def resolve(self) -> None:
        """Read what a waiting row waits for, now."""
        if self._waiting is not None:
            self._complete(read_scalars(scalars_of(self._waiting[1])))

    def ended_by(self, error: BaseException) -> None:
        """Note what is wrong with the order of a loop that this error has ended."""
        self._order.ended_by(error, self.step_index, self._seen.entries, self.optimizers)

    def close(self) -> None:
        """Take all hooks away."""
        for hook in (*self._hooks, *self._leaving.values()):
            hook.remove()
        self.arrival.close()

    # -- hooks ----------------------------------------------------------------------------

    def _entered(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Pre-hook of every optimizer: nothing is read here, so nothing waits."""
        with self._shield("the hook of optimizer.step()"):
            if has_closure(args, kwargs):
                self._inside.add(id(optimizer))
                if id(optimizer) not in self._leaving:  # torch asks for these after the step
                    self._leaving[id(optimizer)] = optimizer.register_step_post_hook(self._left)
            else:
                self._note_entry(optimizer, closure=False)

    def _left(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Post-hook: what a closure computed and clipped within ``step`` is there only now."""
        with self._shield("the hook of optimizer.step()"):
            if has_closure(args, kwargs):
                self._inside.discard(id(optimizer))
                self._note_entry(optimizer, closure=True)

    def _note_entry(self, optimizer: Optimizer, *, closure: bool) -> None:
        seen = self._seen
        seen.lrs = learning_rates(self.optimizers)
        self._order.entered(self.step_index, optimizer, closure=closure)
        marks, scaled = seen.scaled.get(id(optimizer), ([], False))
        sole = len(self.optimizers) == 1
        if scaled and not sole and not unwritten(marks, gradients_of(optimizer), _WRITES_BY_STEP):
            seen.scaled[id(optimizer)] = (marks, False)  # those measured were others
        seen.entries.append(self._entry(optimizer, closure=closure))

    def _entry(self, optimizer: Optimizer, *, closure: bool) -> Entry:
        grads = gradients_of(optimizer)
        unscaled = getattr(optimizer, "grad_scale", None) is None
        at = self.step_index
        known = self._untouched.norms_of(grads, at) if self._measure and unscaled else None
        if self._untouched.in_full(at):
            known = None
        return entry_of(optimizer, grads, known, measure=self._measure, closure=closure)

    # -- gradients() ----------------------------------------------------------------------

    def _turn(self, chosen: Optimizer | Iterable[Optimizer] | None) -> list[Optimizer]:
        """Whose gradients are measured: those chosen, else those that no step has used yet."""
        seen = self._seen
        for optimizer in self.optimizers if self._scalers else ():
            self._scalers.meet(optimizer)
        if chosen is not None:
            return [chosen] if isinstance(chosen, Optimizer) else list(chosen)
        if self._inside:
            return self.optimizers
        if len(self.optimizers) == 1 and not seen.entries:
            self._order.asked(self.step_index, (), self.optimizers, seen.measured)
            return self.optimizers
        applied = self._applied | {id(e.optimizer): e.gradients for e in seen.entries}
        fresh = [
            o
            for o in self.optimizers
            if id(o) not in applied or not unwritten(applied[id(o)], gradients_of(o))
        ]
        entered = {id(entry.optimizer) for entry in seen.entries}
        waiting = [o for o in fresh if id(o) not in entered] or fresh
        self._order.asked(self.step_index, seen.entries, waiting, seen.measured)
        return waiting or self.optimizers

    def _measured(self, members: Named, alongside: Sequence[Tensor]) -> GradNorms:
        if self._norms_of is not None:
            return self._norms_of(members, alongside)
        return grad_norms(members, alongside, read_scalars if self._defer else read_each)

    def _mark_scaled(self, turn: Sequence[Optimizer], norms: GradNorms) -> None:
        """Whose gradients, of those just measured, are still multiplied by the loss scale."""
        if not self._scalers:
            return
        l2 = dict(zip(norms.names, norms.l2, strict=True))
        for optimizer in turn:
            own = of_members(self.parameters, self.optimizers, [optimizer])
            scaled = any(l2.get(name) for name, _ in own) and self._scalers.still_scaled(optimizer)
            marks = stamps(gradients_of(optimizer)) if scaled else []
            self._seen.scaled[id(optimizer)] = (marks, scaled)

    def _complete(self, values: Sequence[float]) -> None:
        """The row that waits, from what was read of its entries."""
        if self._waiting is not None:
            log, entries, factor = self._waiting
            take_scalars(entries, iter(values))
            self.late = replace(log, grad_l2_post_clip=post_clip_norm(entries, factor))
            self._waiting = None

    # -- end_step() -----------------------------------------------------------------------

    def _knows_all(self, loss: Tensor | float | None) -> bool:
        """Is all but the norm after the clip known, and the device worth not waiting for?"""
        seen = self._seen
        entered = {id(entry.optimizer) for entry in seen.entries}
        told = self.optimizers if self._scalers else ()
        return (
            self._defer
            and seen.loss_value is not None
            and (loss is None or loss is seen.loss)
            and {*entered, *map(id, told)} <= seen.turns
            and self._is_sound(seen.loss_value)
            and not seen.overflowed
        )

    def _known_step(self) -> StepLog | SkipLog:
        """The row without a read; all is finite, so no scaler has held an optimizer back."""
        seen = self._seen
        assert seen.loss_value is not None
        log = self._log(seen.loss_value, None)
        if isinstance(log, StepLog) and self._measure:
            log = replace(log, grad_l2_post_clip=None)
            self._waiting = (log, seen.entries, self._whole_over_own())
        return log

    def _read(
        self, loss: Tensor | float | None, late: list[Tensor]
    ) -> tuple[float | None, list[float]]:
        """Loss and scales, and what the entries still hold on the device: one blocking read."""
        seen = self._seen
        entries = seen.entries
        scales = self._scalers.scales()
        held = scalars_of(entries)
        given = [local_part(loss)] if isinstance(loss, Tensor) else []
        values = iter(read_scalars([*given, *scales, *held, *late]))
        mean_loss = seen.loss_value if loss is None else next(values) if given else float(loss)
        after = [next(values) for _ in scales] or [1.0]
        if seen.stale:
            seen.scales = after
        take_scalars(entries, values)
        self._order.clipped_late(self.step_index, entries, list(values))
        return mean_loss, after

    def _log(self, loss: float | None, after: list[float] | None) -> StepLog | SkipLog:
        """The row of the step, with the scales after it where they were read."""
        seen = self._seen
        calls = [id(entry.optimizer) for entry in seen.entries]
        self.repeated += len(calls) > len(set(calls))
        fell = after is not None and any(a < b for a, b in zip(after, seen.scales, strict=True))
        stepped = {id(entry.optimizer) for entry in seen.entries if not entry.overflowed}
        behind = {id(optimizer) for optimizer in self.optimizers} - stepped
        overflowed = seen.overflowed | {id(e.optimizer) for e in seen.entries if e.overflowed}
        held_back = bool(overflowed) or fell
        sound = self._is_sound(loss) and not held_back
        if stepped and not held_back and behind & self._applied.keys():  # it steps now and then
            self.notes.note(loop_notes.IN_TURN, self.step_index)
        self._order.ended(self.step_index, seen.entries, seen.measured, sound=sound)
        norms = seen.norms if seen.norms is not None and seen.norms.names else None
        common: dict[str, Any] = {
            "step": self.step_index,
            "lrs": seen.lrs,
            "loss": math.nan if loss is None else loss,
            "loss_known": loss is not None,
            "scaler_scale": seen.scales[0],
            "grad_l2_pre_clip": None if norms is None else norms.total,
            "norm_overflow": norms is not None and norms.overflowed,
            "grads_scaled": self.grads_scaled,
        }
        if not stepped or bool(behind and (overflowed & behind or fell)):
            return SkipLog(**common, skip_reason=self._reason(loss, held_back))
        post = post_clip_norm(seen.entries, self._whole_over_own()) if self._measure else None
        return StepLog(**common, grad_l2_post_clip=post)

    def _whole_over_own(self) -> float:
        """What a norm of this rank's own parts is multiplied by to be that of all."""
        return 1.0 if self._seen.norms is None else self._seen.norms.whole_over_own

    def _is_sound(self, loss: float | None) -> bool:
        norms = self._seen.norms
        return is_sound(loss, None if norms is None else norms.total) and not (
            norms is not None and norms.overflowed
        )

    def _reason(self, loss: float | None, overflowed: bool) -> str:
        """Why a step was skipped, as far as it can be seen."""
        norms = self._seen.norms
        if norms is not None and norms.nonfinite:
            return f"{SKIP_NONFINITE_GRAD}:{first_non_finite_grad(norms, self.arrival.names)}"
        if norms is None and loss is not None and not math.isfinite(loss):
            return SKIP_NONFINITE_LOSS
        return SKIP_NONFINITE_GRAD if overflowed else SKIP_OTHER
