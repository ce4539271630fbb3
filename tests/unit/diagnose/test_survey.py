"""Many runs at once: where they are, one row each, and processes that may die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from forensics.diagnose.bisection_file import bisection_document
from forensics.diagnose.finding import Severity
from forensics.diagnose.survey import Choice, Search, SurveyRow, find_runs, survey_one
from forensics.diagnose.survey_pool import survey
from forensics.runlog.run import load_run
from tests.unit.render.sample_bisections import raised


def write_run(directory: Path, *, bad_from: int = 1000, rows: int = 60) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    cells = [
        f"{i},{'nan' if i >= bad_from else 3 - i / 100},{int(i >= bad_from)}" for i in range(rows)
    ]
    (directory / "steps.csv").write_text("\n".join(["step,loss,skipped", *cells]) + "\n")
    return str(directory)


def test_runs_are_found_below_and_not_inside_one_another(tmp_path: Path) -> None:
    first = write_run(tmp_path / "b" / "one")
    write_run(tmp_path / "b" / "one" / "superseded" / "1")
    second = write_run(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    single = tmp_path / "log.csv"
    single.write_text("step,loss\n0,1\n")
    (tmp_path / "log.txt").write_text("This is none.\n")
    search = Search()
    assert list(find_runs([str(tmp_path)], search)) == [str(single), second, first]
    assert search.passed == [str(tmp_path / "log.txt")]
    assert list(find_runs([first, str(single), str(tmp_path)])) == [first, str(single), second]
    assert list(find_runs([str(tmp_path / "nothing")])) == [str(tmp_path / "nothing")]


def test_a_link_that_goes_round_is_not_followed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a")
    (tmp_path / "loop").symlink_to(tmp_path, target_is_directory=True)
    assert list(find_runs([str(tmp_path)])) == [run]


def test_a_sick_run_is_a_row_with_its_root(tmp_path: Path) -> None:
    row = survey_one(write_run(tmp_path / "a", bad_from=40), Choice())
    assert (row.status, row.root, row.step, row.steps) == ("faulty", "nonfinite-loss", 40, 60)
    assert row.severity is Severity.CRITICAL
    assert row.wasted == pytest.approx(20 / 60)
    healthy = survey_one(write_run(tmp_path / "b"), Choice())
    assert (healthy.status, healthy.root, healthy.wasted) == ("healthy", "", 0.0)


def test_the_choice_of_rules_is_kept(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", bad_from=40)
    assert survey_one(path, Choice(select=("broken-log",))).status == "healthy"


def test_what_cannot_be_read_is_a_row(tmp_path: Path) -> None:
    broken = tmp_path / "x" / "steps.csv"
    broken.parent.mkdir()
    broken.write_text("a,b\n1,2\n")
    for path in (str(broken.parent), str(tmp_path / "nothing")):
        row = survey_one(path, Choice())
        assert (row.status, row.severity) == ("unreadable", None)
        assert row.summary


def test_rows_come_worst_first(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "healthy"),
        str(tmp_path / "nothing"),
        write_run(tmp_path / "late", bad_from=50),
        write_run(tmp_path / "early", bad_from=20),
    ]
    seen: list[str] = []
    rows = survey(paths, Choice(), jobs=1, on_row=lambda row: seen.append(row.path))
    assert [Path(row.path).name for row in rows] == ["early", "late", "nothing", "healthy"]
    assert seen == paths


def test_processes_give_the_same_rows(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / f"r{i}", bad_from=30 + i) for i in range(4)]
    assert survey(paths, Choice(), jobs=2) == survey(paths, Choice(), jobs=1)


def judge_or_die(path: str, choice: Choice) -> SurveyRow:
    """Stands for a run that takes its process along, and for one that trips a bug."""
    del choice
    if "kill" in path:
        os._exit(9)
    if "raise" in path:
        raise ZeroDivisionError("a bug")
    return SurveyRow(path=path, status="healthy")


def test_a_process_that_dies_is_one_row(tmp_path: Path) -> None:
    rows = {
        r.path: r for r in survey(["a", "kill", "raise", "b"], Choice(), jobs=2, judge=judge_or_die)
    }
    assert len(rows) == 4
    assert rows["a"].status == rows["b"].status == "healthy"
    assert "died" in rows["kill"].summary
    assert "internal error: ZeroDivisionError: a bug" in rows["raise"].summary


def test_a_bug_is_one_row_in_this_process_too() -> None:
    rows = survey(["raise", "a"], Choice(), jobs=1, judge=judge_or_die)
    assert [row.status for row in rows] == ["unreadable", "healthy"]


def judge_once_killed(path: str, choice: Choice) -> SurveyRow:
    """Stands for a process that somebody kills: the run itself is well."""
    del choice
    mark = Path(path)
    if mark.name == "killed" and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return SurveyRow(path=path, status="healthy")


def test_a_run_whose_process_was_killed_is_judged_again(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "b", "killed", *map(str, range(60)))]
    rows = survey(paths, Choice(), jobs=2, judge=judge_once_killed)
    assert sorted(row.path for row in rows) == sorted(paths)
    assert {row.status for row in rows} == {"healthy"}


def judge_or_hang(path: str, choice: Choice) -> SurveyRow:
    """Stands for a read that never comes back."""
    del choice
    if "hang" in path:
        time.sleep(600)
    return SurveyRow(path=path, status="healthy")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers here")
def test_a_run_that_hangs_is_a_row_and_keeps_nobody_waiting() -> None:
    began = time.monotonic()
    rows = survey(["a", "hang", "b"], Choice(), jobs=2, judge=judge_or_hang, limit=0.5)
    assert [(row.path, row.status) for row in rows] == [
        ("hang", "unreadable"),
        ("a", "healthy"),
        ("b", "healthy"),
    ]
    assert rows[0].summary == "took longer than 0.5 s to read and judge"
    assert time.monotonic() - began < 300


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups here")
@pytest.mark.parametrize(
    ("number", "all_of_them"),
    [("SIGKILL", False), ("SIGINT", False), ("SIGINT", True)],  # all: as a terminal does it
)
def test_no_process_outlives_its_survey_and_none_cries(
    number: str, all_of_them: bool, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.unit.diagnose.told_judge", str(tmp_path)],
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 60
        while len(list(tmp_path.iterdir())) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (os.killpg if all_of_them else os.kill)(process.pid, signal.Signals[number])
        said = process.communicate(timeout=40)[1]  # the last of them has closed it
    assert said == b"interrupted\n" or number == "SIGKILL"
    assert b"Traceback" not in said
    for pid in map(int, (path.name for path in tmp_path.iterdir())):
        assert _is_gone(pid)


def _is_gone(pid: int) -> bool:
    """Ended, or ended and not yet waited for by whoever is its parent now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_the_worst_comes_first_and_a_run_that_raised_before_the_healthy() -> None:
    rows = [
        SurveyRow(path="note", status="healthy", severity=Severity.INFO),
        SurveyRow(path="short", status="insufficient-data"),
        SurveyRow(path="closed", status="unreadable"),
        SurveyRow(path="raised", status="undecided", severity=Severity.INFO),
        SurveyRow(path="warned", status="faulty", severity=Severity.WARNING, root="loss-plateau"),
        SurveyRow(path="dead", status="undecided", severity=Severity.CRITICAL, wasted=1.0),
        SurveyRow(path="part", status="faulty", severity=Severity.CRITICAL, wasted=0.3),
    ]
    ordered = [row.path for row in sorted(rows, key=lambda row: row.order)]
    assert ordered == ["dead", "part", "warned", "raised", "closed", "short", "note"]


def test_a_root_that_only_a_bisection_shows_has_what_was_located_for_a_name(
    tmp_path: Path,
) -> None:
    rows = "".join(f"{step},0.1,1.0,{2 - step / 100},0\n" for step in range(40))
    (tmp_path / "steps.csv").write_text(f"step,lr,grad_l2_pre_clip,loss,skipped\n{rows}")
    steps = load_run(tmp_path).steps
    document = bisection_document(replace(raised(), first_bad_step=39), steps)
    (tmp_path / "bisect.json").write_text(json.dumps(document))
    row = survey_one(str(tmp_path), Choice())
    assert (row.root, row.step, row.status) == ("F.batch_norm", 39, "faulty")
