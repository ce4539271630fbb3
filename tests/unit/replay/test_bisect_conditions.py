"""Conditions and ranges: what is asked for, and where it is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus
from forensics.errors import UsageError
from forensics.render.bisection_phrases import outcome
from forensics.replay.bisect import bisect_run
from tests.unit.replay.bisections import quick


def test_a_condition_is_answered_by_the_log_and_traced(bad_sample: Path) -> None:
    result = quick(bad_sample, bad="loss==nan")
    assert (result.first_bad_step, result.reproduces) == (30, True)
    assert result.bad == "loss is NaN"


def test_a_condition_that_no_row_fulfils(bad_sample: Path) -> None:
    result = quick(bad_sample, bad="norm>1e6")
    assert result.status is BisectStatus.NOT_BISECTABLE  # the report has a root cause
    assert result.reason == "norm>1e6 holds in none of 60 rows"


def test_a_condition_on_steps_without_a_row_is_answered_by_replay(copy: Path) -> None:
    log = (copy / "steps.csv").read_text().splitlines()
    (copy / "steps.csv").write_text("\n".join(log[:26]) + "\n")
    result = quick(copy, bad="loss==nan", until_step=40)
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 30)
    assert "step 25 has none" in result.reason


def test_a_range_beyond_the_run_is_refused(bad_sample: Path) -> None:
    with pytest.raises(UsageError, match="no step lies in the range"):
        quick(bad_sample, from_step=1000)


@pytest.mark.parametrize(("first", "last"), [(None, 29), (31, None)])
def test_the_range_leaves_the_bad_step_out(
    bad_sample: Path, first: int | None, last: int | None
) -> None:
    result = quick(bad_sample, from_step=first, until_step=last)
    assert result.status is BisectStatus.HEALTHY


def test_a_range_that_ends_before_it_begins(bad_sample: Path) -> None:
    with pytest.raises(UsageError, match="ends before it begins"):
        quick(bad_sample, from_step=9, until_step=3)


def test_trials_say_what_was_asked_for_and_not_that_the_run_is_finite(mine: Path) -> None:
    """Its step 9 is NaN, which passes every limit."""
    result = bisect_run(
        mine, recipe=f"{mine.parent / 'mine.py'}:mine", bad="loss>100", further_steps=3
    )
    told = {trial.change: outcome(trial, result.first_bad_step) for trial in result.what_if}
    assert told["without the guilty samples"] == "loss at most 100, and for the next 3 steps"
    assert result.remedy[0].endswith("loss at most 100, proven for 3 steps after it.")
    assert "finite" not in " ".join(result.remedy)
