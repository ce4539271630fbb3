"""One statistic over all snapshots, put together from the parts that hold it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from forensics.frozen import dataclass
from forensics.runlog.snapshot_layout import mask_of, texts_of, values_of
from forensics.runlog.steps import BoolArray, IntArray


@dataclass(frozen=True)
class SnapshotMatrix:
    """One statistic, snapshots × names.

    Attributes:
        steps: shape (S,), ascending.
        names: length P, in the order they were first written.
        values: shape (S, P), float32 (counts: int64); NaN (counts: 0) where not taken.
        present: shape (S, P).
    """

    steps: IntArray
    names: tuple[str, ...]
    values: NDArray[np.float32] | NDArray[np.int64]
    present: BoolArray


@dataclass(frozen=True)
class MatrixPiece:
    """One part's share of a matrix; a row for each of its steps, a column a known name."""

    steps: IntArray
    values: NDArray[Any]
    present: BoolArray


def matrix_piece(
    table: pa.Table,
    labels: tuple[str, str],
    dtype: np.dtype[Any],
    rows: NDArray[np.intp],
    codes: dict[str, int],
) -> MatrixPiece:
    """One part's share of a matrix.

    Args:
        table: the part's rows, one chunk a column.
        labels: the columns of names and of the statistic.
        dtype: of the statistic.
        rows: which rows.
        codes: column of the matrix by name; names met first are added.
    """
    subject, statistic = labels
    column = table[subject].chunk(0)
    local = values_of(column)[rows]
    translate = encode(texts_of(column.dictionary), local, codes)
    steps, index = distinct(values_of(table["step"].chunk(0))[rows])
    found, there = statistic_at(table, statistic, rows, dtype)
    shape = (len(steps), len(codes))
    values = np.full(shape, _absent(dtype), dtype)
    present = np.zeros(shape, dtype=bool)
    values[index, translate[local]] = found
    present[index, translate[local]] = there
    return MatrixPiece(steps, values, present)


def encode(texts: list[str], local: NDArray[np.int32], codes: dict[str, int]) -> NDArray[np.intp]:
    """The common code of each of a part's texts; those met first in ``local`` are added."""
    first = np.full(len(texts), len(local))
    first[local[::-1]] = np.arange(len(local) - 1, -1, -1)  # of repeated ones the first stays
    translate = np.zeros(len(texts), dtype=np.intp)
    for code in np.argsort(first, kind="stable"):
        if first[code] < len(local):
            translate[code] = codes.setdefault(texts[code], len(codes))
    return translate


def distinct(steps: IntArray) -> tuple[IntArray, NDArray[np.intp]]:
    """The distinct steps, ascending, and the index of each row's step among them."""
    change = np.diff(steps)
    if (change >= 0).all():  # as the writer leaves it: no sort needed
        starts = np.concatenate(([True], change != 0)) if len(steps) else np.zeros(0, dtype=bool)
        return steps[starts], np.cumsum(starts) - 1
    distinct, index = np.unique(steps, return_inverse=True)
    return distinct, index


def assemble(
    pieces: list[MatrixPiece], names: tuple[str, ...], dtype: np.dtype[Any]
) -> SnapshotMatrix:
    """The matrix of all pieces; of a cell that two parts took the later one."""
    steps = (
        np.unique(np.concatenate([p.steps for p in pieces])) if pieces else np.zeros(0, np.int64)
    )
    shape = (len(steps), len(names))
    values = np.full(shape, _absent(dtype), dtype)
    present = np.zeros(shape, dtype=bool)
    for piece in pieces:
        rows = np.searchsorted(steps, piece.steps)
        width = piece.values.shape[1]
        # A step may be spread over two parts: what one has not taken must not erase the other's.
        values[rows, :width] = np.where(piece.present, piece.values, values[rows, :width])
        present[rows, :width] |= piece.present
    return SnapshotMatrix(steps, names, values, present)


def statistic_at(
    table: pa.Table, statistic: str, rows: NDArray[np.intp], dtype: np.dtype[Any]
) -> tuple[NDArray[Any], BoolArray]:
    """The values of a statistic at some rows and where they were taken at all."""
    if statistic not in table.column_names:
        return np.full(len(rows), _absent(dtype), dtype), np.zeros(len(rows), dtype=bool)
    column = table[statistic].chunk(0)
    values = values_of(column)[rows]
    mask = mask_of(column)
    if mask is None:
        return values, np.ones(len(rows), dtype=bool)
    there = mask[rows]
    return np.where(there, values, _absent(dtype)), there


def _absent(dtype: np.dtype[Any]) -> Any:
    return dtype.type(np.nan if dtype.kind == "f" else 0)
