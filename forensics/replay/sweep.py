"""The whole run once more, where that is cheap: for what no number and no finding points at.

Two things show in no row that the report could blame, and still in a replay of every step: an
optimizer that loses its state in the middle of a run, and a record that the program did not make.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from forensics.replay.detection import Detector, Passage
from forensics.replay.movement import state_counts
from forensics.replay.replayed_step import ReplayedStep
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session
from forensics.runlog.run import Run

MOST_STEPS = 2000
"""Rows of a run that is replayed as a whole unasked."""
MOST_SECONDS = 60.0
"""Seconds that its recording took, at most; where that is not known, ``UNKNOWN_STEPS`` rows."""
UNKNOWN_STEPS = 500

OnStep = Callable[[int, int, int], None]


def is_affordable(run: Run) -> bool:
    """Is the whole run replayed in about a minute?"""
    rows = len(run.steps)
    if not run.steps.has("time_s"):
        return 0 < rows <= UNKNOWN_STEPS
    seconds = float(run.steps["time_s"][run.steps.present("time_s")].max())
    return 0 < rows <= MOST_STEPS and seconds <= MOST_SECONDS


class StateLossWatch:
    """Fires in a step whose optimizer is entered with less state than the step before left.

    Args:
        session: whose steps are watched.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self.fired = False

    def trace(self, run: Callable[[], Any]) -> Any:
        """Run one step and watch it; as ``Session.run_step`` takes it."""
        left = {id(o): state_counts(o) for o in self._session.training.optimizers}
        self.fired = False

        def entered(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            counts = state_counts(optimizer)
            had = left.get(id(optimizer), {})
            anew = id(optimizer) not in left and any(left.values())
            self.fired |= anew or any(counts.get(key, -2.0) < n for key, n in had.items())

        hook = register_optimizer_step_pre_hook(entered)
        try:
            return run()
        finally:
            hook.remove()


def sweep(
    session: Session, judge: RowJudge, last_step: int, on_step: OnStep
) -> tuple[Passage, StateLossWatch]:
    """Replay every step of the run, from the first, under the watch.

    Args:
        session: of the run.
        judge: of rows.
        last_step: the last one to replay.
        on_step: told (first, step, last).
    """
    watch = StateLossWatch(session)

    def is_bad(step: ReplayedStep) -> bool:
        return watch.fired or judge(step)

    session.start()
    detector = Detector(
        session,
        is_bad,
        trace=watch.trace,
        on_step=lambda step: on_step(0, step, last_step),
    )
    return detector.run(last_step), watch
