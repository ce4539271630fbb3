"""The scripts of ``docs/trainers.md`` run as they stand, and the report finds what is in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forensics import load_run

PROJECT = Path(__file__).parents[2]
EXAMPLES = {
    "huggingface_trainer.py": ("transformers", "nonfinite-parameter", 0),
    "accelerate_loop.py": ("accelerate", "loss-spike", 150),
    "lightning_trainer.py": ("lightning", "loss-divergence", 7),
}
"""The package that each needs, and the root that the report names, with its step."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_leaves_a_run_whose_fault_is_found(name: str, tmp_path: Path) -> None:
    package, rule, step = EXAMPLES[name]
    pytest.importorskip(package)
    run_dir = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, str(PROJECT / "examples" / name), str(run_dir)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = load_run(run_dir)
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root]
    assert (root.rule, root.first_step) == (rule, step)
    assert done.stdout.splitlines()[-1] == diagnosis.verdict.summary
    assert run.manifest is not None
    assert run.manifest.ended is not None
    assert run.manifest.ended.how == "finished"


def test_the_page_shows_these_scripts() -> None:
    page = (PROJECT / "docs" / "trainers.md").read_text()
    for name in EXAMPLES:
        assert f"(../examples/{name})" in page
