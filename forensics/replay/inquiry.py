"""One bisection, step by step: the log, the saved states, the replay up to the bad step."""

from __future__ import annotations

from dataclasses import replace

from forensics.diagnose.bisection_result import (
    BisectionResult,
    BisectStatus,
    Departure,
    Persistence,
)
from forensics.errors import (
    InputError,
    NoBatchError,
    NotReplayableError,
    TrainingRaisedError,
    UsageError,
)
from forensics.replay.another_training import is_another
from forensics.replay.bisection import Judgement
from forensics.replay.bisection_answer import outside_origin
from forensics.replay.case import Case
from forensics.replay.checkpoint_health import judge_state
from forensics.replay.detection import Passage
from forensics.replay.location import Range, stand_before, stretch, unlogged_stretch
from forensics.replay.narrowing import narrow
from forensics.replay.proof.flip import find_hit
from forensics.replay.proof.lost_on_resume import find_lost, lost_origin
from forensics.replay.row_judge import RowJudge
from forensics.replay.saved_states import open_state, state_root
from forensics.replay.session import Session
from forensics.replay.silent_inquiry import silent_inquiry
from forensics.replay.start_states import by_health_files, search_states, without
from forensics.replay.trainers.trainer_session import TrainerSession, open_session
from forensics.runlog.checkpoint_files import CheckpointInfo

MOST_ABSORBED = 4
"""Suspect steps that may turn out to be the loss scaler's work before the search ends."""
ROWS_AFTER = 3
"""Rows after a false one that must be the replay's."""
EARLIER_STARTS = 2
"""Earlier states that are tried where a fault does not come back from the newest one."""


class Inquiry(Case):
    """One bisection, from the log to the proof."""

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
        self.states = by_health_files(self.run.checkpoints)
        try:
            with open_session(
                self.run,
                recipe=options.recipe,
                device=options.device,
                tolerance=options.tolerance,
                say=self.notes.append,
                crew=options.crew,
            ) as session:
                try:
                    self._bisect(session)
                finally:  # what could not be loaded is nothing to resume from, whoever asks
                    self._tell_what_states_lack(session)
                    if isinstance(session, TrainerSession):
                        self.found.update(tolerance=session.kept_to)
                    self.states = without(self.states, session.untestable)
                    self.notes += session.shares.notes
        except KeyboardInterrupt as stop:
            self.interrupted(stop)
        except TrainingRaisedError as error:
            what = f"the training cannot be built here ({error.what})"
            raise NotReplayableError(what, where=error.where) from error
        except NoBatchError as error:
            what = f"{error.where} cannot be had here ({error.what})"
            raise NotReplayableError(what, where="data") from error
        return self.answer()

    def _tell_what_states_lack(self, session: Session) -> None:
        """How far a state that a trainer has saved by itself goes."""
        lacking = dict.fromkeys(what for each in session.lacking.values() for what in each)
        if lacking:
            self.notes.append(
                "the saved states are not this program's own: what they lack "
                f"({', '.join(lacking)}) is in the replay as the recipe builds it"
            )
        if session.unscheduled:
            self.notes.append(
                "the saved states hold a schedule and the recipe has none: the replay keeps the "
                "learning rate of the state that it starts from"
            )
        if session.untestable and not isinstance(session, TrainerSession):
            step = max(session.untestable)
            others = len(session.untestable) - 1
            more = f", nor can {others} more" if others else ""
            self.notes.append(
                f"the saved state of step {step:,} cannot be put back "
                f"({session.untestable[step]}){more}: the replay began without it"
            )

    # -- the way to the bad step ---------------------------------------------------------------

    def _bisect(self, session: Session) -> None:
        self.shares = session.shares
        self.found.update(tolerance=session.tolerance, cross_device=session.cross_device)
        wanted = self.options.device
        if wanted is not None and wanted.partition(":")[0] != session.device.type:
            self.options = replace(self.options, device=None)  # not here: no command asks again
        first = self.options.from_step
        if first is not None and first > self.last_step(session):
            last = f"there are steps 0 to {self.last_step(session):,}"
            raise UsageError("no step lies in the range", where=f"--from {first}", hint=last)
        for _ in range(MOST_ABSORBED):
            absorbed = self._look_for_it(session)
            if absorbed is None:
                return
            self._suspect_later(absorbed + 1)
        silent_inquiry(self, session)

    def _suspect_later(self, step: int) -> None:
        """The log once more, from a step on: what is bad before it did no damage."""
        options, before = self.options, self.suspicion
        later = narrow(self.run, options.predicate, from_step=step, until_step=options.until_step)
        self.suspicion = replace(
            later, audits=before.audits, root=before.root, rows=before.rows, routine=before.routine
        )
        self.judge = RowJudge(options.predicate, later.strict)

    def _look_for_it(self, session: Session) -> int | None:
        """Search, replay and prove; the step that the log suspects in vain, or None at the end."""
        self._search_states()
        wanted = stretch(
            self.suspicion,
            self.states,
            last_step=self.last_step(session),
            from_step=self.options.from_step,
        )
        if wanted is None and not self.judge.by_state:
            wanted = unlogged_stretch(
                self.suspicion,
                last_step=self.last_step(session),
                from_step=self.options.from_step,
            )
            if wanted is None:
                self._condition_not_met()
                return None
        if wanted is None:
            silent_inquiry(self, session)
            return None
        self.found["reason"] = self._went_by(wanted)
        passage = self._replay_from_earlier(session, wanted, self._replay(session, wanted))
        if passage.bad is None or passage.before is None:
            if self._only_the_row(session, passage):
                return passage.last
            self._not_reproduced(session, passage)
        elif not self.located(session, passage):
            return passage.bad.step
        return None

    def _search_states(self) -> None:
        """Judge the saved states, by their health files where there are some."""

        def test(info: CheckpointInfo) -> Judgement:
            self.progress("looking into saved states", 0, 0)
            return judge_state(info.path, root=state_root(info.path, self.run.path))

        if self.judge.by_state:
            self.states = search_states(
                self.run.checkpoints,
                test,
                flaw=self._flaw,
                not_after=self.suspicion.step
                if self.suspicion.step is not None
                else self.options.until_step,
                not_before=self.options.from_step,
            )
        else:
            self.states = search_states(self.run.checkpoints, test, flaw=self._flaw, not_after=-1)
        if self.states.contradictions:
            steps = ", ".join(f"{step:,}" for step in self.states.contradictions[:3])
            self.notes.append(
                f"the state of step {steps} is sound although an older one is not: "
                "the history is not monotone, and the first bad state was taken"
            )

    def _flaw(self, info: CheckpointInfo) -> str:
        """Why a state that its health file calls sound cannot be opened; empty where it can."""
        try:
            open_state(info.path, state_root(info.path, self.run.path))
        except InputError as error:
            return error.what
        return ""

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
        self.detector = stand_before(session, wanted, self.judge, self.on_step)
        passage = self.detector.run(wanted.until, marks=wanted.marks)
        self.take(passage)
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
            if is_another(session, gone, passage.first):  # it began where it is most faithful
                break
            earlier = self._replay(session, replace(wanted, start=passage.first - 1))
            if earlier.bad is not None:
                self.notes.append(
                    f"from the saved state of step {passage.first:,} it does not come back: "
                    "that state lacks what the fault depends on"
                )
            passage = earlier
        return passage

    # -- where the replay does not go bad ---------------------------------------------------

    def _condition_not_met(self) -> None:
        """No row fulfils the condition: that is health only where the report has nothing to say."""
        status = BisectStatus.NOT_BISECTABLE if self.suspicion.root else BisectStatus.HEALTHY
        self.found.update(status=status, reason=self.looked_at())

    def _only_the_row(self, session: Session, passage: Passage) -> bool:
        """Is the bad row alone not the replay's, while the rows after it are, bit for bit?"""
        gone = passage.departure
        if gone is None or gone.step != passage.last or session.tolerance or passage.bad:
            return False
        for step in range(passage.last + 1, passage.last + 1 + ROWS_AFTER):
            row = session.recorded(step)
            if row is None or session.step_index != step:
                return False
            replayed = session.run_step(check_state=False)
            if replayed.log is None or session.departure(replayed, row) is not None:
                return False
        self.notes.append(
            f"the row of step {gone.step:,} is not what the training made ({gone.column}: "
            f"{gone.recorded} in the log, {gone.replayed} in the replay), and the rows after it "
            "are the replay's bit for bit: the log was changed there, the training was sound"
        )
        return True

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
            self._condition_not_met()
            return
        if recorded is None:
            self.found.update(
                status=BisectStatus.NOT_BISECTABLE,
                reason=f"{self.found['reason']}, and the replay up to it stays sound",
            )
            return
        if gone is not None and gone.step < recorded and is_another(session, gone, passage.first):
            self.went_its_own_way(session, passage, gone)
            return
        self.found.update(
            status=BisectStatus.LOCATED,
            reproduces=False,
            replays=1,
            persistence=Persistence.UNKNOWN if session.tolerance else Persistence.TRANSIENT,
            first_bad_step=recorded if gone is None else min(gone.step, recorded),
        )
        self.found["root_step"] = self.found["first_bad_step"]
        if session.other_code and (gone is None or gone.step == recorded):
            self.notes.append(
                f"with the recipe as it is now, step {recorded:,} is sound: what was changed in it "
                "since the recording may well be the cure"
            )
        elif isinstance(session, TrainerSession):
            self.notes.append(
                f"step {recorded:,} is sound here: its batch or the code is another now, or the "
                "value came from outside the training"
            )
        if session.tolerance == 0 and gone is not None:
            self._from_outside(session, gone, recorded)

    def _from_outside(self, session: Session, gone: Departure, recorded: int) -> None:
        """The record was made of other values than the program makes: which one was changed?"""
        lost = find_lost(session, gone.step)
        if lost is not None:
            self.found.update(origin=lost_origin(lost), root_step=lost.step)
            self.found.update(first_bad_step=min(lost.step, recorded))
            return
        hit = find_hit(session, gone.step)
        row = session.recorded(recorded) or {}
        self.found["origin"] = outside_origin(hit, gone, recorded, row)
        if hit is not None and hit.bit is not None:  # the first step that computed with it
            self.found.update(first_bad_step=hit.state, root_step=hit.state)
