"""Several files of one run as one sequence of rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forensics.runlog.csv_reader.builder import TableBuilder
from forensics.runlog.csv_reader.fast import Piece
from forensics.runlog.steps import Column, StepTable


def joined_columns(tables: Sequence[StepTable]) -> dict[str, Column]:
    """The rows of some tables one after the other; a column that one lacks is absent there."""
    if len(tables) == 1:
        return dict(tables[0].columns)
    builder = TableBuilder(sum(map(len, tables)))
    for table in tables:
        builder.append({name: piece_of(column) for name, column in table.columns.items()})
    return builder.finish()


def piece_of(column: Column) -> Piece:
    """A column as a piece to build one from."""
    if column.values.dtype == np.int32:
        return Piece(column.values, None, column.categories)
    return Piece(column.values, None if column.present.all() else column.present)
