"""``forensics capsule run``, as a user types it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from forensics.cli import main
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.replay.capsule import write_capsule
from tests.unit.replay.faulty import before_step


@pytest.fixture(scope="module")
def capsule(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capsule of a parameter that was never initialised."""
    home = tmp_path_factory.mktemp("capsule")
    with before_step(home, "empty-parameter", 0, steps=2) as (session, before):
        result = BisectionResult(path="x", status=BisectStatus.LOCATED, first_bad_step=0)
        return write_capsule(home / "capsule", session, before, result).path


def test_confirmed_exits_0(capsule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capsule", "run", str(capsule)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("ANSWER    confirmed: in step 0 parameter background holds NaN")


def test_not_confirmed_exits_1(
    capsule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(capsule, tmp_path / "copy")
    state = torch.load(copy / "state.pt", weights_only=True)
    state["model"]["background"].zero_()
    torch.save(state, copy / "state.pt")
    assert main(["capsule", "run", str(copy)]) == 1
    out = capsys.readouterr().out
    assert "ANSWER    not confirmed: in step 0 it is sound." in out
    assert "EXPECTED  parameter background holds NaN" in out
    assert "DIFFERS" in out


def test_json_and_markdown(
    capsule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["capsule", "run", str(capsule), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tool"] == "forensics"
    assert told["capsule"]["confirmed"] is True
    assert told["capsule"]["found"]["operator"] == "param:background"
    out = tmp_path / "verdict.md"
    assert main(["capsule", "run", str(capsule), "--out", str(out)]) == 0
    assert "**Answer:** confirmed" in out.read_text()


def test_wrong_use_is_one_line_and_exit_2(
    capsule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, told in (
        ([str(tmp_path / "nothing")], "no such directory"),
        ([str(tmp_path)], "capsule.json: is missing"),
        ([str(capsule), "--recipe", "nope"], "no recipe is called 'nope'"),
        (
            [str(capsule), "--format", "text", "--out", str(capsule / "state.pt")],
            "is what is to be read",
        ),
        ([], "PATH"),
    ):
        assert main(["capsule", "run", *arguments]) == 2
        err = capsys.readouterr().err
        assert told in err
        assert err.count("\n") == 1


def test_listing_it_loads_no_torch() -> None:
    code = (
        "import sys\nfrom forensics.cli import main\n"
        "main(['capsule', 'run', '--help'])\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")
    assert "forensics capsule run runs/x/capsule-8218" in done.stdout


def test_the_group_alone_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main(["capsule", "--help"])
    assert "forensics capsule run" in capsys.readouterr().out


def test_bisect_refuses_a_folder_in_use_before_it_replays(
    capsule: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for folder, told in ((capsule, "--overwrite replaces it"), (tmp_path, "holds other files")):
        arguments = ["bisect", str(tmp_path / "no-such-run"), "--capsule", str(folder)]
        assert main(arguments) == 2
        assert told in capsys.readouterr().err
