"""What is found in one step, proven: again, which samples, does it persist, what mends it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from forensics.diagnose.bisection_result import FaultKind, Growth, Origin, Persistence
from forensics.replay.applied.kept_gradients import kept_note
from forensics.replay.proof.persistence import persistence
from forensics.replay.proof.what_if import what_if, what_if_applied, what_if_from
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session
from forensics.replay.suspects import Audit, again, guilty_samples
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.step_forensics import examine, examine_step

Keep = Callable[[MemoryState], None]
_NO_DATA = frozenset({Phase.UNSCALE, Phase.CLIP, Phase.OPTIMIZER, Phase.SCHEDULER, Phase.EMA})


@dataclass(kw_only=True)
class Proof:
    """A fault that was found, and what is needed to prove it.

    Attributes:
        session: to replay with.
        before: the state just before the bad step; let go of when it is needed no more.
        bad: the step as it went bad in the replay; None for a fault of what was applied.
        origin: where in the step; None where the trace could not tell.
        growth: what grew until then, or None.
        is_bad: judges trials.
        audit: for a fault of what was applied: tells it of the next step.
        progress: told what is under way.
        notes: taken further.
        found: fields of the result, filled as they come.
    """

    session: Session
    before: MemoryState | None
    bad: ReplayedStep | None
    origin: Origin | None
    growth: Growth | None = None
    is_bad: RowJudge
    audit: Audit | None = None
    progress: Callable[[str, int, int], None]
    notes: list[str] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)

    def prove(self, *, trials: bool, further_steps: int, keep: Keep | None = None) -> None:
        """Replay the step again and again, and fill in the answers.

        Args:
            trials: try changes, too.
            further_steps: steps that each change is tried for.
            keep: writes a capsule of the state before the step.
        """
        step = self._state.step
        self._again()
        self.found["raised"] = self.bad is not None and bool(self.bad.exception)
        if self.audit is None and self.found["reproduces"] is not None and self._is_of_data():
            self._samples()
        if keep is not None:
            self.progress("writing the capsule", 0, 0)
            keep(self._state)
        trials = trials and self.found["reproduces"]
        if trials:
            self._what_if(further_steps)
        self._persistence()  # last of those that need the state: it copies others on its way
        if trials and self.audit is None:
            self._what_if_from(step, further_steps)

    @property
    def _state(self) -> MemoryState:
        assert self.before is not None
        return self.before

    def _again(self) -> None:
        self.progress("again, unchanged", 0, 3)
        seen = again(self.session, self._state, is_bad=self.is_bad, audit=self.audit)
        self.found.update(reproduces=seen.reproduces, replays=seen.replays)
        if seen.reproduces and not seen.alike:
            self.notes.append("the replays of the bad step are not bit-identical among themselves")
        if not seen.reproduces and self._comes_back_from_earlier():
            self.found["reproduces"] = None

    def _comes_back_from_earlier(self) -> bool:
        """Does it go bad again when trained from where the replay began, though not from here?"""
        first, step = self.found.get("replayed_from"), self._state.step
        if self.bad is None or first is None or first >= step:
            return False
        self.progress("again, from an earlier state", 0, 0)
        session = self.session
        begin = session.go_to(first)
        while session.step_index < step:
            session.run_step(check_state=False)
        examined = examine(session)
        if examined.replayed is None or not self.is_bad(examined.replayed):
            return False
        self.origin = self.origin or examined.origin
        self.found["origin"] = self.origin
        self.notes.append(
            f"it does not come back from the state just before step {step:,}, but trained from "
            f"step {begin:,} it does each time: the recipe keeps state of its own (an attribute, a "
            "hidden state that is not detached) that no saved state holds; keep it in "
            "Training(extra=…), or mend it there"
        )
        return True

    def _samples(self) -> None:
        self.progress("which samples", 0, 0)
        guilty = guilty_samples(
            self.session,
            self._state,
            is_bad=self.is_bad,
            as_in=self.bad,
            grew=self.growth is not None,
        )
        self.found.update(samples=guilty.samples, batch_size=guilty.batch_size)
        if guilty.note:
            self.found["samples_note"] = guilty.note

    def _persistence(self) -> None:
        log = None if self.bad is None else self.bad.log
        skipped = log is not None and log.skipped and self.found["reproduces"]
        kept = kept_note(self.session, self._state) if skipped else ""
        self.progress("does it persist", 0, 0)
        state = [self._state]
        self.before = None
        self.found["persistence"] = persistence(
            self.session,
            state.pop(),  # the callee alone holds it, and lets go of it
            origin=self.origin,
            growth=self.growth,
            reproduces=self.found["reproduces"],
            is_bad=self.is_bad,
            audit=self.audit or examine_step,
        )
        if kept and self.found["persistence"] is Persistence.PERSISTENT:
            self.notes.append(kept)

    def _what_if(self, further_steps: int) -> None:
        if self.audit is None:
            self.found["what_if"] = what_if(
                self.session,
                self._state,
                samples=self.found.get("samples", ()),
                further_steps=further_steps,
                is_bad=self.is_bad,
                announce=self._announce,
            )
        elif self.origin is not None:
            self.found["what_if"] = what_if_applied(
                self.session, self._state, self.origin, announce=self._announce
            )
        self._say_what_stays()

    def _what_if_from(self, step: int, further_steps: int) -> None:
        """What must begin earlier, where the fault grew or lasts: the state is let go of by now."""
        grew = self.growth is not None or self._is(FaultKind.GROWTH)
        lasts = self.found["persistence"] is Persistence.PERSISTENT
        if not grew and (not lasts or self.found["raised"]):
            return  # what raises without a growth is no matter of rates
        root = self.found.get("root_step")
        early = what_if_from(
            self.session,
            step if root is None else root,
            step,
            further_steps=further_steps,
            is_bad=self.is_bad,
            known_from=self.found.get("replayed_from"),
            announce=self._announce,
        )
        self.found["what_if"] = (*self.found["what_if"], *early)
        self._say_what_stays()

    def _say_what_stays(self) -> None:
        """Where a condition was asked for, a trial that does not meet it is more than finite."""
        trials = self.found.get("what_if", ())
        self.found["what_if"] = tuple(replace(t, stays=self.is_bad.stays) for t in trials)

    def _is_of_data(self) -> bool:
        """May a sample be to blame? What raises after backward was handed none."""
        raised = self._is(FaultKind.EXCEPTION)
        return not (raised and self.origin is not None and self.origin.phase in _NO_DATA)

    def _announce(self, text: str) -> None:
        self.progress(f"what if: {text}", 0, 0)

    def _is(self, kind: FaultKind) -> bool:
        return self.origin is not None and self.origin.kind is kind
