"""Reading snapshots: a column at a time, and only the parts that can hold the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.frozen import dataclass
from forensics.runlog.snapshot_layout import (
    PARQUET_SUFFIX,
    SnapshotLayout,
    parts_in,
    texts_of,
    values_of,
)
from forensics.runlog.snapshot_matrix import (
    SnapshotMatrix,
    assemble,
    distinct,
    encode,
    matrix_piece,
    statistic_at,
)
from forensics.runlog.snapshot_parts import (
    RowGroup,
    one_chunk,
    open_parquet,
    read_journal,
    read_parquet,
)
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
    """A readable part: the row groups of its Parquet file, or a journal's rows in memory."""

    path: Path
    groups: tuple[RowGroup, ...] = ()
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
        tables = self._tables(("step",))
        found = [distinct(values_of(table["step"].chunk(0)))[0] for table in tables]
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
        found: dict[str, int] = {}
        for table, rows in self._of_kind((), kind):
            column = table[self.layout.subject].chunk(0)
            encode(texts_of(column.dictionary), values_of(column)[rows], found)
        return tuple(found)

    def at(self, step: int, statistics: Sequence[str] | None = None) -> SnapshotRows:
        """All rows of one step (none where it has no snapshot); some statistics or all."""
        wanted = self.layout.statistics if statistics is None else tuple(statistics)
        found = []
        for table in self._tables(self._columns(wanted), lambda group: group.spans(step)):
            rows = np.flatnonzero(values_of(table["step"].chunk(0)) == step)
            if len(rows):
                found.append((table, rows))
        return self._rows(found, wanted)

    def _first_above_zero(self, kind: str | None) -> SnapshotRows:
        """The rows of the first step at which any count is above zero (none: no rows).

        Looks at the counts' maxima first and then at the parts that have one; a filter on the
        norms themselves would miss NaN, which Parquet's statistics leave out.
        """
        counts = self.layout.counts
        for part in self._parts:
            found = []
            for table in self._load(part, self._columns(counts), lambda group: group.most > 0):
                bad = self._kind_mask(table, kind)
                bad &= np.logical_or.reduce([_above_zero(table, name) for name in counts])
                found.append((table, np.flatnonzero(bad)))
            steps = [values_of(table["step"].chunk(0))[rows] for table, rows in found]
            if any(map(len, steps)):
                first = min(int(step.min()) for step in steps if len(step))
                there = [rows[step == first] for (_, rows), step in zip(found, steps, strict=True)]
                return self._rows(zip((t for t, _ in found), there, strict=True), counts)
        return self._rows([], counts)

    def _columns(self, statistics: Sequence[str]) -> tuple[str, ...]:
        return ("step", *self.layout.labels, *statistics)

    # -- parts ------------------------------------------------------------------------------

    @cached_property
    def _parts(self) -> tuple[_Part, ...]:
        """All readable parts, in order."""
        for last in (False, False, True):
            try:
                found = [self._open(files, last) for files in self._files().values()]
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

    def _open(self, files: list[Path], last: bool) -> _Part | None:
        """The first readable form of a part: Parquet, else its journal.

        FileNotFoundError where one has gone, but for the last try: that is a link to nowhere.
        """
        for path in files:
            try:
                part = self._footer(path) if path.suffix == PARQUET_SUFFIX else self._replay(path)
            except (pa.ArrowException, OSError, ValueError, KeyError) as error:
                if isinstance(error, FileNotFoundError) and not last:
                    raise
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
        return _Part(path, journal=table) if table.num_rows else None

    def _footer(self, path: Path) -> _Part | None:
        groups = open_parquet(path, self.layout)
        return _Part(path, groups) if groups else None

    def _broken(self, path: Path, reason: str) -> None:
        self._repairs[path] = Repair(
            "broken-snapshots",
            f"{path.parent.name}/{path.name} cannot be read ({reason}); other parts are",
            lossy=True,
        )

    def _tables(
        self, columns: Sequence[str], wanted: Callable[[RowGroup], bool] = lambda _: True
    ) -> Iterator[pa.Table]:
        """Some columns of all parts, of the row groups that are wanted."""
        for part in self._parts:
            yield from self._load(part, columns, wanted)

    def _load(
        self, part: _Part, columns: Sequence[str], wanted: Callable[[RowGroup], bool]
    ) -> Iterator[pa.Table]:
        if part.journal is not None:
            yield part.journal
            return
        groups = [i for i, group in enumerate(part.groups) if wanted(group)]
        try:
            if groups:
                yield read_parquet(part.path, columns, groups, self.layout)
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            self._broken(part.path, str(error).splitlines()[0][:120])

    # -- rows -------------------------------------------------------------------------------

    def _of_kind(
        self, statistics: Sequence[str], kind: str
    ) -> Iterator[tuple[pa.Table, NDArray[np.intp]]]:
        for table in self._tables(self._columns(statistics)):
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
