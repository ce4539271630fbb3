"""What two real ranks recorded: made once for all tests here."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.record.ranks.launching import launch


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a folder a scenario."""
    folder = tmp_path_factory.mktemp("two-ranks")
    launch("record.ranks.two_ranks", folder)
    return folder
