"""The plumbing of the benchmarks: the page, its parts, limits and scoring. Nothing is timed."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import run_all
from benchmarks.fault_answers import Answer
from benchmarks.fault_rivals import _judged, _module_of, _names_operator
from benchmarks.linter_speed import reduced
from benchmarks.measured import ROOT, Goal, Result, Table, goal_of_ratio, run_process, times
from benchmarks.report_speed import write_log
from benchmarks.rivals import LINTERS

PAGE = """intro
<!-- measured: goals -->
<!-- end -->
<!-- measured: report -->
old
<!-- end -->
between
<!-- measured: faults -->
kept
<!-- end -->
"""
ENTRY = {
    "day": "2026-01-02",
    "commit": "abc",
    "machine": "2 cores",
    "load": 0.5,
    "seconds": 90.0,
    "result": Result(
        (Table(("a", "b"), (("1", "2"),), ("A note.",)),), (Goal("x ÷ y", "≤ ×2", "×3.00", False),)
    ).to_json(),
}


def test_the_page_has_one_block_for_each_part() -> None:
    page = run_all.PAGE.read_text()
    for name in (*run_all.PARTS, run_all.GOALS):
        assert run_all.rewritten(page, name, "x").count(f"measured: {name} -->\nx\n") == 1


def test_each_part_can_be_measured() -> None:
    for module in run_all.PARTS.values():
        tree = ast.parse((ROOT / "benchmarks" / f"{module}.py").read_text())
        (found,) = (
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name == "measure_all"
        )
        assert [argument.arg for argument in found.args.args] == ["quick"]


def test_a_block_is_rewritten_and_no_other() -> None:
    page = run_all.rewritten(PAGE, "report", "new")
    assert "old" not in page
    assert page.replace("new", "old") == PAGE
    with pytest.raises(ValueError, match="0 blocks"):
        run_all.rewritten(PAGE, "nothing", "new")
    with pytest.raises(ValueError, match="2 blocks"):
        run_all.rewritten(PAGE + PAGE, "report", "new")


def test_goals_of_other_parts_stay() -> None:
    page = run_all.with_goals(PAGE, "faults", [Goal("located", "all", "41", True)])
    page = run_all.with_goals(page, "report", [Goal("x", "≤ ×2", "×3", False)])
    page = run_all.with_goals(page, "report", [Goal("x", "≤ ×2", "×1", True)])
    rows = [line for line in page.splitlines() if line.startswith("| ")][2:]
    assert rows == [
        "| report | x | ≤ ×2 | ×1 | met |",
        "| faults | located | all | 41 | met |",
    ]


def test_a_measured_part_is_written_with_its_missed_goal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(run_all, "PAGE", page)
    run_all.write_page("report", json.loads(json.dumps(ENTRY)))
    text = page.read_text()
    assert "| 1 | 2 |\n\nA note.\n\n*2026-01-02, commit abc, 1.5 minutes. 2 cores; load 0.5" in text
    assert "| report | x ÷ y | ≤ ×2 | ×3.00 | **missed** |" in text
    assert "kept" in text


def test_a_part_that_fails_is_named_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(run_all, "PAGE", page)
    monkeypatch.setattr(run_all, "KEPT", tmp_path)
    monkeypatch.setattr(run_all.subprocess, "run", _fails)
    assert run_all.main(["--only", "report"]) == 1
    told = capsys.readouterr().out
    assert "report failed (exit code 3)" in told
    assert "not measured: report" in told
    assert page.read_text() == PAGE


def _fails(command: list[str], **_: object) -> None:
    raise subprocess.CalledProcessError(3, command)


def test_what_was_measured_before_is_kept_on_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(run_all, "KEPT", tmp_path)
    monkeypatch.setattr(run_all, "start", lambda name, quick, path: asked.append(name))
    (tmp_path / "report.json").write_text("{}")
    run_all.main(["--resume", "--only", "report", "faults"])
    assert asked == ["faults"]


def test_a_process_past_its_limit_is_ended() -> None:
    cost = run_process([sys.executable, "-c", "import time; time.sleep(60)"], limit=0.2)
    assert cost.ended is None
    assert cost.wall < 30
    assert run_process([sys.executable, "-c", "raise SystemExit(3)"], limit=60).ended == 3


def test_ratios_are_told_by_their_median_and_range() -> None:
    assert times([1.0, 4.0, 1.5]) == ("×1.50", "1.00 to 4.00")
    assert goal_of_ratio("a ÷ b", [1.0, 9.0, 2.1], 2.0) == Goal("a ÷ b", "≤ ×2", "×2.10", False)


def test_linters_get_the_columns_that_they_know(tmp_path: Path) -> None:
    whole, four = tmp_path / "whole.csv", tmp_path / "four.csv"
    write_log(whole, 3)
    reduced(whole, four)
    head, *rows = four.read_text().splitlines()
    assert head == "step,learning_rate,grad_norm,loss"
    assert [row.split(",")[0] for row in rows] == ["0", "1", "2"]
    assert rows[1].split(",")[3] == whole.read_text().splitlines()[2].split(",")[4]


def test_what_linters_print_is_read() -> None:
    losslint, runmedic, gradsnitch, trainspotter = LINTERS
    said = '{"findings": [{"check": "nan_inf", "severity": "error"}]}'
    assert losslint.read(said) == [("nan_inf", "error")]
    assert runmedic.read(f"[{said}]") == [("nan_inf", "error")]
    assert gradsnitch.read('[["GS001", "error"]]') == [("GS001", "error")]
    shown = '{"findings": [{"title": "Plateau", "severity": "info"}]}'
    assert trainspotter.read(shown) == [("Plateau", "info")]
    assert {"nonfinite", "divergence"} <= losslint.sees


def test_other_locators_are_held_to_what_they_can_name() -> None:
    answer = Answer(recipe="x", step=5, phase=(), operators=("aten.nll_loss_forward",))
    assert _names_operator(["cross_entropy"], answer)
    assert not _names_operator(["linear"], answer)
    assert _judged(answer, 5, True, "it") == "right: it"
    assert _judged(answer, 5, False, "it") == "partly: it"
    assert _judged(answer, 7, True, "it") == "late (+2): it"
    assert _judged(answer, 4, True, "it") == "early: it"
    frame = "  *** Starting batch ***\n   blocks.0.norm LayerNorm\n1.0 2.0 weight"
    assert _module_of(frame, "  ") == "blocks.0.norm"
    assert _module_of("    Sequential\n1.0 2.0 weight", "  ") == ""
