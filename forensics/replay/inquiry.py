"""One bisection, step by step: log, saved states, replay, trace, proof.

What is known so far is kept as it comes, for an interrupt may come any time and still gets an
answer.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    Departure,
    FaultKind,
    Origin,
    Persistence,
)
from forensics.diagnose.wording import steps as step_count
from forensics.errors import ForensicsError
from forensics.replay.bad import NONFINITE, BadPredicate
from forensics.replay.bisection import Judgement
from forensics.replay.capsule.writing import write_capsule
from forensics.replay.checkpoint_health import judge_state
from forensics.replay.detection import Detector, Passage
from forensics.replay.location import Range, stand_before, stretch
from forensics.replay.memory_state import MemoryState
from forensics.replay.narrowing import Suspicion, narrow
from forensics.replay.proof import Proof
from forensics.replay.remedy import remedies
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session, open_session
from forensics.replay.start_states import StateSearch, search_states
from forensics.replay.step_forensics import examine_step
from forensics.runlog.checkpoint_files import CheckpointInfo
from forensics.runlog.run import Run

Progress = Callable[[str, int, int], None]
"""Told what is under way in a few words, how much of it is done, and how much there is in all."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the caller of ``bisect_run`` asked for; attributes as there."""

    predicate: BadPredicate
    recipe: str | None
    from_step: int | None
    until_step: int | None
    what_if: bool
    further_steps: int
    tolerance: float | None
    device: str | None
    capsule: Path | None
    progress: Progress


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
        if wanted is None:
            self._silent(session)
            return
        self.found["reason"] = self._went_by()
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
        return session.config.steps if until is None else until

    def _went_by(self) -> str:
        """What led to the stretch that is replayed."""
        bad_state, step = self.states.first_bad, self.suspicion.step
        if bad_state is not None and (step is None or bad_state <= step):
            return f"the saved state of step {bad_state:,} is the first bad one"
        sound = self.states.last_good is not None
        finite = "the saved states before it are finite: " if sound else ""
        return f"{finite}the log says {step:,}: {self.suspicion.why}"

    def _replay(self, session: Session, wanted: Range) -> Passage:
        def on_step(first: int, step: int, last: int) -> None:
            self._progress(f"replaying {first:,} → {last:,}", step - first, last - first + 1)

        self.detector = stand_before(session, wanted, self.judge, on_step)
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
        self.found["origin"] = origin
        self._prove(session, passage, origin)

    def _went_its_own_way(self, gone: Departure, step: int, recorded: int) -> None:
        """The replay left the record and went bad elsewhere: the record has the say."""
        self.found.update(status=BisectStatus.LOCATED, first_bad_step=recorded, root_step=recorded)
        self.notes.append(
            f"the replay leaves the record at step {gone.step:,} and goes bad at {step:,}, "
            f"where the record does at {recorded:,}: no operator is claimed"
        )

    def _prove(self, session: Session, passage: Passage, origin: Origin | None) -> None:
        before, passage.before = passage.before, None  # one holder, so that it can be let go of
        wanted = self.options.capsule
        proof = Proof(
            session=session,
            before=before,
            bad=passage.bad,
            origin=origin,
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
        del session
        return Origin(
            kind=FaultKind.NAN,
            phase="outside",
            operator="outside",
            summary=f"The replay is bit-identical up to step {gone.step - 1:,} and sound at "
            f"{recorded:,}: from step {gone.step:,} on the record was made of other values. "
            "Hardware, data or code that the recording does not know changed them.",
        )

    def _silent(self, session: Session) -> None:
        """Nothing is bad in the log and in the states: is what was applied right?"""
        del session
        self.found.update(status=BisectStatus.HEALTHY, reason=self.looked_at())

    def looked_at(self) -> str:
        """What was looked at, where nothing is wrong."""
        rows, states = self.suspicion.rows, self.states.verdicts
        tested = sum(state.verdict == "good" for state in states)
        text = f"nothing is bad in {rows:,} {'row' if rows == 1 else 'rows'}"
        if tested:
            text += f" and {tested:,} saved {'state' if tested == 1 else 'states'}"
        if self.suspicion.routine:
            text += f"; {step_count(self.suspicion.routine)} skipped: the loss scaler at work"
        return text

    # -- how it ends ---------------------------------------------------------------------------

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
        fields.setdefault("status", BisectStatus.NOT_BISECTABLE)
        step = fields.get("first_bad_step")
        if step is not None:
            fields["remedy"] = self._remedy(fields, step)
        fields["notes"] = tuple(dict.fromkeys(self.notes))
        fields["next_command"] = self._next(fields)
        return BisectionResult(path=str(self.run.path), **fields)

    def _remedy(self, fields: Mapping[str, Any], step: int) -> tuple[str, ...]:
        row = next(iter(np.flatnonzero(self.run.steps.step == step)), None)
        skips = "skipped" in self.run.steps and row is not None
        return remedies(
            fields.get("origin"),
            fields.get("growth"),
            fields.get("what_if", ()),
            first_bad_step=step,
            samples=fields.get("samples", ()),
            reproduces=fields.get("reproduces"),
            persistence=fields.get("persistence", Persistence.UNKNOWN),
            skipped=bool(skips and self.run.steps["skipped"][row]),
            checkpoints=self.states.verdicts,
        )

    def _next(self, fields: Mapping[str, Any]) -> str:
        """The one command that brings the reader further."""
        run = shlex.quote(str(self.run.path))
        if fields.get("capsule"):
            return f"forensics capsule run {shlex.quote(fields['capsule'])}"
        if fields["status"] is BisectStatus.PARTIAL:
            return f"forensics bisect {run}{self._asked()}"
        if fields.get("reproduces"):
            name = f"capsule-{fields['first_bad_step']}"
            folder = shlex.quote(str(self.run.path / name))
            return f"forensics bisect {run}{self._asked()} --no-what-if --capsule {folder}"
        return ""

    def _asked(self) -> str:
        """The options that were given and that the next command needs again."""
        options = self.options
        given = {
            "--recipe": options.recipe,
            "--bad": None if options.predicate.text == NONFINITE else options.predicate.text,
            "--from": options.from_step,
            "--until": options.until_step,
            "--device": options.device,
        }
        parts = [f"{k} {shlex.quote(str(v))}" for k, v in given.items() if v is not None]
        return "".join(f" {part}" for part in parts)
