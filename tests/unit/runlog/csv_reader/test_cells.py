"""One cell: every spelling of a number, a flag and a step."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.csv_reader.cells import (
    WRAPPED,
    is_absent,
    parse_flag,
    parse_number,
    parse_step,
)

NAN = math.nan
INF = math.inf


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", NAN), ("nan", NAN), ("NAN", NAN), ("-nan", NAN), ('"NaN"', NAN), ("'nan'", NAN),
        ("nan(ind)", NAN), ("1.#QNAN", NAN), ("-1.#IND", NAN),
        ("Infinity", INF), ("inf", INF), ("+inf", INF), ("-inf", -INF), ("1e400", INF),
        ("1.#INF", INF), ("-1.#INF", -INF),
        ("tensor(nan)", NAN), ("tensor(0.5, device='cuda:0')", 0.5), ("np.float64(-2.5)", -2.5),
        ("tensor(2., grad_fn=<MeanBackward0>)", 2.0), ("array(3)", 3.0),
        ("83,461", 83461.0), ("1,234,567.5", 1234567.5), ("-1,000", -1000.0),
        ("True", 1.0), ("False", 0.0), (" 0.5 ", 0.5), ("+1", 1.0), ("1.", 1.0), (".5", 0.5),
        # not numbers, or not one thing
        ("", None), ("x", None), ("0,5", None), ("0,461", None), ("1,23", None), ("1_000", None),
        ("12abc", None), ("tensor(1, 2)(3)", None), ("٣", None), ("yes", None), ("0x10", None),
        ("tensor([1., 2.])", None),
    ],
)  # fmt: skip
def test_numbers(text: str, value: float | None) -> None:
    assert same(parse_number(text), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("0,5", 0.5), ("1.234,5", 1234.5), ("-2,5e-3", -0.0025), ("83,461", 83.461), ("nan", NAN),
     ("1.5", 1.5), ("1,234,567", None)],
)  # fmt: skip
def test_numbers_with_a_decimal_comma(text: str, value: float | None) -> None:
    assert same(parse_number(text, ","), value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", True), ("0", False), ("True", True), ("FALSE", False), ("yes", True), ("No", False),
     ("1.0", True), ("0.0", False), ("2", True), ("nan", None), ("", None), ("maybe", None)],
)  # fmt: skip
def test_flags(text: str, value: bool | None) -> None:
    assert parse_flag(text) is value


@pytest.mark.parametrize(
    ("text", "value"),
    [("12", 12), ("12.0", 12), (" 7 ", 7), ("-3", -3), ("1e3", 1000), ("1,234", 1234),
     (str(2**63 - 1), 2**63 - 1), (str(2**63), None), ("9" * 5000, None), ("12.5", None),
     ("nan", None), ("inf", None), ("", None), ("step", None), ("1_0", None), ("1e300", None)],
)  # fmt: skip
def test_steps(text: str, value: int | None) -> None:
    assert parse_step(text) == value


@settings(deadline=None, max_examples=60)
@given(st.floats())
def test_what_python_writes_is_read_to_the_bit(value: float) -> None:
    assert same(parse_number(repr(value)), value)
    assert same(parse_number(f"tensor({value!r})"), value)


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=20))
def test_no_text_raises(text: str) -> None:
    parse_number(text)
    parse_number(text, ",")
    parse_flag(text)
    parse_step(text)


def test_absent_is_not_nan() -> None:
    assert is_absent("")
    assert is_absent(" NA ")
    assert not is_absent("nan")
    assert not is_absent("0")


def test_wrappers_are_taken_off_whole_lines_and_texts_left_alone() -> None:
    line = b"1,tensor(nan, device='cuda:0'),np.float32(0.5),why(x),f(2)\n"
    assert WRAPPED.sub(rb"\1", line) == b"1,nan,0.5,why(x),f(2)\n"


def same(found: float | None, expected: float | None) -> bool:
    if found is None or expected is None or math.isnan(expected):
        return (found is None) == (expected is None) and str(found) == str(expected)
    return math.copysign(1, found) == math.copysign(1, expected) and found == expected
