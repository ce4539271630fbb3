"""The whole run once more, where that is cheap: for what no number and no finding points at.

Two things show in no row that the report could blame, and still in a replay of every step: a fault
of one step in the middle of a run (an optimizer that loses its state), and a record that the
program did not make.
"""

from __future__ import annotations

from collections.abc import Callable

from forensics.replay.applied.watch import AppliedWatch
from forensics.replay.detection import Detector, Passage
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session
from forensics.runlog.run import Run

MOST_STEPS = 2000
"""Rows of a run that is replayed as a whole unasked."""
MOST_SECONDS = 60.0
"""Seconds that its recording took, at most; where that is not known, ``UNKNOWN_STEPS`` rows."""
UNKNOWN_STEPS = 500

OnStep = Callable[[int, int, int], None]


def is_affordable(run: Run, last_step: int) -> bool:
    """Is the whole run, up to a step, replayed in about a minute?"""
    rows, steps = len(run.steps), last_step + 1
    if not run.steps.has("time_s"):
        return steps <= UNKNOWN_STEPS
    seconds = float(run.steps["time_s"][run.steps.present("time_s")].max())
    return steps <= MOST_STEPS and seconds * max(1.0, steps / rows) <= MOST_SECONDS


def sweep(
    session: Session, judge: RowJudge, last_step: int, on_step: OnStep
) -> tuple[Passage, tuple[int, ...]]:
    """Replay every step of the run, from the first, under a watch.

    Args:
        session: of the run.
        judge: of rows.
        last_step: the last one to replay.
        on_step: told (first, step, last).

    Returns:
        What the replay came to, and the steps that may have applied the wrong thing: an audit of
        each has the last word.
    """
    session.go_to(0)  # as it was saved, where it was: a loop of one's own may seed otherwise
    watch = AppliedWatch(session.training)
    suspects: list[int] = []

    def is_bad(step: ReplayedStep) -> bool:
        if watch.suspicion(step):
            suspects.append(step.step)
        return judge(step)

    detector = Detector(
        session,
        is_bad,
        trace=watch.step,
        on_step=lambda step: on_step(0, step, last_step),
    )
    with watch.watching():
        passage = detector.run(last_step)
    return passage, tuple(dict.fromkeys(suspects))
