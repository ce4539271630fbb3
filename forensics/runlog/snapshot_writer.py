"""Writing snapshots: each one is with the operating system before the call returns."""

from __future__ import annotations

import io
import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import pyarrow as pa

from forensics.runlog.snapshot_layout import (
    CHECKSUM,
    JOURNAL_SUFFIX,
    NAMES_CHECKSUM,
    PARQUET_SUFFIX,
    SnapshotLayout,
    checksum,
    names_checksum,
    part_path,
    parts_in,
    plain_array,
    statistic_array,
    text_array,
)
from forensics.runlog.snapshot_parts import read_journal, write_parquet

GROUP = 100
"""Snapshots a Parquet part: one row group each would triple the size and cost ten times as much."""


class SnapshotWriter:
    """Appends snapshots to a store; the base of the writers of each layout.

    A snapshot goes to a journal at once; every ``group`` snapshots the journal is compacted to
    Parquet (zstd, byte-stream-split: 6 to 7 bytes a value). Journals that an earlier process
    left behind are compacted first.

    Args:
        directory: the store; created where it is missing.
        layout: its columns.
        group: snapshots (different steps) a part.

    Raises:
        OSError: the directory cannot be created or read.
    """

    def __init__(self, directory: Path, layout: SnapshotLayout, group: int = GROUP) -> None:
        if group < 1:
            raise ValueError(f"group must be at least 1, not {group}")
        self.directory = directory
        self.layout = layout
        self.group = group
        self._schema = layout.schema()
        self._labels = {name: _Labels() for name in layout.labels}
        self._journal: _Journal | None = None
        directory.mkdir(parents=True, exist_ok=True)
        present = parts_in(directory)
        self._next = max(present, default=-1) + 1
        for number in present:
            self._compact(number)

    def _append(
        self, step: int, subjects: Sequence[str], kind: str, stats: Mapping[str, Any]
    ) -> None:
        """Append the rows of one snapshot, or one kind of it: further calls may add others.

        After an OSError the next call begins a new part, so that nothing follows a torn batch.
        """
        batch = self._batch(step, subjects, kind, stats)
        journal = self._journal
        if journal is not None and step != journal.last_step and journal.snapshots >= self.group:
            self._finish_part()
        if self._journal is None:
            path = part_path(self.directory, self._next, JOURNAL_SUFFIX)
            self._next += 1
            self._journal = _Journal(path, self._schema)
        try:
            names = [labels.array for labels in self._labels.values()]
            self._journal.append(step, batch, names)
        except OSError:
            self._journal.abandon()
            self._journal = None
            raise

    def close(self) -> None:
        """Compact what is left; safe to call twice. The rows are on disk even if that fails."""
        self._finish_part()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _batch(
        self, step: int, subjects: Sequence[str], kind: str, stats: Mapping[str, Any]
    ) -> pa.RecordBatch:
        if not stats.keys() <= set(self.layout.statistics):
            unknown = sorted(stats.keys() - set(self.layout.statistics))
            raise ValueError(
                f"no statistic is called {unknown}; there are {self.layout.statistics}"
            )
        if (kind or None) not in (self.layout.kinds or (None,)):
            raise ValueError(f"kind {kind!r} is not one of {self.layout.kinds}")
        rows = len(subjects)
        columns = [plain_array(np.full(rows, step, dtype=np.int64))]
        columns.append(self._labels[self.layout.subject].encode(subjects))
        if self.layout.kinds:
            columns.append(self._labels["kind"].encode((kind,) * rows))
        columns += [
            statistic_array(stats.get(name), rows, self._schema.field(name).type)
            for name in self.layout.statistics
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _finish_part(self) -> None:
        if self._journal is None:
            return
        journal, self._journal = self._journal, None
        with suppress(OSError):
            journal.close()
        self._compact(self._next - 1)

    def _compact(self, number: int) -> None:
        """Turn a journal into Parquet. Where that fails the journal stays, and is read as such."""
        journal = part_path(self.directory, number, JOURNAL_SUFFIX)
        parquet = part_path(self.directory, number, PARQUET_SUFFIX)
        with suppress(OSError, pa.ArrowException):
            if journal.exists() and not parquet.exists():
                found = read_journal(journal)
                if found.damage:
                    return  # a torn journal stays as it is, so that readers can say so
                write_parquet(parquet, found.batches, self.layout)
            journal.unlink(missing_ok=True)


class _Labels:
    """A growing dictionary of texts; it is the same Arrow array until something is new."""

    def __init__(self) -> None:
        self._code: dict[str, int] = {}
        self.array = text_array(())
        self._last: tuple[Sequence[str], pa.Array] | None = None

    def encode(self, texts: Sequence[str]) -> pa.Array:
        if self._last is not None and self._last[0] == texts:
            return self._last[1]
        codes = np.fromiter(
            (self._code.setdefault(text, len(self._code)) for text in texts),
            dtype=np.int32,
            count=len(texts),
        )
        if len(self._code) > len(self.array):
            self.array = text_array(list(self._code))
        encoded = pa.DictionaryArray.from_arrays(plain_array(codes), self.array)
        self._last = (list(texts) if isinstance(texts, list) else texts, encoded)
        return encoded


class _Journal:
    """One Arrow IPC stream on disk; a batch is handed to the system in one piece."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self.last_step: int | None = None
        self.snapshots = 0
        self._size = 0
        self._names: tuple[pa.Array, ...] = ()
        self._pending = io.BytesIO()
        self._file = path.open("xb", buffering=0)
        options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
        self._stream = pa.ipc.new_stream(self._pending, schema, options=options)

    def append(self, step: int, batch: pa.RecordBatch, names: Sequence[pa.Array]) -> None:
        """Append a batch; ``names`` are its labels' dictionaries, the same until they grow."""
        metadata = {CHECKSUM: checksum(batch)}
        if any(map(operator.is_not, names, self._names or (None,) * len(names))):
            metadata[NAMES_CHECKSUM] = names_checksum(batch)
            self._names = tuple(names)
        self._stream.write_batch(batch, custom_metadata=metadata)
        self._flush()
        self.snapshots += step != self.last_step
        self.last_step = step

    def close(self) -> None:
        """End the stream, so that nobody takes it for a cut one."""
        try:
            self._stream.close()
            self._flush()
        finally:
            self._file.close()

    def abandon(self) -> None:
        """Let go of a file that can no longer be written, less what tore."""
        with suppress(OSError):
            self._file.truncate(self._size)
        with suppress(OSError):
            self._file.close()

    def _flush(self) -> None:
        data = memoryview(self._pending.getvalue())
        self._pending.seek(0)
        self._pending.truncate()
        written = 0
        while written < len(data):
            written += self._file.write(data[written:]) or 0
        self._size += written
