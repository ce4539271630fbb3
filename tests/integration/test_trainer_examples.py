"""The scripts of ``docs/trainers.md`` run as they stand, and the report finds what is in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forensics import load_run

PROJECT = Path(__file__).parents[2]
EXAMPLES = {
    "huggingface_trainer.py": ("transformers", "nonfinite-loss", 33),
    "accelerate_loop.py": ("accelerate", "loss-spike", 150),
    "lightning_trainer.py": ("lightning", "loss-divergence", 7),
}
"""The package that each needs, and the root that the report names, with its step."""
BISECTED = {
    "huggingface_trainer.py": (33, 30, "aten.div"),
    "lightning_trainer.py": (13, 0, "aten.mse_loss"),
}
"""The first bad step, the state that the replay began with, and the operator."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_leaves_a_run_whose_fault_is_found(name: str, tmp_path: Path) -> None:
    package, rule, step = EXAMPLES[name]
    pytest.importorskip(package)
    run_dir = tmp_path / "run"
    done = _python(tmp_path, str(PROJECT / "examples" / name), str(run_dir))
    assert done.returncode == 0, done.stderr
    run = load_run(run_dir)
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root]
    assert (root.rule, root.first_step) == (rule, step)
    assert done.stdout.splitlines()[-1] == diagnosis.verdict.summary
    assert run.manifest is not None
    assert run.manifest.ended is not None
    assert run.manifest.ended.how == "finished"
    if name in BISECTED:
        _bisect(tmp_path, name)


def _bisect(home: Path, name: str) -> None:
    """As a user does, with the script as it stands."""
    before = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    recipe = f"{PROJECT / 'examples' / name}:make_trainer"
    told = _python(
        home, "-m", "forensics", "bisect", "run", "--recipe", recipe, "--format", "json",
        "--no-what-if",
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    found = json.loads(told.stdout)["bisection"]
    kept = load_run(home / "run").path / "bisect.json"
    assert kept.is_file()
    step, start, operator = BISECTED[name]
    assert (found["first_bad_step"], found["operator"]) == (step, operator)
    assert (found["replayed_from"], found["faithful_until"]) == (start, step)
    after = {path: path.stat().st_mtime_ns for path in home.rglob("*")}
    assert {path for path in after if after[path] != before.get(path)} <= {home / "run", kept}


def _python(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=home,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_page_shows_these_scripts() -> None:
    page = (PROJECT / "docs" / "trainers.md").read_text()
    for name in EXAMPLES:
        assert f"(../examples/{name})" in page
