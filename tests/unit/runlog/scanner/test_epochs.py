"""Logs without a step whose rows are epochs: CSV and JSON lines alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.runlog.log_facts import PER_EPOCH, PER_STEP
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.logs import column, read
from tests.unit.runlog.importers.samples import lines_of


def unit_of(table: StepTable) -> str:
    assert table.facts is not None
    return table.facts.unit


def repairs_of(table: StepTable) -> set[str]:
    return {repair.kind for repair in table.repairs}


def test_epochs_that_begin_anew_are_a_second_run(tmp_path: Path) -> None:
    rows = "".join(f"{e},{loss},1e-3\n" for loss in (3.0, 2.0) for e in range(5))
    table = read(tmp_path, "epoch,mean_loss,lr\n" + rows)
    assert table.step.tolist() == [0, 1, 2, 3, 4]
    assert column(table, "loss") == [2.0] * 5
    assert [old.step.tolist() for old in table.earlier] == [[0, 1, 2, 3, 4]]
    assert unit_of(table) == PER_EPOCH
    assert repairs_of(table) == {"renamed-columns", "second-run"}


def test_every_fifth_epoch_is_numbered_as_the_log_does(tmp_path: Path) -> None:
    table = read(tmp_path, "epoch,train_loss\n5,3.0\n10,2.0\n15,1.5\n")
    assert table.step.tolist() == [5, 10, 15]
    assert (unit_of(table), table.interval) == (PER_EPOCH, 1)


def test_notes_between_the_epochs_belong_to_theirs(tmp_path: Path) -> None:
    records: list[dict[str, object]] = []
    for epoch in (1, 2, 3):
        records += [
            {"epoch": epoch, "train_loss": 3.0 / epoch, "val_loss": 3.5 / epoch},
            {"event": "saved", "epoch": epoch, "val_loss": 3.5 / epoch, "path": "best.pt"},
        ]
    table = read(tmp_path, lines_of([*records, {"event": "done", "best_val_loss": 1.0}]))
    assert table.step.tolist() == [1, 2, 3]
    assert column(table, "loss") == [3.0, 1.5, 1.0]
    assert unit_of(table) == PER_EPOCH


def test_rows_of_one_epoch_that_each_hold_a_loss_are_counted(tmp_path: Path) -> None:
    table = read(tmp_path, "epoch,batch,loss\n0,0,3.0\n0,1,2.5\n1,0,2.0\n1,1,1.5\n")
    assert table.step.tolist() == [0, 1, 2, 3]
    assert unit_of(table) == PER_STEP


@pytest.mark.parametrize("epochs", [(0.5, 1.0, 1.5), (2.0, 2.0, 2.0)])
def test_what_numbers_no_epochs_is_counted(epochs: tuple[float, ...], tmp_path: Path) -> None:
    table = read(tmp_path, "epoch,loss,sparse\n" + "".join(f"{e!r},2.5,1\n" for e in epochs))
    assert table.step.tolist() == [0, 1, 2]
    assert unit_of(table) == PER_STEP


def test_rows_with_a_validation_each_are_taken_to_be_epochs_and_said(tmp_path: Path) -> None:
    table = read(tmp_path, ",loss,accuracy,val_loss\n0,3.0,0.5,3.1\n1,2.0,0.6,2.1\n")
    assert table.step.tolist() == [0, 1]
    assert unit_of(table) == PER_EPOCH
    assert table.facts is not None
    assert "epoch" in table.facts.notes[0]
    sparse = read(tmp_path, "loss,val_loss\n3.0,3.1\n2.0,\n1.5,2.1\n")
    assert unit_of(sparse) == PER_STEP


def test_an_epoch_that_a_restart_did_again_leaves_the_rows_epochs(tmp_path: Path) -> None:
    header = "epoch,train_loss,val_loss\n"
    first = "".join(f"{e},{3.0 - 0.1 * e},{3.2 - 0.1 * e}\n" for e in range(20))
    again = header + "".join(f"{e},{2.9 - 0.1 * e},{3.1 - 0.1 * e}\n" for e in range(19, 25))
    table = read(tmp_path, header + first + again)
    assert table.step.tolist() == list(range(25))
    assert column(table, "loss")[18:20] == pytest.approx([1.2, 1.0])
    assert unit_of(table) == PER_EPOCH
    assert {"repeated-steps", "repeated-header"} <= repairs_of(table)
