"""Steps that go back: a resume, a second run, halves of a row, or disorder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.steps import StepTable
from tests.unit.runlog.logs import HEADER, kinds, log, read, row


def run(first: int, last: int, loss: float) -> list[str]:
    """Rows of the steps from first to last."""
    return [row(step, loss) for step in range(first, last + 1)]


def notes(table: StepTable) -> list[tuple[str, int | None, int]]:
    return [(repair.kind, repair.step, repair.count) for repair in table.repairs]


def test_a_second_run_in_the_file_is_the_one_that_is_read(tmp_path: Path) -> None:
    table = read(tmp_path, log(*run(0, 99, 1.0), *run(0, 39, 2.0)))
    assert table.step.tolist() == list(range(40))
    assert set(table["loss"]) == {2.0}
    assert notes(table) == [("second-run", 0, 100)]
    assert table.repairs[0].line == 102
    (earlier,) = table.earlier
    assert len(earlier) == 100
    assert set(earlier["loss"]) == {1.0}


def test_a_header_between_two_runs_changes_nothing_about_it(tmp_path: Path) -> None:
    table = read(tmp_path, log(*run(0, 9, 1.0), HEADER, *run(0, 4, 2.0), HEADER, *run(0, 2, 3.0)))
    assert table["loss"].tolist() == [3.0] * 3
    assert kinds(table) == ["repeated-header", "second-run"]
    assert [len(earlier) for earlier in table.earlier] == [10, 5]


def test_a_resume_replaces_what_it_does_again(tmp_path: Path) -> None:
    table = read(tmp_path, log(*run(0, 99, 1.0), *run(80, 149, 2.0)))
    assert table.step.tolist() == list(range(150))
    assert table["loss"].tolist() == [1.0] * 80 + [2.0] * 70
    assert notes(table) == [("repeated-steps", 80, 20)]
    assert table.earlier[0].step.tolist() == list(range(80, 100))


def test_rows_beyond_a_resume_that_is_still_going_on_are_not_its_future(tmp_path: Path) -> None:
    table = read(tmp_path, log(*run(0, 99, 1.0), *run(50, 59, 2.0)))
    assert table.step.tolist() == list(range(60))
    assert notes(table) == [("repeated-steps", 50, 10), ("abandoned-steps", 59, 40)]
    assert table.earlier[0].step.tolist() == list(range(50, 100))


def test_one_repeated_step_keeps_the_last_row(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0), row(1, 1.0), row(1, 7.0), row(2)))
    assert table["loss"].tolist() == [2.5, 7.0, 2.5]
    assert notes(table) == [("repeated-steps", 1, 1)]
    late = read(tmp_path, log(*run(0, 9, 1.0), row(4, 7.0)))
    assert late.step.tolist() == list(range(10))
    assert late["loss"][4] == 7.0
    assert notes(late) == [("unordered-steps", 4, 1), ("repeated-steps", 4, 1)]


@settings(deadline=None, max_examples=60)
@given(st.permutations(range(12)))
def test_shuffled_rows_are_sorted_and_none_is_lost(
    tmp_path_factory: pytest.TempPathFactory, order: list[int]
) -> None:
    table = read(tmp_path_factory.getbasetemp(), log(*(row(step, step / 3) for step in order)))
    assert table.step.tolist() == list(range(12))
    assert table["loss"].tolist() == [step / 3 for step in range(12)]
    assert table.earlier == ()
    assert kinds(table) == ([] if order == sorted(order) else ["unordered-steps"])


def test_a_descending_log_is_turned_round(tmp_path: Path) -> None:
    table = read(tmp_path, log(*reversed(run(0, 999, 1.0))))
    assert table.step.tolist() == list(range(1000))
    assert notes(table) == [("unordered-steps", 998, 999)]


def test_training_and_validation_rows_of_a_step_are_halves(tmp_path: Path) -> None:
    text = "epoch,step,loss,val_loss\n0,49,2.0,\n0,49,,2.1\n1,99,nan,\n1,99,,1.9\n"
    table = read(tmp_path, text)
    assert table.step.tolist() == [49, 99]
    assert table["loss"][0] == 2.0
    assert np.isnan(table["loss"][1])
    assert table.present("loss").all()
    assert table["val_loss"].tolist() == [2.1, 1.9]
    assert notes(table) == [("merged-rows", 49, 2)]


def test_validation_written_after_the_epoch_replaces_no_training(tmp_path: Path) -> None:
    training = [f"{step},1.0," for step in range(20)]
    validation = [f"{step},,5.0" for step in range(20)]
    table = read(tmp_path, "\n".join(["step,loss,val_loss", *training, *validation, ""]))
    assert table["loss"].tolist() == [1.0] * 20
    assert table["val_loss"].tolist() == [5.0] * 20
    assert table.earlier == ()


def test_a_block_that_came_late_is_sorted_in(tmp_path: Path) -> None:
    table = read(tmp_path, log(*run(10, 19, 1.0), *run(0, 9, 2.0), *run(20, 29, 3.0)))
    assert table.step.tolist() == list(range(30))
    assert notes(table) == [("unordered-steps", 0, 1)]


def test_a_hundred_restarts_are_followed(tmp_path: Path) -> None:
    lines = [line for k in range(100) for line in run(10 * k, 10 * k + 19, float(k))]
    table = read(tmp_path, log(*lines))
    assert table.step.tolist() == list(range(1010))
    assert table["loss"][985] == 98.0
    assert table["loss"][990] == 99.0
    assert notes(table) == [("repeated-steps", 10, 990)]


@pytest.mark.parametrize("stray", [0, 3, 31])
def test_a_step_that_lost_its_first_digits_sets_no_row_aside(tmp_path: Path, stray: int) -> None:
    lines = [*run(0, 130, 1.0), row(stray, 1.0), *run(132, 400, 1.0)]
    table = read(tmp_path, log(*lines))
    assert table.step.tolist() == [step for step in range(401) if step != 131]
    assert table.earlier == ()
    assert "unordered-steps" in kinds(table)


@pytest.mark.parametrize("overlap", [2, 3, 40])
@pytest.mark.parametrize("stride", [1, 10])
def test_a_resume_of_any_overlap_stays_one(tmp_path: Path, overlap: int, stride: int) -> None:
    first = [row(step, 1.0) for step in range(0, 100 * stride, stride)]
    again = [row(step, 2.0) for step in range((100 - overlap) * stride, 200 * stride, stride)]
    table = read(tmp_path, log(*first, *again))
    assert len(table) == 200
    assert [len(earlier) for earlier in table.earlier] == [overlap]
