"""A store of this machine for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.runlog.stores.s3_server import S3, reached_alone


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[S3]:
    with reached_alone(monkeypatch, tmp_path) as store:
        yield store
