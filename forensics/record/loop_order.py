"""Notices what a loop does in another order than it should, as far as hooks show it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch.optim import Optimizer

from forensics.record import loop_notes
from forensics.record.late_clip import LateClip
from forensics.record.loop_entries import Entry, applied_again, gradients_of
from forensics.record.loop_notes import LoopNotes
from forensics.record.loop_scalers import LoopScalers


class LoopOrder:
    """Keeps the notes of one loop.

    Args:
        notes: where they are counted.
        scalers: the loop's.
        max_norm: the threshold of its clip, where it is known.
    """

    def __init__(self, notes: LoopNotes, scalers: LoopScalers, max_norm: float | None) -> None:
        self.notes, self._scalers = notes, scalers
        self.clip = LateClip(max_norm)
        self._measured_ever = False

    def asked(
        self, step: int, entries: Sequence[Entry], waiting: Sequence[Optimizer], measured: int
    ) -> None:
        """``gradients`` is called, outside a closure.

        Args:
            step: the step under way.
            entries: the calls of optimizers in it so far.
            waiting: the optimizers whose gradients no call has used yet.
            measured: how often ``gradients`` was called in it before.
        """
        self._measured_ever = True
        if not entries:
            if measured:
                self.notes.note(loop_notes.REMEASURED, step)
            return
        if any(entry.closure for entry in entries):
            return
        if not any(gradients_of(optimizer) for optimizer in waiting):
            self.notes.note(loop_notes.LATE_GRADIENTS, step)
        elif measured and {id(o) for o in waiting} <= {id(e.optimizer) for e in entries}:
            self.notes.note(loop_notes.UNENDED, step)

    def entered(self, step: int, optimizer: Optimizer, *, closure: bool) -> None:
        """An optimizer is stepped."""
        self._scalers.meet(optimizer)
        if self._scalers.used and not closure and not self._scalers.knows_any():
            self.notes.note(loop_notes.BYPASSED, step)

    def ended(self, step: int, entries: Sequence[Entry], measured: int, *, sound: bool) -> None:
        """``end_step`` is called.

        Args:
            step: the step that ends.
            entries: the calls of optimizers in it, as read.
            measured: how often ``gradients`` was called.
            sound: nothing in the step is a reason to skip it.
        """
        if applied_again(entries):
            self.notes.note(loop_notes.REAPPLIED, step)
        if not entries:
            if sound and measured:
                self.notes.note(loop_notes.UNSTEPPED, step)
        elif not measured and not any(entry.closure for entry in entries):
            self.notes.note(loop_notes.UNMEASURED, step)

    def clipped_late(self, step: int, entries: Sequence[Entry], after: Sequence[float]) -> None:
        """The norms after the step, where ``clip`` wanted them; it presumes what it has seen."""
        if self.clip.judge(entries[0].l2 if entries else (), after):
            self.notes.note(loop_notes.LATE_CLIP, step)

    def ended_by(
        self,
        error: BaseException,
        step: int,
        entries: Sequence[Entry],
        optimizers: Sequence[Optimizer],
    ) -> None:
        """The loop has raised: was it the order that made it?"""
        entered = {id(entry.optimizer) for entry in entries}
        behind = [o for o in optimizers if id(o) not in entered]
        if any(self._scalers.awaits_update(optimizer) for optimizer in behind):
            self.notes.note(loop_notes.UNUPDATED, max(step - 1, 0))
        if isinstance(error, AssertionError) and "No inf checks were recorded" in str(error):
            self.notes.note(loop_notes.UPDATED_TWICE, step)


def is_sound(loss: float | None, norm: float | None) -> bool:
    """Are loss and norm finite, as far as they are known?"""
    return all(value is None or math.isfinite(value) for value in (loss, norm))
