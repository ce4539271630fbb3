"""Faults that no number shows: steps worth a look are replayed, and what they applied is checked.

A look into a step costs some tens of plain steps, so it is taken where something may be wrong: at
the first state, where the report has a finding, where a run was resumed, where a scaler skipped,
and at the last state. A fault that also shows in the step before has begun earlier: it is dated by
halving, between it and the last step that was found sound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from forensics.diagnose.bisection_result import Origin
from forensics.replay.applied.average_look import AverageLook
from forensics.replay.applied.averages import average_note, still_note
from forensics.replay.applied.coverage import idle_note, schedule_note, without_gradient
from forensics.replay.applied.mode_watch import Modes, mode_note, watching_modes
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.session import Session
from forensics.replay.tracing.step_forensics import audit

OnStep = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class SilentFault:
    """A step that applied what it should not have.

    Attributes:
        step: its index.
        origin: what is wrong in it.
        before: the state just before it.
    """

    step: int
    origin: Origin
    before: MemoryState


@dataclass(kw_only=True)
class SilentSearch:
    """The search for a fault with nothing non-finite in it.

    Attributes:
        session: to replay with.
        progress: told what is under way.
        sound: steps that were looked into and found sound, ascending.
        schedule: a sentence about a schedule that moves more often than once a step, or empty.
        idle: parameters that got no gradient, by step that was looked into and taken.
        modes: in which modes the modules computed, by step that was looked into.
        average: a sentence about a moving average that is updated at an odd time, or empty.
        averages: how it stood, by step that was looked into.
    """

    session: Session
    progress: OnStep
    sound: list[int] = field(default_factory=list)
    schedule: str = ""
    idle: dict[int, frozenset[str]] = field(default_factory=dict)
    modes: dict[int, Modes] = field(default_factory=dict)
    average: str = ""
    averages: dict[int, AverageLook] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        """What is no fault for certain, but worth a word."""
        notes = (
            self.schedule,
            mode_note(self.modes),
            idle_note(self.idle),
            self.average or still_note(self.averages),
        )
        return [note for note in notes if note]

    def find(self, steps: Iterable[int]) -> SilentFault | None:
        """Look into these steps in ascending order; the first fault, dated, or None."""
        order = sorted(set(steps))
        for number, step in enumerate(order):
            self.progress(f"looking into step {step:,}", number, len(order))
            found = self.look_into(step)
            if found is not None:
                return self._dated(found)
            self.sound.append(step)
        return None

    def look_into(self, step: int) -> SilentFault | None:
        """The fault of one step, or None."""
        self._stand_before(step)
        before = self.session.capture()
        with watching_modes(self.session.model) as modes:
            examined = audit(self.session, before=before)
        self.modes[step] = modes
        if examined.origin is None:
            self.schedule = self.schedule or schedule_note(examined.facts)
            self.average = self.average or average_note(examined.facts)
            if (average := examined.facts.start.average) is not None:
                self.averages[step] = average
            if (idle := without_gradient(examined.facts)) is not None:
                self.idle[step] = idle
            return None
        return SilentFault(step=step, origin=examined.origin, before=before)

    def _stand_before(self, step: int) -> None:
        """Go there from a saved state, or from where the session stands if that is nearer."""
        session = self.session
        nearest = max(state for state in session.states() if state <= step)
        if not nearest <= session.step_index <= step:
            session.go_to(step)
        while session.step_index < step:
            session.run_step(check_state=False)

    def _dated(self, found: SilentFault) -> SilentFault:
        """The first step that shows the same fault, by halving down to the last sound step."""
        low = self.sound[-1] if self.sound else -1
        look_at = found.step - 1  # most faults of this kind are there from the first step, or once
        while found.step - low > 1:
            self.progress(f"dating it: step {look_at:,}", 0, 0)
            earlier = self.look_into(look_at)
            if earlier is not None and earlier.origin.operator == found.origin.operator:
                found = earlier
            else:
                low = look_at
            look_at = (low + found.step) // 2
        return found
