import pytest

from forensics.replay.location import stretch
from forensics.replay.narrowing import Suspicion
from forensics.replay.start_states import StateSearch


@pytest.mark.parametrize(
    ("row", "state", "until"),
    [
        (20, 14, 13),  # an earlier step made the state bad
        (14, 14, 14),  # a rate that came into force with the step is in the state, and in its row
        (None, 14, 13),
        (9, 14, 9),
    ],
)
def test_the_stretch_ends_at_the_first_step_that_can_be_bad(row, state, until):
    states = StateSearch(last_good=8, first_bad=state)
    wanted = stretch(Suspicion(step=row), states, last_step=100, from_step=None)
    assert wanted.until == until
    assert wanted.start <= 9
