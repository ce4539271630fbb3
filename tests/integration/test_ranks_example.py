"""The scripts of ``docs/ranks.md`` run under torchrun as they stand, and the bad rank is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forensics import load_run

PROJECT = Path(__file__).parents[2]
SCRIPTS = ("two_ranks.py", "fsdp.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_example_leaves_a_run_whose_bad_rank_is_named(script: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(PROJECT / "examples" / script), str(run_dir)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = load_run(run_dir)
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root or 0]
    assert (root.rule, root.subject, root.first_step) == ("rank-divergence", "rank 1", 30)
    assert done.stdout.splitlines()[-1] == diagnosis.verdict.summary

    states = [info.step for info in run.checkpoints if info.healthy]
    assert states == ([20, 30, 40] if script == "fsdp.py" else [])


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_page_shows_this_script(script: str) -> None:
    assert f"(../examples/{script})" in (PROJECT / "docs" / "ranks.md").read_text()
