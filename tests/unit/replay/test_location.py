"""Which stretch is replayed, given what the log and the saved states say."""

from __future__ import annotations

import pytest

from forensics.diagnose.bisection_result import CheckpointVerdict
from forensics.replay.location import Range, stretch, unlogged_stretch
from forensics.replay.narrowing import Suspicion
from forensics.replay.start_states import StateSearch


def states(*steps: int, bad: int | None = None) -> StateSearch:
    """Saved states, sound up to the first bad one."""
    good = [step for step in steps if bad is None or step < bad]
    return StateSearch(
        verdicts=tuple(
            CheckpointVerdict(step=step, verdict="good" if step in good else "bad")
            for step in steps
        ),
        last_good=good[-1] if good else None,
        first_bad=bad,
    )


def replayed(
    suspicion: Suspicion, found: StateSearch, from_step: int | None = None
) -> Range | None:
    return stretch(suspicion, found, last_step=10_000, from_step=from_step)


def test_the_log_names_the_step() -> None:
    found = replayed(Suspicion(step=5400), states(0, 5000, 5400))
    assert found == Range(start=5400, until=5400, marks=(5400,))


def test_a_bad_state_lies_after_the_step_that_made_it() -> None:
    found = replayed(Suspicion(), states(0, 500, 1000, bad=1000))
    assert found == Range(start=500, until=999)


def test_the_earlier_of_log_and_states_counts() -> None:
    found = replayed(Suspicion(step=5400), states(0, 500, 1000, bad=1000))
    assert found is not None
    assert (found.start, found.until) == (500, 999)
    found = replayed(Suspicion(step=700), states(0, 500, 1000, bad=1000))
    assert found == Range(start=700, until=700, marks=(700,))


def test_a_state_that_is_bad_from_the_first_bad_row_on() -> None:
    """A rate of NaN is in the state before the step whose row shows it."""
    found = replayed(Suspicion(step=1000), states(0, 500, 1000, bad=1000))
    assert found is not None
    assert found.until == 1000


def test_nothing_bad_is_nothing_to_replay() -> None:
    assert replayed(Suspicion(), states(0, 500)) is None


@pytest.mark.parametrize(
    ("root", "step", "saved", "start"),
    [
        (100, 450, (0, 400), 100),  # 400 more steps are few
        (100, 5400, (0, 5000), 5400),  # 5,000 more are not
        (4500, 5400, (0, 4500, 5000), 4500),  # three times the way is
    ],
)
def test_the_root_of_a_growth_is_replayed_where_that_is_affordable(
    root: int, step: int, saved: tuple[int, ...], start: int
) -> None:
    found = replayed(Suspicion(step=step, root_step=root), states(*saved))
    assert found is not None
    assert (found.start, found.until) == (start, step)


def test_the_user_may_begin_earlier_but_never_after_the_fault() -> None:
    found = replayed(Suspicion(step=700), states(0, 500), from_step=200)
    assert found is not None
    assert found.start == 200
    found = replayed(Suspicion(step=700), states(0, 500), from_step=700)
    assert found is not None
    assert found.start == 700


def test_steps_without_a_row_are_asked_by_replay() -> None:
    found = unlogged_stretch(Suspicion(unlogged=30), last_step=50, from_step=None)
    assert found == Range(start=30, until=50)
    assert unlogged_stretch(Suspicion(), last_step=50, from_step=None) is None
    assert unlogged_stretch(Suspicion(unlogged=60), last_step=50, from_step=None) is None
