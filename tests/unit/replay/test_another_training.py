"""Whether a replay is the record, and what is said where it is not."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forensics.diagnose.bisection_result import Departure
from forensics.replay.another_training import another, contradicts, own_way
from forensics.replay.bad import parse_bad


def departure(step: int, recorded: float, replayed: float) -> Departure:
    return Departure(step=step, column="loss", recorded=recorded, replayed=replayed)


@pytest.mark.parametrize(
    ("bad", "recorded", "replayed", "contradicted"),
    [
        (None, {"loss": 1.0}, {"loss": math.nan}, True),
        (None, {"loss": math.nan}, {"loss": math.nan}, False),
        (None, {"lr": 0.1}, {"lr": 0.1, "loss": math.nan}, False),
        (None, {"skip_reason": ""}, {"skip_reason": "nonfinite_loss"}, False),
        ("loss>10", {"loss": 1.0}, {"loss": 11.0}, True),
        ("loss>10", {"loss": 12.0}, {"loss": 11.0}, False),
        ("loss>10", {"lr": 0.1}, {"loss": 11.0}, False),
        ("loss>10", None, {"loss": 11.0}, False),
    ],
)
def test_only_a_number_of_the_same_row_contradicts(
    bad: str | None, recorded: dict[str, Any] | None, replayed: dict[str, Any], contradicted: bool
) -> None:
    assert contradicts(parse_bad(bad), recorded, replayed) is contradicted


@pytest.mark.parametrize(
    ("step", "recorded", "words"),
    [
        (7, 9, "leaves the record at step 5 and goes bad at 7, where the record does at 9"),
        (9, 9, "goes bad at 9, as the record does, but not as it was recorded"),
        (7, None, "goes bad at 7, where the record is sound: no operator is claimed"),
        (5, None, "is the record up to step 5, and goes bad in it, where the record is sound"),
        (None, 9, "leaves the record at step 5 and stays sound at 9, where the record goes bad"),
    ],
)
def test_a_replay_that_goes_its_own_way_proves_nothing(
    step: int | None, recorded: int | None, words: str
) -> None:
    assert words in own_way(departure(5, 1.0, 2.0), step, recorded)


@pytest.mark.parametrize(
    ("replayed", "offer"), [(1.012, "--tolerance 0.02 "), (1.5, ""), (math.nan, "")]
)
def test_a_tolerance_is_offered_for_what_may_be_rounding_only(replayed: float, offer: str) -> None:
    told = another(departure(5, 1.0, replayed))
    assert offer in told
    assert ("--tolerance" in told) is bool(offer)
