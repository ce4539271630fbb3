"""Whether logs that lie side by side tell of one run, by their values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forensics.runlog.log_facts import PER_EPOCH, LogFacts
from forensics.runlog.same_run import begins_anew, is_another_view
from forensics.runlog.steps import Repair, StepTable

NAN = float("nan")


def table(losses: list[float], first: int = 0, **changes: Any) -> StepTable:
    steps = np.arange(first, first + len(losses))
    made = StepTable.from_arrays({"step": steps, "loss": losses})
    return replace(made, **changes)


OURS = [2.51234, 2.4, 2.3, 2.25, 2.2, 2.1]


@pytest.mark.parametrize(
    ("other", "one"),
    [
        (OURS, True),
        ([round(x, 3) for x in OURS], True),  # printed with four digits
        ([*OURS[:5], 9.0], True),  # one of them is dated or smoothed otherwise
        ([OURS[0], *OURS[:5]], True),  # dated a row late
        ([x + 0.06 for x in OURS], False),
        ([OURS[0], *5 * [NAN]], False),
    ],
)
def test_two_views_agree_at_most_of_their_common_steps(other: list[float], one: bool) -> None:
    assert is_another_view(table(OURS), table(other)) is one
    assert is_another_view(table(other), table(OURS)) is one


def test_nan_in_both_says_nothing() -> None:
    """Two dead runs have that in common, and no more."""
    mine, other = [2.5, 2.4, *8 * [NAN]], [2.9, 2.7, *8 * [NAN]]
    assert not is_another_view(table(mine), table(other))
    assert is_another_view(table(mine), table(mine))


@pytest.mark.parametrize(
    "changes",
    [
        {"source_format": "nemo"},
        {"facts": LogFacts(unit=PER_EPOCH)},
        {"repairs": (Repair(kind="missing-step-column", message="counted"),)},
    ],
)
def test_what_cannot_be_compared_is_not_told_apart(changes: dict[str, Any]) -> None:
    other = [x + 1 for x in OURS]
    assert not is_another_view(table(OURS), table(other))
    assert is_another_view(table(OURS), table(other, **changes))
    assert is_another_view(table(OURS), table(other, first=100))
    assert is_another_view(table(OURS), table([9.0], first=5))


def test_a_restart_repeats_an_end_and_another_run_the_whole() -> None:
    losses = [3 - n / 100 for n in range(100)]
    other = [x + 0.5 for x in losses]

    def joined(since: int, old: list[float]) -> StepTable:
        return replace(table(losses), earlier=(table(old[since:], first=since),))

    assert not begins_anew(table(losses))
    assert not begins_anew(joined(60, other))
    assert begins_anew(joined(30, other))
    assert not begins_anew(joined(30, losses))
    assert begins_anew(joined(0, losses))  # a count from the start is a run of its own
