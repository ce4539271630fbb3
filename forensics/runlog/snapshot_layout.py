"""The shape of a snapshot store: its columns, its parts on disk, and arrays to Arrow and back.

A store is a directory of parts. A part is a Parquet file, or, until enough snapshots are
together, a journal: an Arrow IPC stream that survives a ``kill -9`` with every snapshot already
appended, where a Parquet file without its footer would be lost whole.

Importing this module costs as much as pyarrow itself; readers of a run that has no snapshots
never do. Arrays are made from buffers: ``pyarrow.array`` would import pandas.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.frozen import dataclass
from forensics.runlog.schema import SCHEMA_VERSION
from forensics.runlog.steps import BoolArray

JOURNAL_SUFFIX = ".arrows"
PARQUET_SUFFIX = ".parquet"
CHECKSUM = b"crc32"
NAMES_CHECKSUM = b"names_crc32"
_PART = re.compile(r"part-(\d{8})\.(parquet|arrows)\Z")
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class SnapshotLayout:
    """What a row of a store holds beside its step.

    Attributes:
        subject: column of names: ``name`` (of a parameter) or ``module``.
        kinds: allowed values of the ``kind`` column; empty where there is no such column.
        floats: float32 statistics.
        counts: int64 statistics.
    """

    subject: str
    kinds: tuple[str, ...]
    floats: tuple[str, ...]
    counts: tuple[str, ...]

    @property
    def statistics(self) -> tuple[str, ...]:
        """All statistic columns, in file order."""
        return (*self.floats, *self.counts)

    @property
    def labels(self) -> tuple[str, ...]:
        """The dictionary-encoded columns."""
        return (self.subject, "kind") if self.kinds else (self.subject,)

    def schema(self) -> pa.Schema:
        """The Arrow schema of a part."""
        label = pa.dictionary(pa.int32(), pa.string())
        fields = [("step", pa.int64()), *((name, label) for name in self.labels)]
        fields += [(name, pa.float32()) for name in self.floats]
        fields += [(name, pa.int64()) for name in self.counts]
        version = {b"forensics.schema_version": str(SCHEMA_VERSION).encode()}
        return pa.schema(fields, metadata=version)


def part_number(path: Path) -> int | None:
    """The number of a part's file; None for any other file."""
    match = _PART.match(path.name)
    return int(match.group(1)) if match else None


def part_path(directory: Path, number: int, suffix: str) -> Path:
    """Where a part lies."""
    return directory / f"part-{number:08d}{suffix}"


def parts_in(directory: Path) -> dict[int, list[Path]]:
    """The files of each part by number, ascending; a Parquet file before its journal."""
    found: dict[int, list[Path]] = {}
    for path in sorted(directory.iterdir(), key=lambda p: p.name, reverse=True):
        number = part_number(path)
        if number is not None:
            found.setdefault(number, []).append(path)
    return dict(sorted(found.items()))


# -- numpy to Arrow -------------------------------------------------------------------------


def text_array(texts: Sequence[str]) -> pa.Array:
    """A string array."""
    encoded = [text.encode("utf-8", errors="replace") for text in texts]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def plain_array(values: NDArray[Any]) -> pa.Array:
    """An int32 or int64 array without nulls; takes no copy."""
    kind = pa.int32() if values.dtype == np.int32 else pa.int64()
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


def statistic_array(values: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """A statistic as float32 or int64; None and masked elements become null.

    A finite value beyond the range of float32 becomes the largest one: it is not an Inf.

    Raises:
        ValueError: not one value a row.
    """
    if values is None:
        return pa.nulls(rows, kind)
    if not isinstance(values, np.ndarray) and None in values:
        values = np.ma.masked_array(
            [0 if value is None else value for value in values], [value is None for value in values]
        )
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else None
    array = np.asarray(np.ma.getdata(values))
    if array.shape != (rows,):
        raise ValueError(f"a statistic has shape {array.shape}, the names {(rows,)}")
    if kind == pa.float32():
        array = _as_float32(array)
    array = np.ascontiguousarray(array, dtype=np.float32 if kind == pa.float32() else np.int64)
    validity = None if mask is None or not mask.any() else _packed(~mask)
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(array.tobytes())])


def _as_float32(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == np.float32:
        return array
    wide = array.astype(np.float64)
    beyond = np.isfinite(wide) & (np.abs(wide) > _FLOAT32_MAX)
    return np.where(beyond, np.copysign(_FLOAT32_MAX, wide), wide) if beyond.any() else wide


def _packed(mask: BoolArray) -> pa.Buffer:
    return pa.py_buffer(np.packbits(mask, bitorder="little").tobytes())


# -- Arrow to numpy -------------------------------------------------------------------------


def values_of(array: pa.Array) -> NDArray[Any]:
    """The values of a fixed-width array (a dictionary's indices); what is null holds anything."""
    if pa.types.is_dictionary(array.type):
        array = array.indices
    dtype = np.dtype(array.type.to_pandas_dtype())
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), dtype=dtype)
    return np.frombuffer(
        buffer, dtype=dtype, count=len(array), offset=array.offset * dtype.itemsize
    )


def mask_of(array: pa.Array) -> BoolArray | None:
    """Where an array is not null; None where nothing is."""
    if array.null_count == 0:
        return None
    buffer = array.buffers()[0]
    if buffer is None:  # an array of the null type
        return np.zeros(len(array), dtype=bool)
    packed = np.frombuffer(buffer, dtype=np.uint8)
    bits = np.unpackbits(packed, count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)


def checksum(batch: pa.RecordBatch) -> bytes:
    """CRC-32 of a batch's values and masks, and of the codes of its names.

    Arrow checks nothing: where a crash left a tail of NUL bytes, a torn batch reads as zeros.
    """
    crc = 0
    for column in batch.columns:
        mask = mask_of(column)
        if mask is not None:
            crc = zlib.crc32(np.packbits(mask).data, crc)
        crc = zlib.crc32(np.ascontiguousarray(values_of(column)).data, crc)
    return b"%08x" % crc


def names_checksum(batch: pa.RecordBatch) -> bytes:
    """CRC-32 of all texts that the codes of a batch may mean."""
    crc = 0
    for column in batch.columns:
        if pa.types.is_dictionary(column.type):
            crc = zlib.crc32(_text_bytes(column.dictionary), crc)
    return b"%08x" % crc


def _text_bytes(array: pa.Array) -> memoryview:
    """All texts of a string array, end to end."""
    _, offsets, data = array.buffers()
    if data is None or len(array) == 0:
        return memoryview(b"")
    ends = np.frombuffer(offsets, dtype=np.int32, count=array.offset + len(array) + 1)
    return memoryview(data)[int(ends[array.offset]) : int(ends[-1])]


def texts_of(array: pa.Array) -> list[str]:
    """The texts of a string array."""
    texts: Iterable[str | None] = array.to_pylist()
    return [text or "" for text in texts]
