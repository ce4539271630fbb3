"""``forensics report``: bad input, exit codes, several runs, formats and files."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from forensics.cli import main

HEADER = "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale"


def write_log(path: Path, *, steps: int = 300, bad_from: int | None = None) -> Path:
    """A run that learns, and from some step on has a NaN loss and skips."""
    noise = random.Random(0)
    rows = [HEADER]
    for step in range(steps):
        loss = 2.0 * math.exp(-step / 200) + 0.5 + noise.gauss(0, 0.01)
        norm = abs(noise.gauss(0.6, 0.05))
        if bad_from is not None and step >= bad_from:
            rows.append(f"{step},0.001,,,nan,1,nonfinite_loss,1024.0")
        else:
            rows.append(f"{step},0.001,{norm},{norm},{loss},0,,1024.0")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FORENSICS_DEBUG", raising=False)


@pytest.fixture
def sick(tmp_path: Path) -> str:
    return write_log(tmp_path / "sick.csv", bad_from=200).name


@pytest.fixture
def well(tmp_path: Path) -> str:
    return write_log(tmp_path / "well.csv").name


def test_a_sick_run_is_told_verdict_first_and_is_no_failure(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", sick]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sick.csv   300 steps")
    assert lines[2].startswith("VERDICT   Loss is NaN from step 200 on")
    assert any(line.startswith("FINDINGS  critical  nonfinite-loss") for line in lines)
    assert any(line.startswith("NEXT      forensics ") for line in lines)


def test_a_healthy_run_is_told_in_a_few_lines(
    well: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", well, "--fail-on", "warning"]) == 0
    out = capsys.readouterr().out
    assert "VERDICT   healthy" in out
    assert len(out.splitlines()) <= 4


BAD = {
    "empty.csv": b"",
    "header.csv": HEADER.encode(),
    "blank.csv": b"\n\n\n",
    "binary.csv": bytes(range(256)) * 20,
    "prose.csv": b"Dear diary, today the loss was high.\n" * 5,
    "no-column.csv": b"a,b\n1,2\n3,4\n",
    "nul.csv": b"\0" * 4096,
    "long-line.csv": b"x" * 3_000_000,
}


@pytest.mark.parametrize("name", [*BAD, "missing.csv", "folder", os.devnull])
def test_bad_input_is_one_clear_line_and_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name in BAD:
        (tmp_path / name).write_bytes(BAD[name])
    if name == "folder":
        (tmp_path / name).mkdir()
    assert main(["report", name]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"forensics: {name}: ")
    assert err.count("\n") == 1
    assert len(err) < 300
    assert "internal error" not in err


@pytest.mark.skipif(
    getattr(os, "geteuid", lambda: 0)() == 0, reason="nothing is unreadable for root"
)
def test_a_file_without_permission_is_one_clear_line_and_2(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    os.chmod(sick, 0)
    assert main(["report", sick]) == 2
    assert "Permission denied" in capsys.readouterr().err


def test_escapes_in_a_path_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "a\x1b[31mb\nc.csv"]) == 2
    err = capsys.readouterr().err
    assert "a\\x1b[31mb c.csv: no such file" in err


def test_of_several_the_readable_are_told_first_then_it_is_2(
    sick: str, well: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", well, "none.csv", sick, "--fail-on", "critical"]) == 2
    out, err = capsys.readouterr()
    assert out.index("well.csv") < out.index("sick.csv")
    assert err.startswith("forensics: none.csv: ")


@pytest.mark.parametrize(("limit", "code"), [("critical", 1), ("error", 1), ("info", 1), (None, 0)])
def test_fail_on_decides_the_exit_code(
    sick: str, limit: str | None, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", sick, *(["--fail-on", limit] if limit else [])]) == code
    assert capsys.readouterr().out


def test_select_and_ignore_choose_rules(sick: str, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["--select", "nonfinite-loss", "--select", "dead-run", "--ignore", "dead-run"]
    assert main(["report", sick, "--format", "json", *chosen]) == 0
    report = json.loads(capsys.readouterr().out)["reports"][0]
    assert [rule["rule"] for rule in report["rules"]] == ["nonfinite-loss"]


@pytest.mark.parametrize("option", ["--select", "--ignore"])
def test_a_rule_that_does_not_exist_is_2(
    sick: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", sick, option, "nonfinite-los"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"{option}: no rule is called 'nonfinite-los'; did you mean nonfinite-loss" in err


def test_settings_of_the_nearest_file_are_in_force_and_named(
    sick: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "forensics.toml").write_text(
        'select = ["nonfinite-loss", "dead-run"]\nignore = ["dead-run"]\nfail-on = "critical"\n'
    )
    assert main(["report", sick]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "dead-run" not in out
    assert "settings from" in out
    assert main(["report", sick, "--select", "broken-log"]) == 0


def test_a_threshold_changes_what_is_found(
    tmp_path: Path, sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Path(sick).read_text().splitlines()
    lines[102] = lines[102].replace(lines[102].split(",")[4], "nan")
    Path(sick).write_text("\n".join(lines) + "\n")
    command = ["report", sick, "--format", "json", "--select", "nonfinite-loss"]

    def episodes() -> int:
        main(command)
        return len(json.loads(capsys.readouterr().out)["reports"][0]["findings"])

    assert episodes() == 1
    (tmp_path / "forensics.toml").write_text("[rules.nonfinite-loss]\ngap = 10\n")
    assert episodes() == 2


def test_bad_settings_are_2_before_anything_is_told(
    sick: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.toml").write_text("nope = 1\n")
    assert main(["report", sick, "--config", "x.toml"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("forensics: x.toml: 'nope' is no setting")


def test_a_file_gets_the_format_of_its_name_and_the_terminal_stays_quiet(
    sick: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, start in (("r.json", "{"), ("r.md", "## sick.csv"), ("r.txt", "sick.csv")):
        assert main(["report", sick, "--out", name]) == 0
        assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)
    assert capsys.readouterr() == ("", "")


def test_a_file_that_cannot_be_written_is_2(sick: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", sick, "--out", "none/r.json"]) == 2
    assert capsys.readouterr().err.startswith("forensics: none/r.json: ")


def test_json_tells_unreadable_runs_too(sick: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", sick, "none.csv", "--format", "json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert [report["run"]["path"] for report in document["reports"]] == [sick]
    assert [error["path"] for error in document["errors"]] == ["none.csv"]


def test_nothing_readable_writes_no_text_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", "none.csv", "--out", "r.txt"]) == 2
    assert not (tmp_path / "r.txt").exists()
    assert capsys.readouterr().out == ""


def test_verbose_says_why_rules_were_skipped(well: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", well]) == 0
    assert "no per-parameter snapshots" not in capsys.readouterr().out
    assert main(["report", well, "-v"]) == 0
    assert "SKIPPED   no " in capsys.readouterr().out


def test_the_log_that_is_read_is_never_written_over(
    sick: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(sick).read_bytes()
    Path("run").mkdir()
    Path("run/steps.csv").write_bytes(before)
    Path("link.csv").symlink_to(sick)
    for path, out in ((sick, sick), (sick, "link.csv"), ("run", "run/steps.csv")):
        assert main(["report", path, "--out", out, "--format", "text"]) == 2
        assert "is what is to be read" in capsys.readouterr().err
        assert main(["report", path, "--out", out]) == 2  # a .csv is no ending of a report
    assert Path(sick).read_bytes() == Path("run/steps.csv").read_bytes() == before
    assert main(["report", "run", "--out", "run/report.txt"]) == 0


def test_a_path_too_long_for_the_system_is_one_clear_line_and_2(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["report", "x" * 300]) == 2
    assert "too long" in capsys.readouterr().err


def test_a_closed_standard_output_is_no_bug(sick: str) -> None:
    command = f"exec '{sys.executable}' -m forensics report {sick} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", ["report {0}", "compare {0} {0}", "params {0}"])
def test_an_unknown_ending_is_refused_before_anything_is_read(
    verb: str, well: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*verb.format(well).split(), "--out", "x.pdf"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("forensics: x.pdf: a picture is none of its formats; `forensics plot")
    assert not Path("x.pdf").exists()


@pytest.mark.parametrize("options", [["--format", "json"], ["--format", "text"]])
def test_a_format_that_is_chosen_allows_any_ending(options: list[str], well: str) -> None:
    assert main(["report", "--out", "x.pdf", *options, well]) == 0
    assert Path("x.pdf").read_text(encoding="utf-8").startswith("{") is ("json" in options)
