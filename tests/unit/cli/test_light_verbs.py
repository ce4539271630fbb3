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


SETTINGS = """
import os, sys
from forensics.cli import main
main(sys.argv[1:])
names = ("OPENBLAS_NUM_THREADS", "NUMPY_MADVISE_HUGEPAGE")
print(*(os.environ.get(name) for name in names), file=sys.stderr)
"""


def test_reading_settles_threads_and_pages_and_training_leaves_them_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    monkeypatch.delenv("NUMPY_MADVISE_HUGEPAGE", raising=False)
    run = write_run(tmp_path / "run")
    assert probe(SETTINGS, "report", run).stderr.split() == ["1", "0"]
    assert probe(SETTINGS, "record", "--help").stderr.split() == ["None", "None"]
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    monkeypatch.setenv("NUMPY_MADVISE_HUGEPAGE", "1")
    assert probe(SETTINGS, "report", run).stderr.split() == ["3", "1"]


PAGES = """
import sys
from forensics.cli import main
main(sys.argv[1:])
import numpy
print(numpy._core.multiarray._get_madvise_hugepage(), file=sys.stderr)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="huge pages are asked for on Linux alone")
def test_the_pages_are_settled_before_numpy_is_imported(tmp_path: Path) -> None:
    assert probe(PAGES, "report", write_run(tmp_path / "run")).stderr.strip() in ("0", "False")
