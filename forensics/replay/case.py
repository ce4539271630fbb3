"""One bisection under way: what is known so far, and how a bad step that was found is proven.

What is known is kept as it comes, for an interrupt may come any time and still gets an answer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    Departure,
    Origin,
)
from forensics.errors import (
    ForensicsError,
    NoBatchError,
    NotReplayableError,
    TerminatedError,
)
from forensics.record.assembly import told
from forensics.record.listed_batches import may_be_one_batch
from forensics.replay.another_training import another, contradicts, is_another, own_way
from forensics.replay.bisect_options import Options
from forensics.replay.bisection_answer import answer_of, looked_at
from forensics.replay.capsule.one_rank import write_rank_capsule
from forensics.replay.capsule.writing import Capsule, write_capsule
from forensics.replay.detection import Detector, Passage
from forensics.replay.growth import as_growth, growth_of, may_have_grown
from forensics.replay.narrowing import Suspicion
from forensics.replay.no_batch import no_batch
from forensics.replay.parameter_norms import norms_until
from forensics.replay.proof.proving import Proof
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.rank_shares import RankShares
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session
from forensics.replay.start_states import StateSearch
from forensics.replay.suspects import Audit
from forensics.replay.tracing.step_forensics import behind_growth, examine
from forensics.replay.trainers.contract import names_a_maker
from forensics.runlog.run import Run


class Case:
    """What is known of one run.

    Attributes:
        run: that is bisected.
        options: what was asked for.
        found: fields of the result, as they come.
        notes: what else the user must know.
        suspicion: what the log says.
        states: what the saved states say.
        judge: tells bad steps.
        sound: steps that were looked into and found sound.
        detector: of the replay under way, or of the last one.
        shares: of the ranks that trained; None before there is a session.
    """

    def __init__(self, run: Run, options: Options) -> None:
        self.run, self.options = run, options
        self.found: dict[str, Any] = {}
        self.notes: list[str] = []
        self.suspicion = Suspicion()
        self.states = StateSearch()
        self.judge = RowJudge(options.predicate)
        self.sound: list[int] = []
        self.detector: Detector | None = None
        self.shares: RankShares | None = None

    def answer(self) -> BisectionResult:
        """What is known by now."""
        fields = {"checkpoints": self.states.verdicts, **self.found}
        if self.shares is not None:
            fields = self.shares.told(fields)
        return answer_of(self.run, self.options, self.suspicion, fields, self.notes)

    def looked_at(self, *, sound: bool = True) -> str:
        """What was looked at, where nothing is bad; ``sound``: the steps that were, too."""
        steps = self.sound if sound else ()
        text = self.options.predicate.text
        return looked_at(self.suspicion, self.states, steps, condition=text)

    def last_step(self, session: Session) -> int:
        """The last step that may be looked at."""
        until = self.options.until_step
        if until is not None:
            return until
        logged = int(self.run.steps.step[-1]) if len(self.run.steps) else 0
        return max(session.config.steps - 1, logged, self.suspicion.step or 0)

    def progress(self, text: str, done: int, total: int) -> None:
        """Say what is under way."""
        self.options.progress(text, done, total)

    def on_step(self, first: int, step: int, last: int) -> None:
        """Say that a step of a stretch is about to be replayed."""
        self.progress(f"replaying {first:,} → {last:,}", step - first, last - first + 1)

    def take(self, passage: Passage) -> None:
        """Keep what a stretch of replay came to."""
        self.found.update(
            replayed_from=passage.first,
            replayed_until=passage.last,
            compared=passage.compared,
            faithful_until=passage.faithful_until,
            departure=passage.departure,
        )

    def interrupted(self, stop: KeyboardInterrupt) -> None:
        """End with what is known; ``stop`` may say what else stopped it than the user."""
        why = str(stop)
        located = self.found.get("status") is BisectStatus.LOCATED
        reason = "stopped before it was all proven" if located else "stopped"
        if not located and self.detector is not None:
            passage = self.detector.passage
            self.take(passage)
            reason = f"stopped at step {passage.last + 1:,}"
            if passage.last >= passage.first:
                first, last = passage.first, passage.last
                told = (
                    f"Steps {first:,} to {last:,} were" if last > first else f"Step {first:,} was"
                )
                sound = "are" if last > first else "is"
                self.notes.append(f"{told} replayed and {sound} sound.")
        reason = f"{reason}: {why}" if why else reason
        terminated = isinstance(stop, TerminatedError)
        self.found.update(status=BisectStatus.PARTIAL, reason=reason, terminated=terminated)

    def located(self, session: Session, passage: Passage) -> bool:
        """The replay came to a bad step: trace it, find the root of a growth, and prove it.

        Returns:
            False where the loss scaler took in what is bad in it: the step did no damage.
        """
        assert passage.bad is not None
        assert passage.before is not None
        step = passage.bad.step
        if passage.departure is not None and self._is_not_the_record(session, passage):
            self.went_its_own_way(session, passage, passage.departure)
            return True
        self.found.update(status=BisectStatus.LOCATED, first_bad_step=step, root_step=step)
        if isinstance(passage.bad.error, NoBatchError):
            self._no_batch(session, passage.bad.error, step)
            return True
        _refuse_if_only_here(session, passage.bad)
        begin = self.options.from_step
        if begin is not None and step < begin:
            self.notes.append(
                f"step {begin:,} began with a bad state: the cause lies before --from"
            )
        self.progress("tracing the bad step", 0, 1)
        session.restore(passage.before)
        examined = examine(session)
        origin = examined.origin
        self.found["bad_ranks"] = session.shares.bad
        if origin is None and examined.absorbed and self.judge.by_state:
            for name in ("status", "first_bad_step", "root_step", "bad_ranks"):
                del self.found[name]
            return False
        growth = growth_of(self.run, step, origin)
        if growth is None and origin is not None and may_have_grown(origin):
            norms = norms_until(session, passage.before)
            growth = growth_of(self.run, step, origin, norms)
        if growth is not None:
            if origin is not None:
                origin = behind_growth(session, as_growth(origin, growth), step)
                session.restore(passage.before)
            self.found.update(growth=growth, root_step=growth.since_step)
        if origin is not None and not self.judge.by_state and ":" in origin.operator and step:
            self.notes.append(
                f"{origin.operator.partition(':')[2]} was bad before this step began: an earlier "
                "one made it so; bisect without --bad to find that one"
            )
        self.found["origin"] = origin
        before, passage.before = passage.before, None  # one holder, so that it can be let go of
        self.prove(session, before, passage.bad, origin)
        return True

    def _no_batch(self, session: Session, error: NoBatchError, step: int) -> None:
        """The data of the step cannot be had: as in the record, or only here?"""
        if session.recorded(step) is not None:
            what = f"{error.where} cannot be had here ({error.what}), though the record had them"
            raise NotReplayableError(what, where="data")
        self.found.update(no_batch(session, step, error))

    def _is_not_the_record(self, session: Session, passage: Passage) -> bool:
        """Did the replay go bad where the record did not, or as another training than it?"""
        gone, bad, recorded = passage.departure, passage.bad, self.suspicion.step
        assert gone is not None
        assert bad is not None
        elsewhere = recorded is not None and recorded != bad.step
        if gone.step < bad.step and (elsewhere or is_another(session, gone, passage.first)):
            return True
        row, log = session.recorded(bad.step), bad.log
        return log is not None and contradicts(self.options.predicate, row, log.row())

    def went_its_own_way(self, session: Session, passage: Passage, gone: Departure) -> None:
        """The replay left the record, and went bad or not: the record has the say."""
        recorded = self.suspicion.step
        step = None if passage.bad is None else passage.bad.step
        origin = None
        if step is not None and step == recorded and passage.before is not None:
            session.restore(passage.before)
            origin = examine(session).origin
        told = own_way(gone, step, recorded, origin)
        other = is_another(session, gone, passage.first)
        self.notes += [told, another(gone)] if other else [told]
        if recorded is not None:
            status = BisectStatus.LOCATED
            self.found.update(status=status, first_bad_step=recorded, root_step=recorded)
        else:
            reason = f"{self.looked_at(sound=False)}; the replay is not the record"
            self.found.update(status=BisectStatus.NOT_BISECTABLE, reason=reason)

    def prove(
        self,
        session: Session,
        before: MemoryState | None,
        bad: ReplayedStep | None,
        origin: Origin | None,
        audit: Audit | None = None,
    ) -> None:
        """Replay the step that was found, again and with changes; keep a capsule where wanted.

        Args:
            session: of the run.
            before: the state just before the step.
            bad: the step as it went bad; None for a fault of what was applied.
            origin: where in the step.
            audit: for a fault of what was applied.
        """
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
        try:
            proof.prove(
                trials=self.options.what_if,
                further_steps=self.options.further_steps,
                keep=None if wanted is None else lambda state: self._keep(session, state, wanted),
            )
        except Exception as error:  # noqa: BLE001 - what is located is worth more than its proof
            reason = error.line() if isinstance(error, ForensicsError) else told(error)
            self.notes.append(f"the proof broke off, what it had found by then stands: {reason}")

    def _keep(self, session: Session, before: MemoryState, directory: Path) -> None:
        """Write the capsule; where that fails, the answer says why and goes on."""
        if names_a_maker(self.options.recipe):
            self.notes.append("no capsule: the step is the trainer's own, which no file can hold")
            return
        try:
            made = self._capsule(session, before, directory)
        except ForensicsError as error:
            self.notes.append(f"no capsule: {error.line()}")
            return
        self.found.update(capsule=str(made.path), capsule_bytes=made.size)
        self.notes += [f"capsule: {note}" for note in made.notes]

    def _capsule(self, session: Session, before: MemoryState, directory: Path) -> Capsule:
        """The step; of several ranks that of the first bad one."""
        answer, overwrite = self.answer(), self.options.overwrite
        if session.shares.size == 1:
            return write_capsule(directory, session, before, answer, overwrite=overwrite)
        recipe = self.options.recipe
        made, rank = write_rank_capsule(
            directory, session, before, answer, recipe=recipe, overwrite=overwrite
        )
        self.notes.append(f"the capsule holds the step of rank {rank} alone")
        return made


def _refuse_if_only_here(session: Session, bad: ReplayedStep) -> None:
    """A step that raises before its end, and has a row, is not the step that was recorded."""
    if bad.exception and bad.log is None and session.recorded(bad.step) is not None:
        what = (
            f"step {bad.step:,} raises here ({bad.exception}), and did not where it was recorded: "
            "what is built here is not what trained"
        )
        hint = may_be_one_batch(session.batch(bad.step)) if session.shares.size == 1 else ""
        raise NotReplayableError(what, where="recipe", hint=hint or None)
