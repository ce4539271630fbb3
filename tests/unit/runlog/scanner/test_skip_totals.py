"""A counter of all skips so far becomes the skips of each row."""

from __future__ import annotations

import pytest

from forensics.runlog.scanner.skip_totals import (
    TOTAL,
    with_named_total,
    with_sampled_flags,
    with_skip_totals,
)
from forensics.runlog.steps import StepTable


def table(step: list[int], total: list[int | None], **more: list[int | None]) -> StepTable:
    return StepTable.from_arrays({"step": step, TOTAL: total, **more})


def skipped(it: StepTable) -> list[int]:
    found = with_skip_totals(it)
    assert TOTAL not in found
    return [int(count) for count in found["skipped_steps"]]


def test_the_counter_grows_by_the_skips_of_a_row() -> None:
    assert skipped(table([10, 20, 30, 40], [6, 6, 7, 7])) == [6, 0, 1, 0]


def test_a_log_that_begins_late_tells_nothing_of_what_was_before() -> None:
    assert skipped(table([500, 510, 520], [6, 6, 7])) == [0, 0, 1]


def test_what_no_row_tells_lies_in_the_hole() -> None:
    it = table([1, 2, 3, 900, 901], [0, None, None, None, 400], skipped_steps=[0, 0, 0, 0, 1])
    found = with_skip_totals(it)
    assert found["skipped_steps"].tolist() == [0, 0, 0, 399, 1]
    assert found["covered_steps"][3] == 897


def test_the_counter_goes_before_a_count_of_notes() -> None:
    it = table([1, 2, 3], [0, 1, 1], skipped_steps=[0, 4, 0])
    assert skipped(it) == [0, 1, 0]


def test_a_counter_that_was_set_back_invents_nothing() -> None:
    assert skipped(table([10, 20, 30], [6, 0, 1])) == [6, 0, 1]


@pytest.mark.parametrize("name", ["skipped_total", "amp/total_skipped_steps", "Overflows-total"])
def test_a_column_that_is_called_a_total_is_a_counter(name: str) -> None:
    found = with_named_total(StepTable.from_arrays({"step": [10, 20, 30], name: [2.0, 2.0, 3.0]}))
    assert found["skipped_steps"].tolist() == [2, 0, 1]
    assert name not in found


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("skipped_steps", [2.0, 2.0, 3.0]),
        ("skipped_total", [2.0, 1.0, 3.0]),
        ("skipped_total", [0.5, 1.5, 2.0]),
    ],
)
def test_any_other_column_is_left_alone(name: str, values: list[float]) -> None:
    it = StepTable.from_arrays({"step": [10, 20, 30], name: values})
    assert with_named_total(it) is it


def test_a_flag_logged_every_fifty_steps_is_of_one_step() -> None:
    columns = {"step": [50, 100, 150, 200, 250], "covered_steps": [50] * 5}
    flags = StepTable.from_arrays({**columns, "skipped": [False, True, False, True, True]})
    found = with_sampled_flags(flags)
    assert found["skipped_steps"].tolist() == [0, 1, 0, 50, 50]
    every = StepTable.from_arrays({"step": [1, 2], "skipped": [False, True]})
    assert with_sampled_flags(every) is every
