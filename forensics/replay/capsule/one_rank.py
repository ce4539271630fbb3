"""The step of one rank of several, cut out so that one process replays it alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from forensics.diagnose.bisection_result import BisectionResult
from forensics.errors import NotReplayableError
from forensics.record.rng import restore_rng
from forensics.record.training_state import restore_state
from forensics.replay.capsule.whole_state import restore_beyond, whole_state
from forensics.replay.capsule.writing import Capsule, write_capsule
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.rerun.rank_shares import EXTRA, streams_of
from forensics.replay.session import Session, open_session
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

_OF_ALL = ("grad_l2_pre_clip", "grad_l2_post_clip", "norm_overflow", "skip_reason", "loss")
"""Columns that tell of the reduced gradient, or of rank 0: one rank alone comes to others."""


def write_rank_capsule(
    directory: Path,
    session: Session,
    before: MemoryState,
    result: BisectionResult,
    *,
    recipe: str | None,
    overwrite: bool = False,
) -> tuple[Capsule, int]:
    """A capsule of the first bad rank's step: its batch, its random numbers, rank 0's buffers.

    Where no rank is bad by itself it is of rank 0, if that goes bad without the others, too.

    Args:
        directory: as of ``write_capsule``.
        session: of the run of several ranks.
        before: the state just before the bad step.
        result: tells which rank is bad by itself.
        recipe: that the user named, or None.
        overwrite: replace the capsule that is there.

    Returns:
        The capsule, and whose step it holds.

    Raises:
        OutputError: the folder cannot be written.
        NotReplayableError: without the others the step is sound.
    """
    rank = result.rank or 0
    own = replace(result, samples=()) if result.samples_note or result.rank is None else result
    with _alone(session, before, rank, recipe) as alone:
        try:
            made = write_capsule(directory, alone, alone.capture(), own, overwrite=overwrite)
        except NotReplayableError as error:
            if result.rank is not None:
                raise
            raise NotReplayableError(
                "every rank's own part of the step is sound: it goes bad only once the gradients "
                "are reduced, and a capsule holds the step of one rank"
            ) from error
    return made, rank


@contextmanager
def _alone(
    session: Session, before: MemoryState, rank: int, recipe: str | None
) -> Iterator[Session]:
    """The training as this rank has it before the step, without the others."""
    session.restore(before)
    streams = streams_of(session.training)
    state, _ = whole_state(session.training, session.recipe, before.step, gradients=False)
    state["extra"] = {name: own for name, own in state["extra"].items() if name != EXTRA}
    device = str(session.device)
    found = open_session(_as_one(session.run), recipe=recipe, device=device, say=lambda _: None)
    with found as alone:
        restore_state(alone.training, state, where=before.step)
        restore_beyond(alone.training, alone.recipe, state)
        alone.recipe.rank, alone.recipe.world_size = rank, session.shares.size
        if rank and streams is not None:
            restore_rng(streams.all()[rank - 1])
        alone.step_index = before.step
        alone.bad_state()  # what is not finite by nature shows before the step
        yield alone


def _as_one(run: Run) -> Run:
    """The run as if one rank had trained it, with the rows as far as they hold for that."""
    assert run.manifest is not None
    columns = {name: column for name, column in run.steps.columns.items() if name not in _OF_ALL}
    steps = StepTable(columns=columns)
    return replace(run, steps=steps, manifest=replace(run.manifest, world_size=1))
