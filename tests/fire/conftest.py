"""One fork server a test process, and a fast place for the runs of its children."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fire.fork_server import ForkServer
from tests.fire.starving import can_mount


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Forks children of a process that has imported torch already."""
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def fast_place() -> Iterator[Path]:
    """A folder in memory where there is such a thing: what a kill leaves needs no disk to sync."""
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK)
    place = Path(tempfile.mkdtemp(prefix="forensics-", dir=memory if usable else None))
    yield place
    shutil.rmtree(place)


@pytest.fixture(scope="module")
def mounts(forks: ForkServer, fast_place: Path) -> None:
    """Skip where no child can have a disk of its own."""
    (fast_place / "probe").mkdir()
    if forks.start(can_mount, fast_place / "probe", said=fast_place / "probe.said").wait():
        pytest.skip("this machine lets nobody mount")
