"""Reading snapshots: a column at a time, and only the parts that can hold the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.runlog.snapshot_layout import (
    PARQUET_SUFFIX,
    SnapshotLayout,
    parts_in,
    texts_of,
    values_of,
)
from forensics.runlog.snapshot_matrix import SnapshotMatrix, assemble, matrix_piece, statistic_at
from forensics.runlog.snapshot_parts import LARGEST_PART, one_chunk, read_journal, read_parquet
from forensics.runlog.steps import BoolArray, IntArray, Repair


@dataclass(frozen=True)
class SnapshotRows:
    """Some rows of a store.

    Attributes:
        step: shape (R,).
        names: subject of each row, length R.
        kinds: kind of each row; empty texts where the store has no kinds.
        values: per statistic shape (R,); NaN (counts: 0) where not taken.
        present: per statistic shape (R,).
    """

    step: IntArray
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    values: Mapping[str, NDArray[Any]]
    present: Mapping[str, BoolArray]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class _Part:
    """A readable part: its Parquet file, or a journal's rows already in memory."""

    path: Path
    first_step: int
    last_step: int
    journal: pa.Table | None = None


class SnapshotReader:
    """Reads one store, lazily; the base of the stores of each layout. A broken part hides no other.

    Args:
        directory: the store; a missing one is empty.
        layout: its columns.
    """

    def __init__(self, directory: Path, layout: SnapshotLayout) -> None:
        self.directory = directory
        self.layout = layout
        self._repairs: dict[Path, Repair] = {}

    @property
    def repairs(self) -> tuple[Repair, ...]:
        """What could not be read, as far as anything was read."""
        return tuple(self._repairs.values())

    @cached_property
    def steps(self) -> IntArray:
        """Steps that have a snapshot, ascending; shape (S,)."""
        found = [np.unique(values_of(t["step"].chunk(0))) for t in self._tables(())]
        return np.unique(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)

    def _matrix(self, statistic: str, kind: str) -> SnapshotMatrix:
        """One statistic of one kind over all snapshots; KeyError for an unknown one."""
        if statistic not in self.layout.statistics:
            raise KeyError(statistic)
        codes: dict[str, int] = {}
        labels, dtype = (self.layout.subject, statistic), self._dtype(statistic)
        pieces = [
            matrix_piece(table, labels, dtype, rows, codes)
            for table, rows in self._of_kind([statistic], kind)
        ]
        return assemble([p for p in pieces if len(p.steps)], tuple(codes), dtype)

    def _names(self, kind: str) -> tuple[str, ...]:
        """Names of one kind in the order they were first written."""
        found: dict[str, None] = {}
        for table, rows in self._of_kind((), kind):
            column = table[self.layout.subject].chunk(0)
            texts = texts_of(column.dictionary)
            codes = values_of(column)[rows]
            _, first = np.unique(codes, return_index=True)
            found.update(dict.fromkeys(texts[codes[i]] for i in np.sort(first)))
        return tuple(found)

    def at(self, step: int, statistics: Sequence[str] | None = None) -> SnapshotRows:
        """All rows of one step (none where it has no snapshot); some statistics or all."""
        wanted = self.layout.statistics if statistics is None else tuple(statistics)
        found = [
            (table, np.flatnonzero(values_of(table["step"].chunk(0)) == step))
            for table in self._tables(wanted, step)
        ]
        return self._rows([(t, rows) for t, rows in found if len(rows)], wanted)

    def _first_above_zero(self, counts: Sequence[str], kind: str | None) -> SnapshotRows:
        """The rows of the first step at which any of these counts is above zero (none: no rows).

        Reads the counts' maxima first and then one part; a filter on the norms themselves would
        miss NaN, which Parquet's statistics leave out.
        """
        for part in self._parts:
            if not _may_hold(part, counts):
                continue
            for table in self._load(part, counts):
                bad = self._kind_mask(table, kind)
                bad &= np.logical_or.reduce([_above_zero(table, name) for name in counts])
                if bad.any():
                    step = values_of(table["step"].chunk(0))
                    first = step[bad].min()
                    return self._rows([(table, np.flatnonzero(bad & (step == first)))], counts)
        return self._rows([], counts)

    # -- parts ------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        """All readable parts, in order."""
        for _ in range(3):
            try:
                found = [self._open(files) for files in self._files().values()]
            except FileNotFoundError:
                continue  # a journal became Parquet between listing and opening
            return tuple(part for part in found if part is not None)
        return ()

    def _files(self) -> dict[int, list[Path]]:
        try:
            return parts_in(self.directory)
        except OSError as error:
            if self.directory.exists():
                self._broken(self.directory, error.strerror or str(error))
            return {}

    def _open(self, files: list[Path]) -> _Part | None:
        """The first readable form of a part: Parquet, else its journal."""
        for path in files:
            try:
                part = _open_parquet(path) if path.suffix == PARQUET_SUFFIX else self._replay(path)
            except FileNotFoundError:
                raise
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                self._broken(path, str(error).splitlines()[0][:120] if str(error) else "unreadable")
                continue
            if part is not None:
                for earlier in files[: files.index(path)]:
                    self._repairs.pop(earlier, None)
            return part
        return None

    def _replay(self, path: Path) -> _Part | None:
        """A journal's rows, as far as they are whole."""
        journal = read_journal(path)
        if journal.damage:
            self._repairs[path] = Repair(
                "torn-snapshots",
                f"{path.parent.name}/{path.name}: cut after {len(journal.batches)} batches "
                f"({journal.damage})",
                lossy=True,
            )
        if not journal.batches:
            return None
        table = one_chunk(pa.Table.from_batches(journal.batches), self.layout)
        step = values_of(table["step"].chunk(0))
        return _Part(path, int(step.min()), int(step.max()), table) if len(step) else None

    def _broken(self, path: Path, reason: str) -> None:
        self._repairs[path] = Repair(
            "broken-snapshots",
            f"{path.parent.name}/{path.name} cannot be read ({reason}); other parts are",
            lossy=True,
        )

    def _tables(self, statistics: Sequence[str], step: int | None = None) -> Iterator[pa.Table]:
        """The parts that can hold a step (or all), one chunk a column."""
        for part in self._parts:
            if step is None or part.first_step <= step <= part.last_step:
                yield from self._load(part, statistics)

    def _load(self, part: _Part, statistics: Sequence[str]) -> Iterator[pa.Table]:
        if part.journal is not None:
            yield part.journal
            return
        try:
            table = read_parquet(part.path, statistics, self.layout)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            self._broken(part.path, str(error).splitlines()[0][:120])
            return
        if table.num_rows:
            yield table

    # -- rows -------------------------------------------------------------------------------

    def _of_kind(
        self, statistics: Sequence[str], kind: str
    ) -> Iterator[tuple[pa.Table, NDArray[np.intp]]]:
        for table in self._tables(statistics):
            yield table, np.flatnonzero(self._kind_mask(table, kind if self.layout.kinds else None))

    def _kind_mask(self, table: pa.Table, kind: str | None) -> BoolArray:
        if kind is None:
            return np.ones(table.num_rows, dtype=bool)
        column = table["kind"].chunk(0)
        texts = texts_of(column.dictionary)
        return np.asarray(values_of(column) == (texts.index(kind) if kind in texts else -1))

    def _rows(
        self, found: Iterable[tuple[pa.Table, NDArray[np.intp]]], statistics: Sequence[str]
    ) -> SnapshotRows:
        pieces = list(found)
        cells = {
            name: [statistic_at(table, name, rows, self._dtype(name)) for table, rows in pieces]
            for name in statistics
        }
        steps = [values_of(table["step"].chunk(0))[rows] for table, rows in pieces]
        return SnapshotRows(
            step=_joined(steps, np.dtype(np.int64)),
            names=_labels(pieces, self.layout.subject),
            kinds=_labels(pieces, "kind") if self.layout.kinds else ("",) * sum(map(len, steps)),
            values={
                n: _joined([v for v, _ in parts], self._dtype(n)) for n, parts in cells.items()
            },
            present={
                n: _joined([p for _, p in parts], np.dtype(bool)) for n, parts in cells.items()
            },
        )

    def _dtype(self, statistic: str) -> np.dtype[Any]:
        return np.dtype(np.float32 if statistic in self.layout.floats else np.int64)


def _above_zero(table: pa.Table, name: str) -> BoolArray:
    rows = np.arange(table.num_rows)
    return statistic_at(table, name, rows, np.dtype(np.int64))[0] > 0


def _labels(pieces: list[tuple[pa.Table, NDArray[np.intp]]], name: str) -> tuple[str, ...]:
    found: list[str] = []
    for table, rows in pieces:
        column = table[name].chunk(0)
        texts = texts_of(column.dictionary)
        found += [texts[code] for code in values_of(column)[rows]]
    return tuple(found)


def _joined(arrays: list[NDArray[Any]], dtype: np.dtype[Any]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def _open_parquet(path: Path) -> _Part | None:
    """A Parquet part by its footer alone."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(path)
    if metadata.num_rows > LARGEST_PART:
        raise ValueError(f"claims {metadata.num_rows} rows")
    if metadata.num_rows == 0:
        return None
    ranges = [_range(metadata.row_group(i), "step") for i in range(metadata.num_row_groups)]
    return _Part(path, min(low for low, _ in ranges), max(high for _, high in ranges))


def _may_hold(part: _Part, counts: Sequence[str]) -> bool:
    """Can any of these counts be above zero in this part, as far as its statistics tell?"""
    if part.journal is not None:
        return True
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(part.path)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return any(_range(group, name)[1] > 0 for group in groups for name in counts)


def _range(group: Any, column: str) -> tuple[int, int]:
    """Minimum and maximum of an integer column in a row group, as wide as can be if not told."""
    for i in range(group.num_columns):
        chunk = group.column(i)
        if chunk.path_in_schema == column:
            statistics = chunk.statistics
            if statistics is not None and statistics.has_min_max:
                return int(statistics.min), int(statistics.max)
            if statistics is not None and statistics.null_count == chunk.num_values:
                return 0, 0
    info = np.iinfo(np.int64)
    return int(info.min), int(info.max)
