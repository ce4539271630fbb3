"""A block of JSON lines as columns, without a Python object a record.

Records of numbers that are written alike are turned into CSV by taking their keys away, which reads
short ones four times as fast as a parser of JSON does; pyarrow's reads the others.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa

from forensics.runlog.csv_reader.fast import Piece, parse_fast, piece_of_array
from forensics.runlog.csv_reader.header import Layout
from forensics.runlog.scanner.numbers import number
from forensics.runlog.schema import Kind

_CELL = re.compile(rb'([{,] ?"[^"\\;]*" ?: ?)("[^"\\;]*"|[^\s,;{}"\[\]]+)')
_DELIMITER = b";"
_MARKS = bytes(set(range(1, 32)) - {*b"\t\n\v\f\r"})
"""What stands for the keys until their order is known to be that of the first record."""
_NO_JSON = (b"nan", b"inf", b"NA", b"None", b";;")
"""What a CSV may hold where a number is, and JSON may not."""


def json_columns(block: bytes) -> dict[str, Piece | None] | None:
    """The numbers of each key, in the order in which the keys are first met.

    Args:
        block: whole lines, an object each.

    Returns:
        None for a key that holds no number (texts, lists); None for all of it where a line is not
        one object, or a value is one that Python reads in another way: a number as text among
        others that are none, a flag, a nested object.
    """
    rows = block.count(b"\n")
    ends = block.startswith(b"{") and block.endswith(b"}\n")
    if not ends or block.count(b"\n{") != rows - 1 or block.count(b"}\n") != rows:
        return None
    return _alike(block, rows) or _any(block, rows)


def _alike(block: bytes, rows: int) -> dict[str, Piece | None] | None:
    """Records whose keys are written as in the first one, numbers all."""
    line = block[: block.index(b"\n")]
    cells = _CELL.findall(line)
    if not cells or b"".join(before + cell for before, cell in cells) + b"}" != line:
        return None
    names = [json.loads(before.lstrip(b"{, ").rstrip(b" :")) for before, _ in cells]
    kinds = [_kind(cell) for _, cell in cells]
    if len(set(names)) < len(names) or None in kinds:
        return None
    text = _as_csv(block, [before for before, _ in cells], rows)
    if text is None or any(word in text for word in _NO_JSON):
        return None
    known = tuple(kind for kind in kinds if kind is not None)
    pieces = parse_fast(text, Layout(tuple(names), known, tuple(names), _DELIMITER.decode()))
    if pieces is None or len(pieces) != 1 or len(pieces[0][names[0]].values) != rows:
        return None
    return dict(pieces[0])


def _as_csv(block: bytes, keys: list[bytes], rows: int) -> bytes | None:
    """The values alone; None where the keys of some record are others, or in another order."""
    marks = _MARKS[: len(keys)]
    if len(marks) < len(keys):
        return None
    text = block.replace(b"}\n", b"\n")
    for key, mark in zip(keys, marks, strict=True):
        text = text.replace(key, bytes([mark]))
    others = bytes(set(range(256)) - {*marks, *b"\n"})
    if text.translate(None, others) != (marks + b"\n") * rows:
        return None
    return text.translate(bytes.maketrans(marks, _DELIMITER * len(marks)), marks[:1])


def _kind(cell: bytes) -> Kind | None:
    """What a column is, by its first cell: counts, or numbers; None for anything else."""
    try:
        value = json.loads(cell)
    except ValueError:
        return None
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return Kind.INT
    return Kind.FLOAT if isinstance(value, float) else None


def _any(block: bytes, rows: int) -> dict[str, Piece | None] | None:
    table = _parsed(block)
    if table is None or table.num_rows != rows:
        return None
    columns: dict[str, Piece | None] = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if column.num_chunks != 1 or not _is_plain(column.chunk(0)):
            return None
        columns[name] = _numbers(column.chunk(0))
    return columns


def _parsed(block: bytes) -> pa.Table | None:
    from pyarrow import json as arrow_json

    options = arrow_json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        return arrow_json.read_json(pa.BufferReader(block), read_options=options)
    except (pa.ArrowException, UnicodeDecodeError):
        return None


def _is_plain(array: pa.Array) -> bool:
    """Does every value mean to pyarrow what it means to Python?"""
    if pa.types.is_string(array.type):
        return all(text is None or number(text) is None for text in set(array.to_pylist()))
    return not (pa.types.is_boolean(array.type) or pa.types.is_struct(array.type))


def _numbers(array: pa.Array) -> Piece | None:
    if pa.types.is_int64(array.type):
        return piece_of_array(array, Kind.INT)
    return piece_of_array(array, Kind.FLOAT) if pa.types.is_float64(array.type) else None
