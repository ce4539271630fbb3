"""Starting a module of scenarios on ranks of its own, in a process apart from pytest's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parents[4]
SECONDS = 600


def launch(scenarios: str, folder: Path) -> None:
    """Run every scenario of a module, each in a folder of its name; its output is beside.

    Args:
        scenarios: the module's name, of those in ``tests.unit``.
        folder: where the runs go, and ``output.txt`` with what was printed.
    """
    with (folder / "output.txt").open("w") as output:
        subprocess.run(
            [sys.executable, "-m", f"tests.unit.{scenarios}", str(folder)],
            cwd=PROJECT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=output,
            timeout=SECONDS,
            check=True,
        )
