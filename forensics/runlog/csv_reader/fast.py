"""Clean lines, by typed pyarrow.csv; anything it is not sure of it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import csv

from forensics.frozen import dataclass
from forensics.runlog.csv_reader.cells import ARROW_ABSENT, ARROW_FALSE, ARROW_TRUE
from forensics.runlog.csv_reader.header import Layout
from forensics.runlog.csv_reader.source import NUL_MARK
from forensics.runlog.schema import Kind
from forensics.runlog.steps import BoolArray

_EXACT = 2.0**53
"""Whole numbers below it are exact as float64."""


@dataclass(frozen=True)
class Piece:
    """Some rows of one column.

    Attributes:
        values: int64, float64 or bool; int32 codes of a text. Where nothing was written a float
            holds NaN, an integer 0, a flag False, a text the code of the empty text.
        present: where something was written; None for everywhere. Texts need none.
        texts: what a text's codes mean.
    """

    values: NDArray[Any]
    present: BoolArray | None = None
    texts: tuple[str, ...] = ()


def parse_fast(block: bytes, layout: Layout) -> list[dict[str, Piece]] | None:
    """The rows of a block of whole lines, piece by piece; None where something in it is odd.

    Odd is what pyarrow cannot convert, a line that is not a row or a row that is not a line, a
    missing step, or a NUL byte.
    """
    if NUL_MARK in block or (layout.step_index is None and not block.strip()):
        return None
    try:
        table = csv.read_csv(pa.BufferReader(block), *_options(layout, len(block)))
    except pa.ArrowException:
        return None
    # A quote can swallow line ends and a bare carriage return is one: neither goes unseen.
    if (b'"' in block or b"\r" in block) and table.num_rows != block.count(b"\n"):
        return None
    if layout.step_index is not None and table.column(layout.step_index).null_count:
        return None
    pieces = list(_pieces(table, layout))
    if layout.float_steps and not all(_with_whole_steps(piece) for piece in pieces):
        return None
    return pieces


def _options(
    layout: Layout, size: int
) -> tuple[csv.ReadOptions, csv.ParseOptions, csv.ConvertOptions]:
    """How a block of ``size`` bytes is parsed: in one piece and by the thread that asks.

    Blocks are worked on side by side as it is; threads of pyarrow's own within each would mostly
    wait for each other, and the whole took a third longer.
    """
    labels = [str(i) for i in range(len(layout.names))]
    return (
        csv.ReadOptions(column_names=labels, block_size=size, use_threads=False),
        csv.ParseOptions(delimiter=layout.delimiter),
        csv.ConvertOptions(
            column_types={
                label: pa.float64()
                if kind is Kind.INT and layout.float_steps
                else _arrow_type(kind)
                for label, kind in zip(labels, layout.kinds, strict=True)
            },
            null_values=list(ARROW_ABSENT),
            true_values=list(ARROW_TRUE),
            false_values=list(ARROW_FALSE),
            strings_can_be_null=False,
            decimal_point=layout.decimal,
        ),
    )


def _arrow_type(kind: Kind) -> pa.DataType:
    if kind is Kind.TEXT:
        return pa.dictionary(pa.int32(), pa.string())
    return {Kind.INT: pa.int64(), Kind.FLOAT: pa.float64(), Kind.FLAG: pa.bool_()}[kind]


def _pieces(table: pa.Table, layout: Layout) -> Iterator[dict[str, Piece]]:
    for batch in table.to_batches():
        yield {
            name: piece_of_array(column, kind)
            for name, kind, column in zip(layout.names, layout.kinds, batch.columns, strict=True)
        }


def _with_whole_steps(columns: dict[str, Piece]) -> bool:
    """Turn steps written as ``12.0`` into integers; False where one is no whole number."""
    steps = columns["step"].values
    if not (np.abs(steps) < _EXACT).all() or (steps % 1).any():
        return False
    columns["step"] = Piece(steps.astype(np.int64))
    return True


def piece_of_array(column: pa.Array, kind: Kind) -> Piece:
    """An array of pyarrow's as a piece of a column; text is a dictionary's indices."""
    if kind is Kind.TEXT:
        texts = tuple(column.dictionary.to_pylist())
        return Piece(_buffer(column.indices, np.dtype(np.int32)), None, texts)
    present = None if column.null_count == 0 else _bits(column, 0)
    if kind is Kind.FLAG:
        values: NDArray[Any] = _bits(column, 1)
    else:
        whole = pa.types.is_integer(column.type)
        values = _buffer(column, np.dtype(np.int64 if whole else np.float64))
    if present is not None:
        absent = {Kind.FLOAT: np.nan, Kind.INT: 0, Kind.FLAG: False}[kind]
        values = np.where(present, values, values.dtype.type(absent))
    return Piece(values, present)


def _buffer(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A fixed-width array's memory as numpy, without a copy (and without pandas)."""
    start = array.offset * dtype.itemsize
    return np.frombuffer(array.buffers()[1], dtype=dtype, count=len(array), offset=start)


def _bits(array: pa.Array, which: int) -> BoolArray:
    """A bitmap of an array (0: where it is present, 1: a flag's values) as bool."""
    packed = np.frombuffer(array.buffers()[which], dtype=np.uint8)
    bits = np.unpackbits(packed, count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(np.bool_)
