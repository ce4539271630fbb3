from __future__ import annotations

import re

import numpy as np
import pytest

from forensics.errors import InputError
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.steps import StepTable

PATTERN = re.compile(rb"s:(?P<step>[\d,]*) l:(?P<loss>\S+)(?: g:(?P<grad_l2_pre_clip>\S+))?")


def table(rows: Rows, **facts: object) -> StepTable:
    return rows.table("x", LogFacts(**facts), where="a.log")  # type: ignore[arg-type]


def kinds(steps: StepTable) -> set[str]:
    return {repair.kind for repair in steps.repairs}


def test_absent_and_nan_are_told_apart() -> None:
    rows = Rows(RepairLog())
    rows.add(1, {"loss": float("nan"), "lr": 0.1})
    rows.add(2, {"loss": None, "lr": 0.1})
    rows.add(3, {"loss": 2.0, "skipped": True})
    steps = table(rows)
    assert steps.present("loss").tolist() == [True, False, True]
    assert np.isnan(steps["loss"][0])
    assert steps["skipped"].tolist() == [False, False, True]
    assert steps.present("skipped").tolist() == [False, False, True]


def test_clean_matches_and_odd_ones_give_the_same() -> None:
    clean, odd = Rows(RepairLog(), size=1000), Rows(RepairLog())
    clean.match(PATTERN, b"s:1 l:0.5 g:2\ns:2 l:nan\ns:1000 l:1e-5 g:inf\n")
    odd.match(PATTERN, b"s:1 l:0.5 g:2\ns:2 l:NaN\ns:1,000 l:1e-5 g:Infinity\ns: l:7\n")
    one, two = table(clean), table(odd)
    for name in ("step", "loss", "grad_l2_pre_clip"):
        np.testing.assert_array_equal(one[name], two[name])
        np.testing.assert_array_equal(one.present(name), two.present(name))


def test_what_is_no_number_is_absent() -> None:
    rows = Rows(RepairLog())
    assert rows.match(PATTERN, b"s:1 l:0.5\ns:2 l:oops\n") == 2
    assert table(rows).present("loss").tolist() == [True, False]


def test_ranks_that_write_the_same_step_become_one_row_and_the_bad_one_shows() -> None:
    rows = Rows(RepairLog())
    for step in (4, 5, 6):
        for rank in range(3):
            rows.add(step, {"loss": float("nan") if (step, rank) == (5, 2) else 7.5 + rank})
    steps = table(rows)
    assert steps.step.tolist() == [4, 5, 6]
    assert steps["loss"][0] == 7.5
    assert np.isnan(steps["loss"][1])
    assert kinds(steps) == {"merged-ranks"}


def test_a_trainer_and_its_evaluation_become_one_row_without_a_word() -> None:
    rows = Rows(RepairLog())
    rows.add(10, {"loss": 2.0})
    rows.add(10, {"val_loss": 3.0})
    rows.add(20, {"loss": 1.5})
    steps = table(rows)
    assert steps["val_loss"][0] == 3.0
    assert steps.step.tolist() == [10, 20]
    assert kinds(steps) == set()


def test_a_second_run_is_cut_at_the_seam() -> None:
    rows = Rows(RepairLog())
    for run in range(2):
        for step in range(1, 30):
            rows.add(step, {"loss": float(run)})
    steps = table(rows)
    assert (steps["loss"] == 1.0).all()
    assert [len(old) for old in steps.earlier] == [29]
    assert steps.earlier[0].source_format == "x"


def test_a_row_covers_the_steps_since_the_one_before() -> None:
    rows = Rows(RepairLog())
    for step in (25, 50, 75, 200, 225, 230):
        rows.add(step, {"loss": 1.0})
    rows.add(240, {"val_loss": 1.0})
    steps = table(rows, step_base=1)
    # A hole is no row of 125 steps, the last row is a short one, a validation covers none.
    assert steps["covered_steps"].tolist() == [25, 25, 25, 25, 25, 5, 0]
    assert [steps.first_of(row) for row in range(7)] == [1, 26, 51, 176, 201, 226, 240]
    assert steps.interval == 25


def test_a_row_of_step_0_covers_no_step_before_it() -> None:
    rows = Rows(RepairLog())
    for step in (0, 10, 20):
        rows.add(step, {"loss": 1.0})
    assert table(rows)["covered_steps"].tolist() == [1, 10, 10]


def test_a_log_of_every_step_has_no_such_column() -> None:
    rows = Rows(RepairLog())
    for step in range(9):
        rows.add(step, {"loss": 1.0})
    steps = table(rows)
    assert "covered_steps" not in steps
    assert (steps.interval, steps.first_of(3)) == (1, 3)


def test_nothing_to_judge_by_is_an_error_that_names_the_file() -> None:
    rows = Rows(RepairLog())
    with pytest.raises(InputError, match=r"a\.log: has no record of training as x writes it"):
        table(rows)
    rows.add(1, {"epoch": 1.0})
    with pytest.raises(InputError, match="has no record"):
        table(rows)


def test_a_count_that_is_none_is_absent() -> None:
    rows = Rows(RepairLog())
    for step, skips in enumerate((2.0, float("nan"), float("inf"), 1e30, 0.0)):
        rows.add(step, {"loss": 1.0, "skipped_steps": skips})
    steps = table(rows)
    assert steps["skipped_steps"].tolist() == [2, 0, 0, 0, 0]
    assert steps.present("skipped_steps").tolist() == [True, False, False, False, True]
    many = Rows(RepairLog())
    counted = np.array([2.0, np.nan, np.inf, 1e30, 0.0])
    many.extend({"step": np.arange(5), "loss": np.ones(5), "skipped_steps": counted})
    np.testing.assert_array_equal(table(many)["skipped_steps"], steps["skipped_steps"])
