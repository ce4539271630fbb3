"""Training under a real trainer, and bisecting it, in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forensics import bisect_run
from forensics.diagnose.bisection_result import BisectionResult
from tests.unit.replay.trainers import trained

SCRIPT = Path(trained.__file__)

Prepare = Callable[..., None]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """``prepare(ZERO=5)`` sets what the script reads."""

    def set_all(**settings: Any) -> None:
        for name, value in {"HOME": tmp_path, **settings}.items():
            monkeypatch.setenv(f"FORENSICS_TEST_{name}", str(value))

    return set_all


def bisected(run: Path, name: str, **options: Any) -> BisectionResult:
    """What a bisection through the trainer's own resume says."""
    options = {"what_if": False, **options}
    return bisect_run(run, recipe=f"{SCRIPT}:{name}", **options)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, by its name there."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
