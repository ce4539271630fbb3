"""Steps that count anew in each epoch, and those that only look so."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.runlog.log_facts import PER_EPOCH
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.logs import column, read
from tests.unit.runlog.importers.samples import lines_of

Rows = list[tuple[int, int]]


def as_csv(rows: Rows, step: str = "iter") -> str:
    lines = [f"{epoch},{at},{3 - i / 100}\n" for i, (epoch, at) in enumerate(rows)]
    return f"epoch,{step},train_loss\n" + "".join(lines)


def as_json_lines(rows: Rows) -> str:
    return lines_of([{"epoch": e, "step": s, "loss": 3 - i / 100} for i, (e, s) in enumerate(rows)])


def kinds(table: StepTable) -> set[str]:
    return {repair.kind for repair in table.repairs}


@pytest.mark.parametrize(
    ("batches", "steps"),
    [
        (range(4), list(range(12))),
        (range(1, 5), list(range(1, 13))),
        (range(0, 200, 50), list(range(0, 600, 50))),
        (range(49, 200, 50), list(range(49, 600, 50))),
        (range(2), list(range(6))),
    ],
)
@pytest.mark.parametrize("first", [0, 1])
def test_iterations_of_each_epoch_are_numbered_through(
    batches: range, steps: list[int], first: int, tmp_path: Path
) -> None:
    rows = [(first + epoch, batch) for epoch in range(3) for batch in batches]
    for text in (as_csv(rows), as_csv(rows, "step"), as_json_lines(rows)):
        table = read(tmp_path, text)
        assert table.step.tolist() == steps
        assert column(table, "loss") == [3 - i / 100 for i in range(len(rows))]
        assert table.earlier == ()
        assert "epoch-steps" in kinds(table)


def test_a_resume_within_such_a_log_replaces_what_it_repeats(tmp_path: Path) -> None:
    rows = [(epoch, batch) for epoch in range(4) for batch in range(10)]
    table = read(tmp_path, as_csv(rows + rows[20:]))
    assert table.step.tolist() == list(range(40))
    assert column(table, "loss")[19:21] == [3 - 19 / 100, 3 - 40 / 100]
    assert [old.step.tolist() for old in table.earlier] == [list(range(20, 40))]


def test_a_step_that_is_the_same_in_each_epoch_says_nothing(tmp_path: Path) -> None:
    for text in (
        as_csv([(epoch, 37) for epoch in range(1, 6)]),
        as_json_lines([(epoch, 37) for epoch in range(1, 6)]),
    ):
        table = read(tmp_path, text)
        assert table.step.tolist() == [1, 2, 3, 4, 5]
        assert table.facts is not None
        assert table.facts.unit == PER_EPOCH


def test_steps_of_the_whole_run_are_left_as_they_are(tmp_path: Path) -> None:
    rows = [(step // 5, step) for step in range(20)]
    assert read(tmp_path, as_csv(rows)).step.tolist() == list(range(20))
    evaluated = sorted([*rows, *((epoch + 1, 5 * epoch + 4) for epoch in range(3))], key=sum)
    assert "epoch-steps" not in kinds(read(tmp_path, as_json_lines(evaluated)))


def test_a_second_run_is_still_one(tmp_path: Path) -> None:
    rows = [(step // 5, step) for step in range(20)]
    table = read(tmp_path, as_csv(rows + rows))
    assert [len(old) for old in table.earlier] == [20]
    assert "epoch-steps" not in kinds(table)
