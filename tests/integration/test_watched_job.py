"""The job script of the documentation, run with a training that writes a log and may go wrong."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "watched_job.sh"
SOON = 60.0
TRAINING = """
import sys, time
bad, steps, code = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
for step in range(1, steps + 1):
    loss = "nan" if step >= bad else f"{3 - step / 200:.4f}"
    print(f"step: {step} loss: {loss} grad_norm: {1 + step % 7 / 9:.3f}", flush=True)
    time.sleep(0.02 if step < bad else 0.2)
sys.exit(code)
"""


def job(folder: Path, *arguments: int) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(TRAINING)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        ["bash", str(SCRIPT), sys.executable, "train.py", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PATH": path, "INTERVAL": "0.2", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_training_that_goes_wrong_is_stopped(tmp_path: Path) -> None:
    with job(tmp_path, 60, 2000, 0) as process:
        _, err = process.communicate(timeout=SOON)
    assert process.returncode == 1, err
    assert "nonfinite-loss" in (tmp_path / "findings.txt").read_text()
    # One bad record or several: as many as came before the watch looked and the signal arrived.
    assert re.search(r"Loss is NaN (at|from) step 60\b", (tmp_path / "report.txt").read_text())
    last = (tmp_path / "train.log").read_text().splitlines()[-1]
    assert int(last.split()[1]) < 2000


@pytest.mark.parametrize("code", [0, 3])
def test_a_training_that_ends_by_itself_gives_its_own_code(code: int, tmp_path: Path) -> None:
    with job(tmp_path, 10**6, 60, code) as process:
        _, err = process.communicate(timeout=SOON)
    assert process.returncode == code, err
    assert (tmp_path / "findings.txt").read_text() == ""
    assert "healthy" in (tmp_path / "report.txt").read_text()


def test_a_scheduler_that_ends_the_job_ends_the_training_and_the_watch(tmp_path: Path) -> None:
    with job(tmp_path, 10**6, 10**6, 0) as process:
        limit = time.monotonic() + SOON
        while not (tmp_path / "train.log").exists() or not (tmp_path / "train.log").stat().st_size:
            assert time.monotonic() < limit
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=SOON)
    size = (tmp_path / "train.log").stat().st_size
    time.sleep(0.3)
    assert (tmp_path / "train.log").stat().st_size == size
    assert process.returncode == 128 + signal.SIGTERM


def test_the_documentation_shows_the_script_as_it_is() -> None:
    assert f"```bash\n{SCRIPT.read_text()}```\n" in (ROOT / "docs" / "watching.md").read_text()
