from __future__ import annotations

import re

import numpy as np
import pytest

from forensics.runlog.scanner.numbers import COUNT, NUMBER, count, counts, floats, matches, number


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0.5", 0.5),
        (b"-1.5e-05", -1.5e-5),
        (b"+.5", 0.5),
        (b"10,050", 10050.0),
        (b"1,234,567.5", 1234567.5),
        (b"3.000E+02", 300.0),
        (b"inf", np.inf),
        (b"-Infinity", -np.inf),
        (b"nan", np.nan),
        (b"NaN", np.nan),
        (b"-nan", np.nan),
    ],
)
def test_every_spelling_of_a_number(text: bytes, value: float) -> None:
    match = re.search(rb"loss: (" + NUMBER + rb")", b"loss: " + text + b", lr")
    assert match is not None
    assert match.group(1) == text
    found = number(match.group(1))
    assert found is not None
    np.testing.assert_equal(found, value)


def test_punctuation_after_a_number_is_not_part_of_it() -> None:
    assert re.findall(NUMBER, b"at 3, then 4.5. End") == [b"3", b"4.5"]
    assert re.findall(COUNT, b"step: 12, 1,234, 7") == [b"12", b"1,234", b"7"]


def test_counts_take_thousands_and_do_not_overflow() -> None:
    assert counts([b"7", b"1,234"]).tolist() == [7, 1234]
    assert count(b"9" * 30) == 2**63 - 1


def test_floats_tell_absent_from_nan() -> None:
    values, present = floats([b"1.5", b"", b"nan"])
    assert present is not None
    assert present.tolist() == [True, False, True]
    assert values[0] == 1.5
    assert np.isnan(values[2])
    assert floats([b"1", b"2"])[1] is None


def test_matches_give_a_cell_a_group() -> None:
    pattern = re.compile(rb"s:(?P<step>\d+)(?: l:(?P<loss>[\d.]+))?")
    assert matches(pattern, b"s:1 l:0.5\nnoise\ns:2\n") == {
        "step": [b"1", b"2"],
        "loss": [b"0.5", b""],
    }
    assert matches(pattern, b"") == {"step": [], "loss": []}


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([b"1,234.5", b"10,050", b"7"], [1234.5, 10050.0, 7.0]),
        ([b"1,234,567", b"999"], [1234567.0, 999.0]),
        ([b"1,234", b""], [1234.0, None]),
        ([b"1,234", b"nan"], [1234.0, float("nan")]),
    ],
)
def test_columns_with_separators_for_thousands(
    cells: list[bytes], expected: list[float | None]
) -> None:
    values, present = floats(cells)
    there = present if present is not None else np.ones(len(cells), dtype=bool)
    assert there.tolist() == [cell is not None for cell in expected]
    np.testing.assert_array_equal(values[there], [cell for cell in expected if cell is not None])
