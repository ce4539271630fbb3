"""A capsule, and a copy of it to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.unit.replay.capsule.capsules import write


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capsule of one loud sample that overflows fp16."""
    return write(tmp_path_factory.mktemp("capsule"), "norm-eps-fp16", 5, samples=(3,), steps=7)


@pytest.fixture
def capsule(written: Path, tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(written, tmp_path / "capsule")
