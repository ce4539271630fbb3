"""Damaged lines: each mend is said, and no doubtful number becomes a value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.runlog.logs import HEADER, kinds, log, read, row


@pytest.mark.parametrize("cut", [1, 2, 5, 12, 25])
def test_a_cut_last_line_is_dropped_and_said(tmp_path: Path, cut: int) -> None:
    table = read(tmp_path, log(row(0), row(1))[:-cut])
    assert table.step.tolist() == [0]
    (repair,) = table.repairs
    assert (repair.kind, repair.line, repair.lossy) == ("torn-last-line", 3, True)
    assert repair.step == 1


def test_another_writers_last_line_keeps_all_but_a_last_number(tmp_path: Path) -> None:
    table = read(tmp_path, "step,lr,loss\n0,0.1,2.0\n1,0.1,655")
    assert table.step.tolist() == [0, 1]
    assert table["lr"].tolist() == [0.1, 0.1]
    assert table.present("loss").tolist() == [True, False]
    assert [(r.kind, r.lossy) for r in table.repairs] == [("doubtful-last-cell", True)]


@pytest.mark.parametrize("word", ["nan", "NaN", "-inf", "Infinity"])
def test_a_last_nan_cannot_be_cut_and_is_kept(tmp_path: Path, word: str) -> None:
    table = read(tmp_path, f"step,loss\n0,2.0\n1,{word}")
    assert len(table) == 2
    assert not np.isfinite(table["loss"][1])
    assert [(r.kind, r.lossy) for r in table.repairs] == [("unterminated-last-line", False)]


@pytest.mark.parametrize(
    "text", ["loss,step\n1.0,0\n2.0,12", "loss\n1.0\n2.0", "step,loss\n0,1.0\n1"]
)
def test_a_last_line_whose_place_or_only_cell_is_in_doubt_is_dropped(
    tmp_path: Path, text: str
) -> None:
    table = read(tmp_path, text)
    assert table["loss"].tolist() == [1.0]
    assert "torn-last-line" in kinds(table)


def test_a_nul_tail_hides_no_row(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0), row(1)) + "\0" * 4096)
    assert table.step.tolist() == [0, 1]
    assert [(r.kind, r.count) for r in table.repairs] == [("nul-bytes", 4096)]


@pytest.mark.parametrize("nuls", [1, 77, 5000])
def test_what_nul_bytes_tore_is_not_glued(
    tmp_path: Path, nuls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.runlog.csv_reader.source.BLOCK", 256)
    table = read(
        tmp_path, log(row(0)) + row(1)[:-3] + "\0" * nuls + row(2) + "\n" + row(3, "x") + "\n"
    )
    assert table.step.tolist() == [0, 2, 3]
    by_kind = {repair.kind: repair for repair in table.repairs}
    assert by_kind["nul-bytes"].count == nuls
    assert (by_kind["torn-rows"].line, by_kind["torn-rows"].step) == (3, 1)
    assert by_kind["unparsable-cells"].line == 4


@pytest.mark.parametrize("k", range(3, len(row(2)) + 1))
def test_a_restart_in_a_torn_line_loses_only_the_torn_row(tmp_path: Path, k: int) -> None:
    glued = row(2)[:k] + row(3)
    table = read(tmp_path, log(row(0), row(1), glued, row(4)))
    assert table.step.tolist() in ([0, 1, 3, 4], [0, 1, 4])
    assert table["loss"].tolist() == [2.5] * len(table)
    assert table["scaler_scale"].tolist() == [65536.0] * len(table)
    assert len(kinds(table)) == 1
    if glued.count(",") > 7:  # fewer cells than that show no glue at all
        assert kinds(table) == ["glued-rows"]
        assert 3 in table.step


def test_two_rows_that_cannot_be_told_apart_are_dropped_with_a_note(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0), row(2)[:20] + row(3), row(9)))
    assert table.step.tolist() == [0, 9]
    assert [(r.kind, r.line, r.lossy) for r in table.repairs] == [("overlong-rows", 3, True)]


def test_repeated_and_changed_headers(tmp_path: Path) -> None:
    text = log(row(0), HEADER, row(1)) + "step,loss,new\n2,3.5,7\n3,nan,8\n"
    table = read(tmp_path, text)
    assert table.step.tolist() == [0, 1, 2, 3]
    assert table["loss"][:3].tolist() == [2.5, 2.5, 3.5]
    assert table.present("lr").tolist() == [True, True, False, False]
    assert table.present("new").tolist() == [False, False, True, True]
    assert table["new"][2:].tolist() == [7.0, 8.0]
    assert [(r.kind, r.line) for r in table.repairs] == [
        ("repeated-header", 3),
        ("changed-header", 5),
    ]


def test_short_rows_keep_what_they_have(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0), "1,0.001,9.5", row(2)))
    assert table["grad_l2_pre_clip"].tolist() == [1.5, 9.5, 1.5]
    assert table.present("loss").tolist() == [True, False, True]
    assert table["skipped"].tolist() == [False, False, False]
    assert [(r.kind, r.line, r.step) for r in table.repairs] == [("short-rows", 3, 1)]


def test_trailing_delimiters_are_no_cells(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0) + ",", row(1) + ",,"))
    assert len(table) == 2
    assert [(r.kind, r.count, r.lossy) for r in table.repairs] == [("extra-cells", 2, False)]


def test_other_output_in_between_is_passed_over(tmp_path: Path) -> None:
    noise = [
        "Traceback (most recent call last):",
        '  File "x.py", line 3, in <module>',
        "KeyError: 1",
    ]
    table = read(tmp_path, log(row(0), *noise, row(1), "", "   "))
    assert table.step.tolist() == [0, 1]
    (repair,) = table.repairs
    assert (repair.kind, repair.count, repair.line) == ("stray-lines", 3, 3)
    assert "'Traceback (most recent call last):'" in repair.message


def test_steps_that_are_none(tmp_path: Path) -> None:
    good = [row(step) for step in range(10)]
    table = read(tmp_path, log(*good, row("x"), row("2.5"), row(2**63), row(""), row(11)))
    assert table.step.tolist() == [*range(10), 11]
    (repair,) = table.repairs
    assert (repair.kind, repair.count, repair.line, repair.lossy) == ("bad-steps", 4, 12, True)


def test_float_and_negative_steps(tmp_path: Path) -> None:
    table = read(tmp_path, log(row("-1.0"), row("0.0"), row("12.0")))
    assert table.step.tolist() == [-1, 0, 12]
    assert table.step.dtype == np.int64
    assert kinds(table) == ["float-steps", "negative-steps"]
    assert read(tmp_path, log(row(0), row("1.0"), row("x"), row(3))).step.tolist() == [0, 1, 3]


def test_every_spelling_in_one_log(tmp_path: Path) -> None:
    cells = ["NaN", "NAN", "Infinity", "+inf", "1e400", "tensor(nan)", '"NaN"', '"1,234.5"', "0.5 "]
    cells.append("tensor(0.25, device='cuda:0')")
    table = read(tmp_path, log(*(row(i, cell) for i, cell in enumerate(cells))))
    shown = [str(value) for value in table["loss"].tolist()]
    assert shown == ["nan", "nan", "inf", "inf", "inf", "nan", "nan", "1234.5", "0.5", "0.25"]
    assert kinds(table) == ["odd-numbers"]
    assert table.present("loss").all()


def test_flags_as_others_write_them(tmp_path: Path) -> None:
    words = ["True", "False", "yes", "no", "1.0", "0.0", ""]
    table = read(tmp_path, log(*(row(i, 1, f"{word},,1") for i, word in enumerate(words))))
    assert table["skipped"].tolist() == [True, False, True, False, True, False, False]
    assert table.present("skipped").tolist() == [True] * 6 + [False]
    assert table.repairs == ()


def test_garbage_becomes_absent_and_is_counted_once_a_kind(tmp_path: Path) -> None:
    table = read(tmp_path, log(row(0), *(row(i, "oops") for i in range(1, 50))))
    assert table.present("loss").tolist() == [True] + [False] * 49
    (repair,) = table.repairs
    assert (repair.kind, repair.count, repair.line) == ("unparsable-cells", 49, 3)
    assert "loss 'oops'" in repair.message


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    table = read(tmp_path, b"step,loss,note\n0,1.0,caf\xe9\n1,2.0,ok\n")
    assert table["loss"].tolist() == [1.0, 2.0]
    assert kinds(table) == ["bad-encoding"]


@pytest.mark.parametrize("lost", range(1, 40, 3))
@pytest.mark.parametrize("kept", [0, 1, 2, 7, 20])
def test_a_hole_of_zeros_costs_the_rows_it_lies_in_and_no_more(
    tmp_path: Path, kept: int, lost: int
) -> None:
    lines = [row(step, f"2.{step}") for step in range(1000, 1040)]
    before, after = log(*lines[:20]), "".join(f"{line}\n" for line in lines[20:])
    table = read(tmp_path, before + after[:kept] + "\0" * 4096 + after[kept + lost :])
    expected = [step for step in range(1000, 1040) if step not in (1020, 1021)]
    assert [step for step in table.step.tolist() if step not in (1020, 1021)] == expected
    assert table.earlier == ()
    assert all(table.present("loss"))
    assert not {"short-rows", "unordered-steps", "second-run"} & set(kinds(table))


def test_a_run_that_goes_on_after_a_hole_loses_nothing(tmp_path: Path) -> None:
    lines = [row(step) for step in range(100)]
    table = read(tmp_path, log(*lines[:60]) + "\0" * 512 + log(*lines[50:]).split("\n", 1)[1])
    assert table.step.tolist() == list(range(100))
    assert [len(earlier) for earlier in table.earlier] == [10]


@pytest.mark.parametrize("kept", [1, 3, 4, 12, 30])
def test_a_header_written_into_a_cut_row_is_known(tmp_path: Path, kept: int) -> None:
    lines = [row(step) for step in range(100, 130)]
    text = log(*lines[:10]) + lines[10][:kept] + log(*lines[11:])
    table = read(tmp_path, text)
    assert table.step.tolist() == [step for step in range(100, 130) if step != 110]
    assert set(kinds(table)) == {"torn-rows", "repeated-header"}


def test_a_later_header_with_a_step_where_the_first_has_none(tmp_path: Path) -> None:
    """Its steps are no steps of the rows before it: kept as numbers, whatever they look like."""
    text = "loss,lr\n2.5,0.1\n2.25,0.1\nloss,lr,step\n2.0,0.1,0.5\n1.75,0.1,x\n"
    table = read(tmp_path, text)
    assert table.step.tolist() == [0, 1, 2, 3]
    assert table["loss"].tolist() == [2.5, 2.25, 2.0, 1.75]
    assert table["step (as written)"][2] == 0.5
    assert table.present("step (as written)").tolist() == [False, False, True, False]
