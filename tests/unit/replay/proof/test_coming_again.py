"""A guilty sample that comes again in the next epoch."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import WhatIf
from forensics.replay.proof.what_if import what_if
from forensics.replay.session import open_session
from forensics.runlog.run import load_run
from tests.unit.replay.bisections import LOG_OF_ZERO, recorded

EPOCHS = LOG_OF_ZERO.replace(
    """        if step == 9:
            inputs[2, 1] = 0.0
""",
    """        if step in PLACES:
            inputs[PLACES[step]] = torch.tensor([0.5, 0.0, 0.25, ALSO.get(step, 0.75)])
""",
)


def without_samples(home: Path, places: dict[int, int], also: dict[int, float]) -> WhatIf:
    """The trial without the sample of step 3, in a run of 10 steps; ``places``: by step."""
    assert EPOCHS != LOG_OF_ZERO
    file = home / "epochs.py"
    file.write_text(f"PLACES = {places}\nALSO = {also}\n{EPOCHS}")
    recipe = f"{file}:mine"
    run = load_run(recorded(recipe, home / "run", steps=10))
    with open_session(run, recipe=recipe) as session:
        session.go_to(3)
        while session.step_index < 3:
            session.run_step()
        table = what_if(session, session.capture(), samples=(places[3],), further_steps=50)
    (trial,) = [trial for trial in table if trial.change == "without the guilty samples"]
    return trial


def test_the_same_sample_is_left_out_each_time(tmp_path: Path) -> None:
    trial = without_samples(tmp_path, {3: 2, 6: 0, 8: 5}, {})
    assert (trial.finite, trial.until_step, trial.comes_again) == (True, 9, (6, 8))
    assert trial.note == "these samples set it off, and again at 6, 8"


@pytest.mark.parametrize("last", [{6: 0}, {6: 0, 8: 1}])
def test_another_sample_is_not_taken_for_it(tmp_path: Path, last: dict[int, int]) -> None:
    trial = without_samples(tmp_path, {3: 2, **last}, {6: 0.5} if len(last) == 1 else {8: 0.5})
    bad = max(last)
    assert (trial.finite, trial.first_bad_step, trial.comes_again) == (False, bad, ())
    assert trial.note == f"step {bad} holds no sample that is equal to these"


def test_a_sample_that_comes_no_more_is_left_out_once(tmp_path: Path) -> None:
    trial = without_samples(tmp_path, {3: 2}, {})
    assert (trial.finite, trial.comes_again) == (True, ())
    assert trial.note == "these samples set it off"
