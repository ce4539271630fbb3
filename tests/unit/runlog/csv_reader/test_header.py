"""Which column is which."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.runlog.logs import HEADER, kinds, log, read, row


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("Step, loss ,learning_rate", ["step", "lr", "loss"]),
        ("global_step,train/loss,grad_norm", ["step", "grad_l2_pre_clip", "loss"]),
        ("iteration,train_loss,loss_scale,eval_loss", ["step", "loss", "scaler_scale", "val_loss"]),
        ("Iter,Training Loss,Grad Norm", ["step", "grad_l2_pre_clip", "loss"]),
        ("_step,loss,lr-1", ["step", "loss", "lr_1"]),
        ('"step","loss"', ["step", "loss"]),
    ],
)
def test_other_names_of_the_same_columns(tmp_path: Path, header: str, columns: list[str]) -> None:
    cells = ",".join("1" for _ in columns)
    table = read(tmp_path, f"{header}\n{cells}\n")
    assert list(table) == columns
    assert kinds(table) == ([] if header.startswith('"') else ["renamed-columns"])
    assert all(table[name].tolist() == [1] for name in columns)


def test_the_exact_name_wins_over_another_one(tmp_path: Path) -> None:
    table = read(tmp_path, "iteration,step,train_loss,loss,Loss\n5,6,7,8,9\n")
    assert (table.step.tolist(), table["loss"].tolist()) == ([6], [8.0])
    assert (table["train_loss"].tolist(), table["Loss"].tolist()) == ([7.0], [9.0])
    assert table.repairs == ()


def test_a_repeated_name_keeps_the_first_and_shows_both(tmp_path: Path) -> None:
    table = read(tmp_path, "step,loss,loss\n0,1,2\n")
    assert table["loss"].tolist() == [1.0]
    assert table["loss (2)"].tolist() == [2.0]
    assert kinds(table) == ["duplicate-columns"]


def test_foreign_columns_are_numbers_where_all_of_them_are(tmp_path: Path) -> None:
    late = [f"{step},1.0,{step},ok,," for step in range(500)]
    table = read(
        tmp_path, "\n".join(["step,loss,acc,note,late,never", *late, "500,1.0,7,no,0.5,", ""])
    )
    assert table["acc"].dtype == table["late"].dtype == float
    assert table["late"][-1] == 0.5
    assert table.present("late").sum() == 1
    assert table.columns["note"].texts()[-1] == "no"
    assert not table.has("never")


@pytest.mark.parametrize(("delimiter", "kind"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_delimiters(tmp_path: Path, delimiter: str, kind: str) -> None:
    table = read(tmp_path, log(row(0), row(1)).replace(",", delimiter))
    assert table["loss"].tolist() == [2.5, 2.5]
    assert kinds(table) == ["delimiter"]
    assert kind in table.repairs[0].message


def test_decimal_commas(tmp_path: Path) -> None:
    table = read(tmp_path, "step;loss;lr\n0;2,5;1e-3\n1;1.234,5;0,001\n2;nan;\n")
    assert table["loss"][:2].tolist() == [2.5, 1234.5]
    assert table["lr"][:2].tolist() == [1e-3, 1e-3]
    assert kinds(table) == ["delimiter", "decimal-comma"]


def test_points_beside_semicolons_stay_points(tmp_path: Path) -> None:
    table = read(tmp_path, "step;loss\n0;2.5\n1;83,461.5\n")
    assert table["loss"].tolist() == [2.5, 83461.5]
    assert "decimal-comma" not in kinds(table)


@pytest.mark.parametrize(
    "text",
    [
        "loss,lr\n1,0.1\n2,0.1\n",
        "step,loss,lr\n,1,0.1\n,2,0.1\n",
        "step,loss,lr\n0.1,1,0.1\n0.25,2,0.1\n",
    ],
)
def test_without_usable_steps_rows_are_counted_and_it_is_said(tmp_path: Path, text: str) -> None:
    table = read(tmp_path, text)
    assert table.step.tolist() == [0, 1]
    assert table["loss"].tolist() == [1.0, 2.0]
    assert kinds(table) == ["missing-step-column"]


def test_the_axis_that_is_no_step_is_kept(tmp_path: Path) -> None:
    table = read(tmp_path, "step,loss\n0.1,1\n0.25,2\n")
    assert table["step (as written)"].tolist() == [0.1, 0.25]


def test_lines_before_the_header_are_passed_over(tmp_path: Path) -> None:
    table = read(tmp_path, f"# a run\n\nsep=,\n{HEADER}\n{row(0)}\n")
    assert len(table) == 1
    assert [(r.kind, r.count) for r in table.repairs] == [("preamble", 3)]


def test_names_lose_their_control_characters(tmp_path: Path) -> None:
    table = read(tmp_path, "step,loss,\x1b[31mred\u202e\n0,1.0,2\n")
    assert "[31mred" in list(table)
