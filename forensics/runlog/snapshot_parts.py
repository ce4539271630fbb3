"""The two forms of a part of a snapshot store: a journal, and the Parquet file it becomes."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from forensics.frozen import dataclass
from forensics.runlog.atomic import replacing
from forensics.runlog.csv_reader.spans import arrow_source, opened
from forensics.runlog.snapshot_layout import (
    CHECKSUM,
    NAMES_CHECKSUM,
    SnapshotLayout,
    checksum,
    names_checksum,
)

_ROW_GROUP = 1 << 16
"""Rows. Large enough to compress as well as a whole part, small enough to read one step fast."""
LARGEST_PART = 100_000_000
"""Rows. A hundred snapshots of a million parameters; a file that claims more is not ours."""


@dataclass(frozen=True)
class RowGroup:
    """What a Parquet footer tells of a row group.

    Attributes:
        first_step: least step in it.
        last_step: greatest step in it.
        most: greatest count in it, over all counts.
    """

    first_step: int
    last_step: int
    most: int

    def spans(self, step: int) -> bool:
        """May the group have rows of a step?"""
        return self.first_step <= step <= self.last_step


@dataclass(frozen=True)
class Journal:
    """What a journal holds.

    Attributes:
        batches: every batch that was written whole, in order.
        damage: why reading stopped before the end, or empty.
    """

    batches: tuple[pa.RecordBatch, ...]
    damage: str = ""


def read_journal(path: Path) -> Journal:
    """Read a journal as far as it is whole. Raises OSError where it cannot be opened.

    A tail of NUL bytes ends it; a batch whose checksum does not fit is damage, and so is all
    that follows.
    """
    _check_regular(path)
    with opened(path) as file:
        data = file.read()
    batches: list[pa.RecordBatch] = []
    if not data[:8].strip(b"\0"):
        return Journal(())
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            if not _fits(batch, metadata or {}):
                return Journal(tuple(batches), "a snapshot's checksum does not fit")
            batches.append(batch)
    except StopIteration:
        return Journal(tuple(batches))
    except (pa.ArrowException, OSError, ValueError) as error:
        return Journal(tuple(batches), str(error).splitlines()[0][:120])


def _check_regular(path: Path) -> None:
    """OSError for what is no file: a pipe of a part's name would be waited for without end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError("it is no regular file")


def _fits(batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> bool:
    """Do a batch and its names (where it brought new ones) agree with their checksums?"""
    names = metadata.get(NAMES_CHECKSUM)
    if names is not None and names != names_checksum(batch):
        return False
    return metadata.get(CHECKSUM) == checksum(batch)


def write_parquet(path: Path, batches: Sequence[pa.RecordBatch], layout: SnapshotLayout) -> None:
    """Write a part, whole or not at all; with no row in it, no file.

    The counts keep their minimum and maximum per row group, so that a reader can pass by the
    groups without a non-finite value. (NaN itself never shows in Parquet's statistics.)

    Raises:
        OSError: it cannot be written.
    """
    import pyarrow.parquet as pq

    if not any(batch.num_rows for batch in batches):
        return
    table = pa.Table.from_batches(batches).unify_dictionaries()
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            use_dictionary=["step", *layout.labels, *layout.counts],
            column_encoding=dict.fromkeys(layout.floats, "BYTE_STREAM_SPLIT"),
            write_statistics=["step", *layout.counts],
            row_group_size=_ROW_GROUP,
        )


def open_parquet(path: Path, layout: SnapshotLayout) -> tuple[RowGroup, ...]:
    """The row groups of a part, by its footer alone.

    Raises:
        OSError, pyarrow.ArrowException: it cannot be read.
        ValueError: it is not of this layout, or claims more rows than a part can have.
    """
    import pyarrow.parquet as pq

    _check_regular(path)
    metadata = pq.read_metadata(arrow_source(path))
    if metadata.num_rows > LARGEST_PART:
        raise ValueError(f"claims {metadata.num_rows} rows")
    index = {metadata.schema.column(i).name: i for i in range(metadata.num_columns)}
    if not {"step", *layout.labels} <= index.keys():
        raise ValueError("has other columns")
    counts = [index[name] for name in layout.counts if name in index]
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return tuple(
        RowGroup(
            *_range(group.column(index["step"])),
            max((_range(group.column(i))[1] for i in counts), default=0),
        )
        for group in groups
        if group.num_rows
    )


def _range(chunk: Any) -> tuple[int, int]:
    """Minimum and maximum of an integer column chunk; as wide as can be where it does not tell."""
    statistics = chunk.statistics
    if statistics is not None and statistics.has_min_max:
        return int(statistics.min), int(statistics.max)
    if statistics is not None and statistics.null_count == chunk.num_values:
        return 0, 0
    return -(2**63), 2**63 - 1


def read_parquet(
    path: Path, columns: Sequence[str], groups: Sequence[int], layout: SnapshotLayout
) -> pa.Table:
    """Some columns of some row groups, one chunk a column; statistics it lacks are left out.

    Raises:
        OSError, pyarrow.ArrowException: it cannot be read.
        ValueError: it is not of this layout.
    """
    import pyarrow.parquet as pq

    source = arrow_source(path)
    # What lies elsewhere is asked for in few large parts, not column by column.
    elsewhere = source is not path
    with pq.ParquetFile(source, read_dictionary=list(layout.labels), pre_buffer=elsewhere) as file:
        there = set(file.schema_arrow.names)
        wanted = [name for name in columns if name in there]
        return one_chunk(file.read_row_groups(list(groups), columns=wanted), layout)


def one_chunk(table: pa.Table, layout: SnapshotLayout) -> pa.Table:
    """The table with one chunk a column; ValueError where a column is not as the layout says."""
    schema = layout.schema()
    for name in table.column_names:
        if name not in schema.names:
            continue
        if table[name].type != schema.field(name).type:
            raise ValueError(f"column {name} is {table[name].type}")
        if name not in layout.statistics and table[name].null_count:
            raise ValueError(f"column {name} has gaps")
    return table.unify_dictionaries().combine_chunks()
