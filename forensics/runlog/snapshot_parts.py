"""The two forms of a part of a snapshot store: a journal, and the Parquet file it becomes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from forensics.runlog.atomic import replacing
from forensics.runlog.snapshot_layout import CHECKSUM, SnapshotLayout, checksum

LARGEST_PART = 100_000_000
"""Rows. A hundred snapshots of a million parameters; a file that claims more is not ours."""


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
    data = path.read_bytes()
    batches: list[pa.RecordBatch] = []
    if not data.strip(b"\0"):
        return Journal(())
    try:
        reader = pa.ipc.open_stream(pa.py_buffer(data))
        while True:
            batch, metadata = reader.read_next_batch_with_custom_metadata()
            batch.validate(full=True)
            if metadata is None or metadata.get(CHECKSUM) != checksum(batch):
                return Journal(tuple(batches), "a snapshot's checksum does not fit")
            batches.append(batch)
    except StopIteration:
        return Journal(tuple(batches))
    except (pa.ArrowException, OSError, ValueError) as error:
        return Journal(tuple(batches), str(error).splitlines()[0][:120])


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
            row_group_size=table.num_rows,
        )


def read_parquet(path: Path, statistics: Sequence[str], layout: SnapshotLayout) -> pa.Table:
    """Steps, names and some statistics of a part, one chunk a column.

    Raises:
        OSError, pyarrow.ArrowException: it cannot be read.
        ValueError: it is not of this layout.
    """
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, read_dictionary=list(layout.labels)) as file:
        there = set(file.schema_arrow.names)
        wanted = ["step", *layout.labels, *(name for name in statistics if name in there)]
        return one_chunk(file.read(columns=wanted), layout)


def one_chunk(table: pa.Table, layout: SnapshotLayout) -> pa.Table:
    """The table with one chunk a column; ValueError where a column is not as the layout says."""
    schema = layout.schema()
    for name in ("step", *layout.labels, *layout.statistics):
        if name in table.column_names:
            column = table[name]
            if column.type != schema.field(name).type:
                raise ValueError(f"column {name} is {column.type}")
            if name not in layout.statistics and column.null_count:
                raise ValueError(f"column {name} has gaps")
        elif name not in layout.statistics:
            raise ValueError(f"there is no column {name}")
    return table.unify_dictionaries().combine_chunks()
