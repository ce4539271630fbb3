"""Columns that lie in files hold what memory would; without a disk memory holds them."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from forensics.runlog.csv_reader import builder
from forensics.runlog.csv_reader.builder import TableBuilder
from forensics.runlog.csv_reader.fast import Piece
from forensics.runlog.steps import Column


@pytest.fixture(autouse=True)
def every_column_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "_LONG", 0)


def filled(*, on_disk: bool) -> dict[str, Column]:
    table = TableBuilder(10, on_disk=on_disk)
    for start in range(0, 3_000, 500):
        step = np.arange(start, start + 500)
        pieces = {"step": Piece(step), "loss": Piece(step / 7, step % 3 > 0)}
        if start >= 1_000:
            pieces["val_loss"] = Piece(step / 3)
        table.append(pieces)
    return table.finish()


def roots(columns: dict[str, Column]) -> Iterator[object]:
    for column in columns.values():
        base: object = column.values
        while isinstance(base, np.ndarray) and base.base is not None:
            base = base.base
        yield base.obj if isinstance(base, memoryview) else base


def test_files_hold_what_memory_would() -> None:
    one, two = filled(on_disk=True), filled(on_disk=False)
    assert all(isinstance(root, mmap.mmap) for root in roots(one))
    assert not any(isinstance(root, mmap.mmap) for root in roots(two))
    assert list(one) == list(two)
    for name in two:
        np.testing.assert_array_equal(one[name].values, two[name].values)
        np.testing.assert_array_equal(one[name].present, two[name].present)


def test_a_disk_that_is_nearly_full_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000))
    assert not any(isinstance(root, mmap.mmap) for root in roots(filled(on_disk=True)))


def test_a_disk_that_cannot_be_written_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> object:
        raise OSError("read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    assert not any(isinstance(root, mmap.mmap) for root in roots(filled(on_disk=True)))
