import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.diagnose.wording import (
    clause,
    counted,
    every,
    factor,
    number,
    percent,
    power_of_two,
    span,
    steps,
    times,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.12345, "0.123"),
        (2.41, "2.41"),
        (99.96, "100"),
        (655.36, "655"),
        (65536, "65,536"),
        (12_480.4, "12,480"),
        (1e9, "1e9"),
        (1.234e-5, "1.23e-5"),
        (0.00123, "0.00123"),
        (-3.2, "-3.2"),
        (math.nan, "NaN"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
    ],
)
def test_a_number_has_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


@given(st.floats(min_value=-1e307, max_value=1e307))
def test_a_written_number_is_within_half_a_percent(value: float) -> None:
    read = float(number(value).replace(",", ""))
    assert read == pytest.approx(value, rel=0.0051, abs=1e-300)


@given(st.floats())
def test_any_float_is_short(value: float) -> None:
    assert len(number(value)) <= 11


def test_scales_are_powers_of_two_where_that_is_easier_to_read() -> None:
    assert power_of_two(65536.0) == "65,536"
    assert power_of_two(2.0**32) == "2^32"
    assert power_of_two(2.0**-128) == "2^-128"
    assert power_of_two(0.5) == "0.5"
    assert power_of_two(0.0) == "0"
    assert power_of_two(3e8) == "3e8"


def test_counts_spans_and_shares() -> None:
    assert steps(1) == "1 step"
    assert steps(12_480) == "12,480 steps"
    assert times(1) == "once"
    assert times(14) == "14 times"
    assert span(8218, 8218) == "step 8,218"
    assert span(8218, 8362) == "steps 8,218 to 8,362"
    assert percent(0.34) == "34 %"
    assert percent(0.0523) == "5.2 %"
    assert factor(38) == "×38"


def test_a_count_agrees_with_its_noun() -> None:
    assert counted(1, "snapshot") == "1 snapshot"
    assert counted(0, "snapshot") == "0 snapshots"
    assert counted(12_480, "step") == "12,480 steps"
    assert counted(2, "matrix", "matrices") == "2 matrices"


def test_how_often_something_comes() -> None:
    assert every(1) == "every step"
    assert every(7) == "every 7 steps"


def test_another_programs_message_is_a_clause_without_its_full_stop() -> None:
    assert clause("Target 5 is\n out of bounds.") == "Target 5 is out of bounds"
    assert clause("waiting for rank 1...") == "waiting for rank 1..."
    assert clause("") == ""
