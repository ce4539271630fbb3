"""The verbs that read runs load nothing heavy, and the probe would notice if they did."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from forensics.runlog.params import ParamWriter

HEAVY = ("torch", "pandas", "matplotlib", "rich")
PROBE = f"""
import sys
from forensics.cli import main
code = main(sys.argv[1:])
loaded = [name for name in {HEAVY!r} if name in sys.modules]
sys.exit(f"exit {{code}}, loaded {{loaded}}" if code or loaded else 0)
"""


def write_run(directory: Path) -> str:
    with ParamWriter(directory / "params") as writer:
        for step in range(3):
            writer.append(step, ["a.weight"], "param", {"grad_l2": np.ones(1)})
    (directory / "steps.csv").write_text("step,loss\n0,3.0\n1,2.0\n2,1.5\n")
    return str(directory)


def probe(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("verb", ["params", "compare", "scan"])
def test_a_verb_that_reads_loads_nothing_heavy(verb: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    done = probe(PROBE, verb, run, *([run] if verb == "compare" else []))
    assert done.returncode == 0, done.stderr


def test_the_probe_notices(tmp_path: Path) -> None:
    done = probe("import pandas\n" + PROBE, "scan", write_run(tmp_path / "run"))
    assert "loaded ['pandas']" in done.stderr


THREADS = """
import os, sys
from forensics.cli import main
main(sys.argv[1:])
print(os.environ.get("OPENBLAS_NUM_THREADS"), file=sys.stderr)
"""


def test_reading_starts_no_blas_threads_and_training_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    run = write_run(tmp_path / "run")
    assert probe(THREADS, "report", run).stderr.strip() == "1"
    assert probe(THREADS, "record", "--help").stderr.strip() == "None"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    assert probe(THREADS, "report", run).stderr.strip() == "3"
