"""``forensics compare``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forensics.cli import main


def log(path: Path, factor: float = 1.0, start: int = 0) -> str:
    rows = [
        f"{start + i},1e-3,{2 - i / 100 if i < 30 else (2 - i / 100) * factor}" for i in range(60)
    ]
    path.write_text("\n".join(["step,lr,loss", *rows]) + "\n")
    return str(path)


def test_the_same_run_exits_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", log(tmp_path / "a.csv"), log(tmp_path / "b.csv")]) == 0
    assert "ANSWER    same" in capsys.readouterr().out


def test_another_run_exits_1_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare", log(tmp_path / "a.csv"), log(tmp_path / "b.csv", 1.001)]
    assert main(arguments) == 1
    assert "part at step 30" in capsys.readouterr().out
    assert main([*arguments, "--rtol", "0.01"]) == 0
    assert "same within the tolerance" in capsys.readouterr().out


def test_json_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["compare", log(tmp_path / "a.csv"), log(tmp_path / "b.csv", 1.5)]
    assert main([*arguments, "--format", "json"]) == 1
    told = json.loads(capsys.readouterr().out)["comparison"]
    assert told["likeness"] == "different"
    out = tmp_path / "c.md"
    assert main([*arguments, "--out", str(out)]) == 1
    assert "**Answer:** different" in out.read_text()


def test_wrong_use_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, later = log(tmp_path / "a.csv"), log(tmp_path / "b.csv", start=1000)
    for arguments, told in (
        ([a, str(tmp_path / "nothing.csv")], "no such file"),
        ([a, later], "no step in common"),
        ([a], "RUN_B"),
        ([a, a, "--rtol", "-1"], "rtol"),
    ):
        assert main(["compare", *arguments]) == 2
        err = capsys.readouterr().err
        assert told in err
        assert err.count("\n") == 1
