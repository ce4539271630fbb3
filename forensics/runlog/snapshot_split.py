"""Splitting a snapshot store at a step: a resume takes the later snapshots away."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from forensics.frozen import dataclass
from forensics.runlog.snapshot_layout import (
    PARQUET_SUFFIX,
    SnapshotLayout,
    parts_in,
    plain_array,
    values_of,
)
from forensics.runlog.snapshot_parts import read_journal, write_parquet


@dataclass(frozen=True)
class _Part:
    """A readable part, whole in memory (some 10 MB).

    Attributes:
        files: its Parquet file and its journal, or the one of them there is.
        path: the one that was read.
        rows: what it holds.
        damaged: it is a journal with a torn end.
    """

    files: tuple[Path, ...]
    path: Path
    rows: pa.Table
    damaged: bool


def store_has_tail(directory: Path, step: int) -> bool:
    """Does the store hold a snapshot at ``step`` or later?"""
    return any(bool(_late(part, step).any()) for part in _parts(directory))


def copy_tail(source: Path, target: Path, step: int, layout: SnapshotLayout) -> None:
    """Copy the snapshots from ``step`` on into a new store; ``source`` stays as it is."""
    for part in _parts(source):
        late = _late(part, step)
        if not late.any():
            continue
        target.mkdir(exist_ok=True)
        if late.all() or part.damaged:  # a damaged file is evidence itself: take it as it is
            _link(part.path, target / part.path.name)
        else:
            rows = _selected(part.rows, late)
            name = part.path.with_suffix(PARQUET_SUFFIX).name
            write_parquet(target / name, rows.to_batches(), layout)


def trim_tail(directory: Path, step: int, layout: SnapshotLayout) -> None:
    """Remove the snapshots from ``step`` on; safe to repeat after a kill."""
    for part in _parts(directory):
        late = _late(part, step)
        if not late.any():
            continue
        parquet = part.path.with_suffix(PARQUET_SUFFIX)
        if not late.all():
            # Whole before the journal goes: readers prefer Parquet wherever both are there.
            write_parquet(parquet, _selected(part.rows, ~late).to_batches(), layout)
        for path in reversed(part.files):  # the journal first: alone it would count again
            if late.all() or path != parquet:
                path.unlink()


def _parts(directory: Path) -> Iterator[_Part]:
    """The readable parts; of a Parquet file and its journal the former. What is broken stays."""
    for files in parts_in(directory).values() if directory.is_dir() else ():
        for path in files:
            try:
                rows, damaged = _read(path)
            except (pa.ArrowException, OSError, ValueError):
                continue
            yield _Part(tuple(files), path, rows, damaged)
            break


def _read(path: Path) -> tuple[pa.Table, bool]:
    """All rows of a part's file, and whether its end is torn."""
    import pyarrow.parquet as pq

    if path.suffix == PARQUET_SUFFIX:
        with pq.ParquetFile(path) as file:
            return file.read(), False
    journal = read_journal(path)
    return pa.Table.from_batches(journal.batches), bool(journal.damage)


def _late(part: _Part, step: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    chunks = [values_of(chunk) for chunk in part.rows["step"].chunks]
    return np.concatenate(chunks) >= step if chunks else np.zeros(0, dtype=bool)


def _selected(table: pa.Table, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Table:
    return table.take(plain_array(np.flatnonzero(mask).astype(np.int64)))


def _link(source: Path, target: Path) -> None:
    """A second name for a file that will not change; a copy where there are no links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
