"""One bisection, step by step: log, saved states, replay, trace, proof.

What is known so far is kept as it comes, for an interrupt may come any time and still gets an
answer.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    Departure,
    FaultKind,
    Origin,
    Persistence,
)
from forensics.errors import ForensicsError
from forensics.replay.bisect_options import Options
from forensics.replay.bisection import Judgement
from forensics.replay.bisection_answer import answer_of, looked_at, outside_origin
from forensics.replay.capsule.writing import write_capsule
from forensics.replay.checkpoint_health import judge_state
from forensics.replay.detection import Detector, Passage
from forensics.replay.flip import find_hit
from forensics.replay.growth import as_growth, growth_of
from forensics.replay.location import (
    Range,
    stand_before,
    stretch,
    unlogged_stretch,
)
from forensics.replay.memory_state import MemoryState
from forensics.replay.narrowing import Suspicion, narrow
from forensics.replay.parameter_norms import norms_until
from forensics.replay.proof import Proof
from forensics.replay.replayed_step import ReplayedStep
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session, open_session
from forensics.replay.silent_faults import SilentFault, SilentSearch
from forensics.replay.start_states import StateSearch, search_states
from forensics.replay.step_forensics import audit_step, examine_step
from forensics.replay.suspects import Audit
from forensics.replay.sweep import is_affordable, sweep
from forensics.runlog.checkpoint_files import CheckpointInfo
from forensics.runlog.run import Run

EARLIER_STARTS = 2
"""Earlier states that are tried where a fault does not come back from the newest one."""


class Inquiry:
    """One bisection under way; what is known so far is kept, for an interrupt may come any time."""

    def __init__(self, run: Run, options: Options) -> None:
        self.run, self.options = run, options
        self.found: dict[str, Any] = {}
        self.notes: list[str] = []
        self.detector: Detector | None = None
        self.suspicion = Suspicion()
        self.states = StateSearch()
        self.judge = RowJudge(options.predicate)
        self.sound: list[int] = []

    def result(self) -> BisectionResult:
        """Bisect; an interrupt ends it with what is known.

        Raises:
            NotReplayableError: the run cannot be trained again here.
        """
        options = self.options
        self.suspicion = narrow(
            self.run,
            options.predicate,
            from_step=options.from_step,
            until_step=options.until_step,
        )
        self.judge = RowJudge(options.predicate, self.suspicion.strict)
        try:
            with open_session(
                self.run,
                recipe=options.recipe,
                device=options.device,
                tolerance=options.tolerance,
                say=self.notes.append,
            ) as session:
                self._bisect(session)
        except KeyboardInterrupt:
            self._interrupted()
        return self.answer()

    # -- the way to the bad step ---------------------------------------------------------------

    def _bisect(self, session: Session) -> None:
        self.found.update(tolerance=session.tolerance, cross_device=session.cross_device)
        self._search_states()
        wanted = stretch(
            self.suspicion,
            self.states,
            last_step=self._last_step(session),
            from_step=self.options.from_step,
        )
        if wanted is None and not self.judge.by_state:
            wanted = unlogged_stretch(
                self.suspicion,
                last_step=self._last_step(session),
                from_step=self.options.from_step,
            )
            if wanted is None:
                self.found.update(status=BisectStatus.HEALTHY, reason=self.looked_at())
                return
        if wanted is None:
            self._silent(session)
            return
        self.found["reason"] = self._went_by(wanted)
        passage = self._replay_from_earlier(session, wanted, self._replay(session, wanted))
        if passage.bad is not None and passage.before is not None:
            self._located(session, passage)
        else:
            self._not_reproduced(session, passage)

    def _search_states(self) -> None:
        """Judge the saved states, by their health files where there are some."""

        def test(info: CheckpointInfo) -> Judgement:
            self._progress("looking into saved states", 0, 0)
            return judge_state(info.path, root=self.run.path)

        if self.judge.by_state:
            self.states = search_states(
                self.run.checkpoints,
                test,
                not_after=self.suspicion.step
                if self.suspicion.step is not None
                else self.options.until_step,
                not_before=self.options.from_step,
            )
        else:
            self.states = search_states(self.run.checkpoints, test, not_after=-1)
        if self.states.contradictions:
            steps = ", ".join(f"{step:,}" for step in self.states.contradictions[:3])
            self.notes.append(
                f"the state of step {steps} is sound although an older one is not: "
                "the history is not monotone, and the first bad state was taken"
            )

    def _last_step(self, session: Session) -> int:
        until = self.options.until_step
        return session.config.steps - 1 if until is None else until

    def _went_by(self, wanted: Range) -> str:
        """What led to the stretch that is replayed."""
        if not wanted.marks and not self.judge.by_state:
            return f"no row of the log tells; step {self.suspicion.unlogged:,} has none"
        bad_state, step = self.states.first_bad, self.suspicion.step
        if bad_state is not None and (step is None or bad_state <= step):
            return f"the saved state of step {bad_state:,} is the first bad one"
        sound = self.states.last_good is not None
        finite = "the saved states before it are finite: " if sound else ""
        return f"{finite}the log says {step:,}: {self.suspicion.why}"

    def _replay(self, session: Session, wanted: Range) -> Passage:
        self.detector = stand_before(session, wanted, self.judge, self._on_step)
        passage = self.detector.run(wanted.until, marks=wanted.marks)
        self._take(passage)
        return passage

    def _replay_from_earlier(self, session: Session, wanted: Range, first: Passage) -> Passage:
        """Once more from earlier states where the fault does not come back: a state may lack it.

        What is between two states (gradients that a loop keeps, how far a scaler is) is in none.
        """
        passage = first
        for _ in range(EARLIER_STARTS):
            gone = passage.departure
            at_once = gone is None or gone.step == passage.first
            if passage.bad is not None or passage.first == 0 or not at_once:
                break
            earlier = self._replay(session, replace(wanted, start=passage.first - 1))
            if earlier.bad is not None:
                self.notes.append(
                    f"from the saved state of step {passage.first:,} it does not come back: "
                    "that state lacks what the fault depends on"
                )
            passage = earlier
        return passage

    def _take(self, passage: Passage) -> None:
        self.found.update(
            replayed_from=passage.first,
            replayed_until=passage.last,
            compared=passage.compared,
            faithful_until=passage.faithful_until,
            departure=passage.departure,
        )

    # -- what is found there -------------------------------------------------------------------

    def _located(self, session: Session, passage: Passage) -> None:
        assert passage.bad is not None
        assert passage.before is not None
        step, recorded = passage.bad.step, self.suspicion.step
        gone = passage.departure
        if gone is not None and recorded is not None and step != recorded and gone.step < step:
            self._went_its_own_way(gone, step, recorded)
            return
        self.found.update(status=BisectStatus.LOCATED, first_bad_step=step, root_step=step)
        self._progress("tracing the bad step", 0, 1)
        session.restore(passage.before)
        origin = examine_step(session)
        growth = growth_of(self.run, step, origin)
        if growth is None and origin is not None and origin.parameter:
            norms = norms_until(session, passage.before)
            growth = growth_of(self.run, step, origin, norms)
        if growth is not None:
            origin = None if origin is None else as_growth(origin, growth)
            self.found.update(growth=growth, root_step=growth.since_step)
        self.found["origin"] = origin
        before, passage.before = passage.before, None  # one holder, so that it can be let go of
        self._prove(session, before, passage.bad, origin)

    def _went_its_own_way(self, gone: Departure, step: int, recorded: int) -> None:
        """The replay left the record and went bad elsewhere: the record has the say."""
        self.found.update(status=BisectStatus.LOCATED, first_bad_step=recorded, root_step=recorded)
        self.notes.append(
            f"the replay leaves the record at step {gone.step:,} and goes bad at {step:,}, "
            f"where the record does at {recorded:,}: no operator is claimed"
        )

    def _prove(
        self,
        session: Session,
        before: MemoryState | None,
        bad: ReplayedStep | None,
        origin: Origin | None,
        audit: Audit | None = None,
    ) -> None:
        wanted = self.options.capsule
        proof = Proof(
            session=session,
            before=before,
            bad=bad,
            origin=origin,
            growth=self.found.get("growth"),
            audit=audit,
            is_bad=self.judge.only_at(self.found["first_bad_step"]),
            progress=self.options.progress,
            notes=self.notes,
            found=self.found,
        )
        del before
        proof.prove(
            trials=self.options.what_if,
            further_steps=self.options.further_steps,
            keep=None if wanted is None else lambda state: self._keep(session, state, wanted),
        )

    def _keep(self, session: Session, before: MemoryState, directory: Path) -> None:
        """Write the capsule; where that fails, the answer says why and goes on."""
        try:
            made = write_capsule(directory, session, before, self.answer())
        except ForensicsError as error:
            self.notes.append(f"no capsule: {error.line()}")
            return
        self.found.update(capsule=str(made.path), capsule_bytes=made.size)
        self.notes += [f"capsule: {note}" for note in made.notes]

    def _not_reproduced(self, session: Session, passage: Passage) -> None:
        """The record went bad where the replay does not."""
        recorded = self.suspicion.step
        gone = passage.departure
        if passage.unstable is not None:
            self.notes.append(
                f"step {passage.unstable:,} went bad in one replay and not in the next from the "
                "same state: something is not deterministic"
            )
        if recorded is None and not self.judge.by_state:
            self.found.update(status=BisectStatus.HEALTHY, reason=self.looked_at())
            return
        if recorded is None:
            self.found.update(
                status=BisectStatus.NOT_BISECTABLE,
                reason=f"{self.found['reason']}, and the replay up to it stays sound",
            )
            return
        self.found.update(
            status=BisectStatus.LOCATED,
            reproduces=False,
            replays=1,
            persistence=Persistence.TRANSIENT,
            first_bad_step=recorded if gone is None else min(gone.step, recorded),
        )
        self.found["root_step"] = self.found["first_bad_step"]
        if session.tolerance == 0 and gone is not None:
            self.found["origin"] = self._from_outside(session, gone, recorded)

    def _from_outside(self, session: Session, gone: Departure, recorded: int) -> Origin:
        """The record was made of other values than the program makes: which one was changed?"""
        hit = find_hit(session, gone.step)
        return outside_origin(hit, gone, recorded, session.recorded(recorded) or {})

    def _silent(self, session: Session) -> None:
        """Nothing is bad in the log and in the states: is what was applied right?"""
        search = SilentSearch(session=session, audit=audit_step, progress=self._progress)
        fault = search.find(self._worth_a_look(session))
        self.sound = search.sound
        if fault is not None:
            self._silently_located(session, fault)
        elif self.suspicion.root is None and is_affordable(self.run):
            self._sweep(session)
        else:
            self._nothing_found()

    def _silently_located(self, session: Session, fault: SilentFault) -> None:
        self.found.update(
            status=BisectStatus.LOCATED,
            reason=f"{self.looked_at()}; what was applied was checked",
            first_bad_step=fault.step,
            root_step=fault.step,
            origin=fault.origin,
        )
        self._prove(session, fault.before, None, fault.origin, audit=audit_step)

    def _sweep(self, session: Session) -> None:
        """Replay every step: an optimizer may have lost its state where no row shows it."""
        last = min(self._last_step(session), int(self.run.steps.step[-1]))
        passage, watch = sweep(session, self.judge, last, self._on_step)
        self._take(passage)
        bad, before = passage.bad, passage.before
        if bad is None or before is None:
            self._swept(session, passage)
        elif bad.bad or bad.exception or not watch.fired:
            self.found["reason"] = f"step {bad.step:,} goes bad in the replay"
            self._located(session, passage)
        else:
            session.restore(before)
            origin = audit_step(session, before=before)
            if origin is None:
                self._nothing_found()
            else:
                fault = SilentFault(step=bad.step, origin=origin, before=before)
                self._silently_located(session, fault)

    def _swept(self, session: Session, passage: Passage) -> None:
        """No step of the replay is bad; is it the record?"""
        gone = passage.departure
        hit = find_hit(session, gone.step) if gone is not None and not session.tolerance else None
        if gone is None or hit is None or hit.bit is None:
            self._nothing_found()
            return
        self.found.update(
            status=BisectStatus.LOCATED,
            reason=f"{self.looked_at()}; the replay is not the record",
            first_bad_step=gone.step,
            root_step=gone.step,
            reproduces=False,
            replays=1,
            persistence=Persistence.TRANSIENT,
            origin=outside_origin(hit, gone, gone.step, session.recorded(gone.step) or {}),
        )

    def _worth_a_look(self, session: Session) -> list[int]:
        """Steps to look into: the first and the last state, and what the log points at."""
        first = self.options.from_step or 0
        until = self.options.until_step
        last = session.config.steps - 1 if until is None else until
        ends = [first, max(state for state in session.states() if state <= last)]
        return [step for step in (*ends, *self.suspicion.audits) if first <= step <= last]

    def _nothing_found(self) -> None:
        """Healthy, unless the report says otherwise of the run."""
        root, reason = self.suspicion.root, self.looked_at()
        if root is None:
            self.found.update(status=BisectStatus.HEALTHY, reason=reason)
            return
        told = f"the report's root is {root.rule}, from step {root.first_step:,} on"
        growth = growth_of(self.run, root.last_step, None)
        if growth is None:
            self.found.update(
                status=BisectStatus.NOT_BISECTABLE, reason=f"{reason}. But {told}: {root.message}"
            )
            return
        self.found.update(
            status=BisectStatus.LOCATED,
            reason=f"{reason}; but {told}",
            first_bad_step=root.first_step,
            root_step=growth.since_step,
            growth=growth,
            origin=Origin(
                kind=FaultKind.GROWTH,
                phase="",
                operator="growth",
                summary=f"Nothing has overflowed yet. {root.message}.",
            ),
        )

    def looked_at(self) -> str:
        """What was looked at, where nothing is bad."""
        text = self.options.predicate.text
        return looked_at(self.suspicion, self.states, self.sound, condition=text)

    # -- how it ends ---------------------------------------------------------------------------

    def _on_step(self, first: int, step: int, last: int) -> None:
        self._progress(f"replaying {first:,} → {last:,}", step - first, last - first + 1)

    def _progress(self, text: str, done: int, total: int) -> None:
        self.options.progress(text, done, total)

    def _interrupted(self) -> None:
        located = self.found.get("status") is BisectStatus.LOCATED
        reason = "stopped before it was all proven" if located else "stopped"
        if not located and self.detector is not None:
            passage = self.detector.passage
            self._take(passage)
            reason = f"stopped at step {passage.last + 1:,}"
            if passage.last >= passage.first:
                self.notes.append(
                    f"Steps {passage.first:,} to {passage.last:,} were replayed and are sound."
                )
        self.found.update(status=BisectStatus.PARTIAL, reason=reason)

    def answer(self) -> BisectionResult:
        """What is known by now."""
        fields = {"checkpoints": self.states.verdicts, **self.found}
        return answer_of(self.run, self.options, self.suspicion, fields, self.notes)
