"""``forensics bisect`` as a user meets it, and what a stranger's run directory cannot do."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import forensics.replay.bisect
from forensics.cli import main
from forensics.diagnose.bisection_result import BisectionResult
from forensics.record.config import Config
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from tests.unit.render.sample_bisections import partial


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A NaN in sample 7 of step 6."""
    out = tmp_path_factory.mktemp("bisect") / "run"
    kind = find_recipe("bad-sample")
    config = Config.from_dict({"steps": 12, "data": {"fault_step": 6}}, base=kind.defaults)
    options = RecordOptions(out, checkpoint_every=4, keep="last:9")
    record_run(kind(config), config, options, say=lambda _: None)
    return out


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """The same, to be spoilt."""
    return shutil.copytree(recorded, tmp_path / "run")


def told(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main(["bisect", *map(str, arguments)]) == code
    return capsys.readouterr().out


def test_the_checkpoints_of_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = told(capsys, "--ckpt-dir", run / "checkpoints", "--further-steps", "2")
    assert "FIRST BAD STEP  6   the batch itself holds NaN" in text
    assert "sample 7 of 32" in text
    assert "WHAT IF" in text
    assert all(len(line) <= 80 for line in text.splitlines() if str(run) not in line)


def test_the_cost_of_the_what_ifs_is_announced(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", str(run), "--further-steps", "2"]) == 0
    captured = capsys.readouterr()
    assert "forensics: what if: 2 changes to try: up to" in captured.err
    assert "what if: 2" not in captured.out


def test_the_report_tells_it_afterwards(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, run, "--no-what-if")
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert "Located by bisection at step 6" in text
    assert "NEXT      forensics bisect" not in text


def test_json_and_markdown_go_where_they_are_sent(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "answer.json"
    assert told(capsys, run, "--no-what-if", "--out", out) == ""
    assert json.loads(out.read_text())["bisection"]["first_bad_step"] == 6
    text = told(capsys, run, "--no-what-if", "--format", "markdown")
    assert text.startswith("## ")


def test_exit_codes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, run, "--no-what-if", "--fail-on", "error", code=1)
    told(capsys, run, "--no-what-if", "--fail-on", "critical")  # it is over after the step
    told(capsys, run, "--no-what-if", "--until", "5", "--fail-on", "info")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a RUN or a --ckpt-dir, one of them"),
        (["a", "--ckpt-dir", "b"], "one of them"),
        (["nowhere"], "nowhere: no such file or directory"),
        (["nowhere", "--bad", "loss>>1"], "is no number"),
        (["nowhere", "--from", "-1"], "--from"),
        (["nowhere", "--from", "9", "--until", "3"], "ends before it begins"),
    ],
)
def test_wrong_usage_is_told_in_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bisect", *arguments]) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_without_torch_it_says_what_to_install(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("forensics.cli.bisect.find_spec", lambda name: None)
    assert main(["bisect", str(run)]) == 2
    assert "pip install -c constraints.txt '.[torch]' in the checkout" in capsys.readouterr().err


@pytest.mark.parametrize(("terminated", "code"), [(False, 130), (True, 143)])
def test_an_interrupted_bisection_prints_its_partial_answer(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    terminated: bool,
    code: int,
) -> None:
    def stopped(*_: Any, **__: Any) -> BisectionResult:
        return replace(partial(), terminated=terminated)

    monkeypatch.setattr(forensics.replay.bisect, "bisect_run", stopped)
    text = told(capsys, run, code=code)
    assert "VERDICT   interrupted: stopped at step 5,210" in text


def test_an_answer_that_the_disk_does_not_take_is_printed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> BisectionResult:
        return replace(partial(), first_bad_step=77)

    monkeypatch.setattr(forensics.replay.bisect, "bisect_run", stopped)
    text = told(capsys, run, "--out", run / "no" / "such" / "folder.json", code=2)
    assert json.loads(text)["bisection"]["first_bad_step"] == 77


def test_the_log_is_never_written_over(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, run, "--out", run / "steps.csv", code=2)
    assert (run / "steps.csv").read_text().startswith("step,")


# -- a stranger's run directory ---------------------------------------------------------------


def change_recipe(run: Path, **changes: str) -> None:
    manifest = json.loads((run / "run.json").read_text())
    manifest["recipe"].update(changes)
    (run / "run.json").write_text(json.dumps(manifest))


def plant(path: Path, proof: Path) -> None:
    """A Python file that leaves a trace when it is run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"open({str(proof)!r}, 'w').close()\n")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "os:system", "entry_point": "os:system"},
        {"name": "evil", "entry_point": "evil:evil"},
        {"name": "evil", "file": "evil.py"},
        {"name": "evil", "file": "../evil.py"},
        {"name": "evil.py:evil"},
        {"name": "../evil.py:evil"},
        {"name": "", "file": "evil.py"},
    ],
)
def test_nothing_that_a_run_directory_names_is_run(
    run: Path,
    tmp_path: Path,
    changes: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proof = tmp_path / "was-run"
    for place in (run, run.parent, run / "checkpoints"):
        plant(place / "evil.py", proof)
        plant(place / "sitecustomize.py", proof)
    change_recipe(run, **changes)
    monkeypatch.chdir(run)
    path = list(sys.path)
    text = told(capsys, ".", "--no-what-if")
    assert sys.path == path
    assert "evil" not in sys.modules
    assert not proof.exists()
    assert "No replay, so no operator" in " ".join(text.split())


def test_a_module_beside_the_run_shadows_nothing(run: Path, tmp_path: Path) -> None:
    proof = tmp_path / "was-run"
    for name in ("torch", "json", "numpy", "evil", "forensics"):
        plant(run / f"{name}.py", proof)
    script = shutil.which("forensics", path=str(Path(sys.executable).parent))
    assert script is not None
    command = [script, "bisect", ".", "--no-what-if"]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=run, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert "FIRST BAD STEP  6" in done.stdout
    assert not proof.exists()


class Bomb:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.proof}",)


def test_a_pickle_with_code_is_no_state(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proof = tmp_path / "was-run"
    for path in (run / "checkpoints").glob("*.health.json"):
        path.unlink()
    bombs = {
        "step-00000004.pt": lambda path: torch.save({"model": Bomb(proof)}, path),
        "step-00000008.pt": lambda path: path.write_bytes(pickle.dumps(Bomb(proof))),
    }
    for name, write in bombs.items():
        write(run / "checkpoints" / name)
    text = told(capsys, run, "--no-what-if")
    assert not proof.exists()
    assert "FIRST BAD STEP  6" in text
    assert "1 untestable" in text


def test_states_on_another_disk_are_as_good_as_beside_the_log(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "checkpoints").rename(tmp_path / "other disk")
    (run / "checkpoints").symlink_to(tmp_path / "other disk")
    text = told(capsys, run, "--no-what-if")
    assert "FIRST BAD STEP  6" in text
    assert "untestable" not in text


def test_a_link_out_of_the_directory_is_not_followed(
    run: Path, recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inside = run / "checkpoints" / "step-00000004.pt"
    inside.unlink()
    inside.symlink_to(recorded / "checkpoints" / "step-00000004.pt")
    text = told(capsys, run, "--no-what-if")
    assert "replayed 0 → 6" in text


def test_a_tensor_of_an_absurd_size_is_no_state(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "checkpoints" / "step-00000004.pt"
    state = torch.load(path, weights_only=True)
    state["model"] = {"w": torch.zeros(1).expand(1 << 40)}
    torch.save(state, path)
    text = told(capsys, run, "--no-what-if")
    assert "FIRST BAD STEP  6" in text
    assert "replayed 0 → 6" in text


def test_a_manifest_of_nonsense_still_gets_the_logs_answer(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "run.json").write_text('{"recipe": {"name": "bad-sample", "config": {"steps": "many"}}}')
    text = " ".join(told(capsys, run, "--no-what-if").split())
    assert "No replay, so no operator" in text
    assert "FIRST BAD STEP 6" in text


def test_a_strangers_bisection_cannot_speak_to_the_terminal(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told(capsys, run, "--no-what-if")
    document = json.loads((run / "bisect.json").read_text())
    document["bisection"]["summary"] = "\x1b[2J\x1b]0;owned\x07"
    document["bisection"]["next_command"] = "rm -rf ~"
    document["bisection"]["capsule"] = "x; rm -rf ~"
    (run / "bisect.json").write_text(json.dumps(document))
    assert main(["report", str(run)]) == 0
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert "NEXT      rm" not in text
    assert "run x; rm" not in text


def test_the_probe_can_fail(tmp_path: Path) -> None:
    """The planted file does leave its trace when something runs it."""
    proof = tmp_path / "was-run"
    plant(tmp_path / "evil.py", proof)
    spec = importlib.util.spec_from_file_location("evil_probe", tmp_path / "evil.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert proof.exists()
