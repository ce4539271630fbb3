"""Small step logs to read, and tables to compare."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import read_steps

HEADER = ",".join(CANONICAL_NAMES)


def row(step: object, loss: object = "2.5", rest: str = "0,,65536.0") -> str:
    """One canonical row."""
    return f"{step},0.001,1.5,1.0,{loss},{rest}"


def log(*lines: str) -> str:
    """A canonical log of these lines, each ended."""
    return "".join(f"{line}\n" for line in (HEADER, *lines))


def read(folder: Path, data: str | bytes, name: str = "steps.csv") -> StepTable:
    """Write a file and read it as a step log."""
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_steps(path)


def kinds(table: StepTable) -> list[str]:
    """The kinds of repairs, in the order met."""
    return [repair.kind for repair in table.repairs]


def bits(values: np.ndarray) -> list[int]:
    """Floats as their bits, so that -0.0 and NaN compare (a NaN's payload has no text form)."""
    floats = np.asarray(values, dtype=np.float64)
    return np.where(np.isnan(floats), np.nan, floats).view(np.uint64).tolist()


def assert_same(one: StepTable, other: StepTable, rows: int | None = None) -> None:
    """The same columns, values bit for bit and masks, in the first rows (default: all)."""
    assert list(one) == list(other)
    size = len(other) if rows is None else rows
    assert rows is not None or len(one) == len(other)
    for name in other:
        left, right = one.columns[name].take(slice(size)), other.columns[name].take(slice(size))
        assert left.present.tolist() == right.present.tolist(), name
        if right.categories:
            assert left.texts().tolist() == right.texts().tolist(), name
        elif right.values.dtype.kind == "f":
            shown = right.present
            assert bits(left.values[shown]) == bits(right.values[shown]), name
            assert np.isnan(left.values[~shown]).all()
        else:
            assert left.values.tolist() == right.values.tolist(), name
            assert left.values.dtype == right.values.dtype
