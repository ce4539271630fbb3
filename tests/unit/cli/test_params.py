"""``forensics params``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from forensics.cli import main
from forensics.runlog.params import ParamWriter

NAMES = ("embed.weight", "blocks.0.fc.weight", "blocks.1.fc.weight")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory of 20 snapshots in which one parameter goes bad at the end."""
    directory = tmp_path / "runs" / "x"
    with ParamWriter(directory / "params") as writer:
        for i in range(20):
            counts = np.array([0, int(i == 19), 0])
            grads = np.where(counts > 0, np.nan, [1.0, 2.0, 3.0])
            stats = {"grad_l2": grads, "grad_nonfinite": counts, "value_l2": np.full(3, 5.0)}
            writer.append(i * 10, NAMES, "param", stats)
    rows = [f"{i},1e-3,{'nan' if i == 190 else 1.5},2.0,1.0" for i in range(191)]
    log = "\n".join(["step,lr,grad_l2_pre_clip,loss,scaler_scale", *rows]) + "\n"
    (directory / "steps.csv").write_text(log)
    return directory


def test_text_names_the_culprit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["params", str(run)]) == 0
    out = capsys.readouterr().out
    assert "gradient of blocks.0.fc.weight" in out
    assert "AT        step 180" in out


def test_step_glob_and_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["params", str(run), "--step", "95", "--param", "blocks.*", "--format", "json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)["params"]
    assert (told["step"], told["asked"], told["parameters"]) == (90, 95, 2)
    assert [row["name"] for row in told["top"]] == ["blocks.1.fc.weight", "blocks.0.fc.weight"]


def test_out_chooses_the_format_by_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "story.md"
    assert main(["params", str(run), "--out", str(out)]) == 0
    assert capsys.readouterr().out == ""
    assert out.read_text().startswith("## Parameters of ")


def test_wrong_use_is_one_line_and_exit_2(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "steps.csv"
    bare.write_text("step,loss\n0,1.0\n1,2.0\n")
    for arguments, told in (
        ([str(tmp_path / "nothing")], "no such file"),
        ([str(bare)], "no per-parameter snapshots"),
        ([str(run), "--param", "head.*"], "no parameter matches"),
        ([str(run), "--step", "-3"], "--step"),
    ):
        assert main(["params", *arguments]) == 2
        err = capsys.readouterr().err
        assert told in err
        assert err.count("\n") == 1
