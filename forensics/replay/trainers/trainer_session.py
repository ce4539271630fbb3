"""A run of a trainer under replay: its states are put back by the trainer's own resume."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from forensics.diagnose.bisection_result import Departure
from forensics.errors import InputError, NotReplayableError
from forensics.record.checkpoints import load_checkpoint
from forensics.record.health import HealthScan
from forensics.record.recipe import Batch, Recipe, StepRecorder, Training
from forensics.replay.ranks.crew import Crew
from forensics.replay.rerun.memory_state import MemoryState, let_go
from forensics.replay.rerun.rebuild import Rebuilt, Say, rebuild
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.rerun.row_comparison import compare_rows
from forensics.replay.saved_states.finder import state_root
from forensics.replay.saved_states.mapped_file import refuse_outside
from forensics.replay.session import AS_RECORDED, Session, Trace
from forensics.replay.session import open_session as open_recipe_session
from forensics.replay.trainers.contract import Maker, names_a_maker
from forensics.replay.trainers.engine import Engine
from forensics.replay.trainers.entered_precision import entered_as
from forensics.replay.trainers.quiet import quiet
from forensics.runlog.run import CheckpointInfo, Run

PROBED = 2
"""Steps after a resume whose rows say whether it goes on as recorded: the second one shows what an
optimizer's state or the order of the data has lost, where the first was alike by chance."""


class TrainerRecipe(Recipe):
    """The trainer's own step, as a recipe has one."""

    name = "trainer"
    engine: Engine

    def batch(self, step: int) -> list[Batch]:
        """What the trainer's loop drew for the step."""
        return self.engine.batches(step)

    def step(self, training: Training, batches: Sequence[Batch], recorder: StepRecorder) -> Any:
        """The step, by the trainer's methods."""
        return self.engine.make(batches, recorder)


def open_session(
    run: Run,
    *,
    recipe: str | None = None,
    device: str | None = None,
    tolerance: float | None = None,
    say: Say = print,
    crew: Crew | None = None,
) -> Session:
    """As ``replay.session.open_session``, where the recipe may be a function that makes a trainer.

    Raises:
        NotReplayableError, InputError, UsageError: as there.
    """
    if not names_a_maker(recipe):
        return open_recipe_session(
            run, recipe=recipe, device=device, tolerance=tolerance, say=say, crew=crew
        )
    if run.manifest is None:
        raise NotReplayableError(
            "there is no run.json, which says where the trainer's checkpoints are",
            where="trainer",
        )
    found = rebuild(run.manifest, recipe=recipe, say=say)
    if device is not None:
        say("the trainer chooses its own device: --device was not used")
    session = TrainerSession(run, found, tolerance, say)
    try:
        session.start()
    except BaseException:
        session.close()
        raise
    return session


class TrainerSession(Session):
    """A trainer under replay.

    Args:
        run: with its manifest.
        found: of the run; its kind holds the function that makes the trainer.
        tolerance: relative, for the comparison of rows; 1e-3 by default, as a resume may be a
            little unfaithful. Rows of the same bits are told as such.
        say: told what the user should know.
    """

    def __init__(self, run: Run, found: Rebuilt, tolerance: float | None, say: Say) -> None:
        assert run.manifest is not None
        if run.manifest.world_size > 1:
            raise NotReplayableError(
                f"trained by {run.manifest.world_size} processes; a trainer's loop is replayed "
                "in one",
                where="trainer",
            )
        last = int(run.steps.step[-1]) + 1 if len(run.steps) else 0
        planned = run.manifest.schedule.get("total_steps", 0)
        config = replace(found.config, steps=max(last, planned if isinstance(planned, int) else 0))
        self._maker = Maker(found.kind)
        found = replace(found, kind=TrainerRecipe, config=config)
        # Never none at all: what differs in a bit is the resume's doing, not a flipped bit.
        least = None if tolerance is None else max(tolerance, sys.float_info.min)
        super().__init__(run, run.manifest, found, least)
        self._say = say
        self._settings.enter_context(quiet())
        self._aside = _folder_aside(self._settings)
        self._engines: weakref.WeakSet[Engine] = weakref.WeakSet()
        self._probed: set[int] = set()
        self._told: set[int] = set()
        self._departures: dict[int, Departure] = {}
        self._rows_compared = self._rows_same = 0

    @property
    def kept_to(self) -> float:
        """The tolerance that was needed: 0 where all rows that agree do so bit for bit."""
        same = 0 < self._rows_compared == self._rows_same
        return 0.0 if same or self.tolerance <= sys.float_info.min else self.tolerance

    # -- states -------------------------------------------------------------------------------

    def start(self) -> None:
        """The trainer as the function makes it, before step 0."""
        self._begin(None)

    def go_to(self, step: int) -> int:
        """The newest state at or before ``step`` from which the resume goes on as recorded.

        Where none does, the newest one that can be resumed from.
        """
        starts = [s for s in reversed(self.states()) if s <= step]
        for start in starts:
            if super().go_to(start) == start and self._faithful(start):
                self._tell_passed_over(start)
                return start
        left = [s for s in starts if s not in self.untestable]
        self._tell_passed_over(-1)
        return super().go_to(left[0])

    def capture(self) -> MemoryState:
        """The state before the next step; its data are kept for as long as it is.

        The trainer's loop is let on into the step first: what its callbacks do as a step begins
        is part of the state that the step computes with.
        """
        with suppress(Exception):  # told when the step is asked for
            self._engine.batches(self.step_index)
        state = super().capture()
        self._engine.hold(state)
        return state

    def saved(self, info: CheckpointInfo) -> dict[str, Any]:
        """Not this program's to read: the trainer puts it back."""
        raise InputError("is a trainer's own", where=info.path)

    def close(self) -> None:
        """Unwind every loop that is still parked, and only then let trainers speak again."""
        for engine in list(self._engines):
            engine.loop.close()
        super().close()

    def _load(self, info: CheckpointInfo) -> None:
        refuse_outside(info.path, state_root(info.path, self.run.path))
        if info.path.is_file():
            load_checkpoint(info.path)  # what passes here runs no code in the trainer either
        self._begin(info)

    def _begin(self, info: CheckpointInfo | None) -> None:
        self._drop_loops()
        if self._built:
            let_go(self.training)
        engine = self._maker.engine(None if info is None else info.path, self._aside)
        self._engines.add(engine)
        engine.start()
        if info is not None and engine.first_step != info.step:
            engine.loop.close()
            raise InputError(
                f"resumes at step {engine.first_step:,}, and was noted at {info.step:,}",
                where=info.path,
            )
        self.recipe = recipe = TrainerRecipe(self.config)
        recipe.engine = engine
        self.training = engine.training()
        weakref.finalize(self.training, engine.loop.abandon)
        self._built, self._wide = True, False
        self.step_index = engine.first_step
        self.device = next(engine.model.parameters()).device
        self._eager()
        self._scan = HealthScan(self.training.model, self.training.optimizers)
        self._scan_state()

    @property
    def _engine(self) -> Engine:
        assert isinstance(self.recipe, TrainerRecipe)
        return self.recipe.engine

    def _eager(self) -> None:
        if self._engine.compiled:
            self._settings.enter_context(torch.compiler.set_stance("force_eager"))

    # -- is the resume faithful? --------------------------------------------------------------

    def _faithful(self, start: int) -> bool:
        """Do the first steps from a state come to the recorded rows? Asked once a state."""
        if start not in self._probed:
            before = self.capture()
            gone = next(filter(None, (self._probe() for _ in range(PROBED))), None)
            self._probed.add(start)
            if gone is not None:
                self._departures[start] = gone
            self.restore(before)
        return start not in self._departures

    def _probe(self) -> Departure | None:
        row = self.recorded(self.step_index)
        return None if row is None else super().departure(self.run_step(check_state=False), row)

    def _tell_passed_over(self, start: int) -> None:
        """Say once of the newer states why the replay did not begin there."""
        passed = sorted(self._departures.keys() - self._told, reverse=True)
        passed = [step for step in passed if step > start]
        if not passed:
            return
        self._told |= set(passed)
        gone = self._departures[passed[0]]
        where = f"the state of step {passed[0]:,}" if passed[0] else "step 0"
        further = f"; nor from {_listed(passed[1:])}" if passed[1:] else ""
        self._say(
            f"from {where} the trainer's own resume does not go on as recorded: in step "
            f"{gone.step:,} {gone.column} is {gone.replayed}, and was {gone.recorded}{further}"
        )

    @property
    def never_as_recorded(self) -> Departure | None:
        """Of the last start: the row that differs, where no start that was tried goes on so."""
        tried = self._probed and self._probed == set(self._departures)
        return self._departures[min(self._departures)] if tried else None

    # -- one step -----------------------------------------------------------------------------

    def run_step(
        self,
        *,
        changes: Any = AS_RECORDED,
        trace: Trace | None = None,
        check_state: bool = True,
    ) -> ReplayedStep:
        """As ``Session.run_step``; an autocast that was made before is changed, too."""
        with entered_as(changes.precision):
            return super().run_step(changes=changes, trace=trace, check_state=check_state)

    def departure(
        self, replayed: ReplayedStep, recorded: dict[str, Any] | None = None
    ) -> Departure | None:
        """As ``Session.departure``; the rows that are the same bit for bit are counted."""
        gone, row = super().departure(replayed, recorded), recorded or self.recorded(replayed.step)
        if gone is None and row is not None and replayed.log is not None:
            self._rows_compared += 1
            self._rows_same += compare_rows(row, replayed.log, "", 0.0) is None
        return gone


def _folder_aside(settings: ExitStack) -> Path:
    """A folder that is gone when these settings end."""
    try:
        return Path(settings.enter_context(TemporaryDirectory(prefix="forensics-replay-")))
    except OSError as error:
        raise NotReplayableError(
            f"there is no place for what its callbacks write ({error.strerror or error})",
            where="trainer",
            hint="TMPDIR names another folder for temporary files",
        ) from error


def _listed(steps: Sequence[int]) -> str:
    """Those of the states of some steps, newest first."""
    first, last = f"{steps[0]:,}", f"{steps[-1]:,}" if steps[-1] else "0"
    if len(steps) == 1:
        return f"that of step {first}" if steps[0] else "step 0"
    return f"any of the {len(steps):,} from step {first} back to {last}"
