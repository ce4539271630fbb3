"""``forensics inspect``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import forensics.cli.inspect
from forensics.cli import main
from tests.unit.replay.saved_states.states import training_state, write_safetensors, write_sharded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three states, of which the last is bad."""
    for i in range(3):
        torch.save(training_state(i, bad=i == 2), tmp_path / f"ckpt_{i}.pt")
    return tmp_path


def test_a_finite_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "ckpt_0.pt")]) == 0
    out = capsys.readouterr().out
    assert "VERDICT   finite" in out
    assert "step 0 · torch" in out
    assert "NEXT" not in out


def test_a_bad_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "ckpt_2.pt")]) == 0  # reading a sick state is no failure
    out = capsys.readouterr().out
    assert "not finite: 1 parameter and 1 optimizer state hold NaN or Inf." in out
    assert "optimizer.state.1.exp_avg (0.bias)" in out


@pytest.mark.parametrize(
    ("name", "limit", "code"),
    [
        ("ckpt_0.pt", "info", 0),
        ("ckpt_2.pt", "critical", 1),
        ("ckpt_2.pt", "info", 1),
        ("risky.pt", "warning", 1),
        ("risky.pt", "error", 0),
    ],
)
def test_fail_on(name: str, limit: str, code: int, folder: Path) -> None:
    risky = training_state()
    risky["model"]["1.running_var"][0] = -1.0
    torch.save(risky, folder / "risky.pt")
    assert main(["inspect", str(folder / name), "--fail-on", limit]) == code


def test_what_can_be_read_comes_first(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # a long path would be broken in the middle of the name
    (folder / "torn.pt").write_bytes(b"PK\x03\x04")
    arguments = ["torn.pt", "ckpt_2.pt", "missing.pt"]
    assert main(["inspect", *arguments, "--fail-on", "info"]) == 2
    captured = capsys.readouterr()
    assert "ckpt_2.pt" in captured.out
    assert captured.err.count("\n") == 2
    assert "torn.pt: is cut off" in captured.err
    assert "missing.pt: cannot be opened (No such file or directory)" in captured.err


def test_nothing_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path / "missing.pt")]) == 2
    assert capsys.readouterr().out == ""
    assert main(["inspect", str(tmp_path / "missing.pt"), "--format", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["states"], len(told["errors"])) == ([], 1)


def test_a_folder_of_states(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "ckpt_5.pt").symlink_to("/etc/passwd")
    assert main(["inspect", str(folder), "--format", "json"]) == 2
    captured = capsys.readouterr()
    assert [s["finite"] for s in json.loads(captured.out)["states"]] == [True, True, False]
    assert "leads out of its folder" in captured.err


def test_an_infinity_of_a_folder_is_held_to_its_earlier_states(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i, best in enumerate((0.5, float("inf"))):
        torch.save({**training_state(i), "best": best}, tmp_path / f"ckpt_{i}.pt")
    assert main(["inspect", str(tmp_path / "ckpt_1.pt"), "--fail-on", "info"]) == 0
    assert "best (1 Inf): infinite, as masks and best values" in capsys.readouterr().out
    assert main(["inspect", str(tmp_path), "--fail-on", "critical"]) == 1


def test_other_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = write_safetensors(tmp_path / "a.safetensors", {"w": torch.ones(2)})
    sharded = write_sharded(tmp_path / "checkpoint-500")
    assert main(["inspect", str(plain), str(sharded), "--format", "markdown"]) == 0
    out = capsys.readouterr().out
    assert "safetensors" in out
    assert "Hugging Face folder, safetensors, 2 shards" in out


def test_the_state_is_not_written_over(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "ckpt_0.pt"
    before = path.read_bytes()
    assert main(["inspect", str(path), "--out", str(path)]) == 2
    assert path.read_bytes() == before


def test_names_cannot_act_on_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"model": {"\x1b[2Jw": torch.tensor([float("nan")])}}, tmp_path / "a.pt")
    assert main(["inspect", str(tmp_path / "a.pt")]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "x1b[2Jw" in out


def test_without_torch_it_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forensics.cli.inspect, "find_spec", lambda name: None)
    assert main(["inspect", str(folder / "ckpt_0.pt")]) == 2
    assert "pip install -c constraints.txt '.[torch]' in the checkout" in capsys.readouterr().err
