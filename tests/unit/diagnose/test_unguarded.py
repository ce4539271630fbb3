"""What stays of a bad step that was taken."""

from __future__ import annotations

import math

import pytest

from forensics.diagnose.unguarded import damage_stayed
from forensics.runlog.steps import StepTable

NAN = math.nan


@pytest.mark.parametrize(
    ("norm", "skipped", "stayed"),
    [
        ([1.0, NAN, NAN, NAN], [0, 0, 0, 0], True),
        ([1.0, NAN, NAN, 1.0], [0, 0, 0, 0], False),  # it came back
        ([1.0, NAN, NAN, NAN], [0, 1, 1, 1], False),  # a guard was there
        ([1.0, NAN], [0, 0], False),  # the log ends with it
        ([1.0, NAN, NAN, NAN], None, False),  # nobody logged what was skipped
    ],
)
def test_it_stays_where_the_step_was_taken_and_nothing_is_finite_after_it(
    norm: list[float], skipped: list[int] | None, stayed: bool
) -> None:
    columns: dict[str, list[float] | list[int]] = {
        "grad_l2_pre_clip": norm,
        "loss": [1.0] * len(norm),
    }
    if skipped is not None:
        columns["skipped"] = skipped
    steps = StepTable.from_arrays(columns)
    assert damage_stayed(steps, 1) is stayed
    assert not damage_stayed(steps, 9)
