"""What two real ranks recorded and bisected: made once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.record.ranks.launching import launch


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run a fault, and beside each scenario what its ranks printed."""
    folder = tmp_path_factory.mktemp("bisecting-ranks")
    launch("replay.ranks.bisecting", folder)
    return folder
