"""The script of ``docs/ranks.md`` runs under torchrun as it stands, and the bad rank is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from forensics import load_run

PROJECT = Path(__file__).parents[2]
SCRIPT = "two_ranks.py"


def test_the_example_leaves_a_run_whose_bad_rank_is_named(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launcher, str(PROJECT / "examples" / SCRIPT), str(run_dir)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    diagnosis = load_run(run_dir).diagnose()
    root = diagnosis.findings[diagnosis.verdict.root or 0]
    assert (root.rule, root.subject, root.first_step) == ("rank-divergence", "rank 1", 30)
    assert done.stdout.splitlines()[-1] == diagnosis.verdict.summary


def test_the_page_shows_this_script() -> None:
    assert f"(../examples/{SCRIPT})" in (PROJECT / "docs" / "ranks.md").read_text()
