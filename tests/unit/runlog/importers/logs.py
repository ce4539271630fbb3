"""Small logs on disk, and how the importers' tests read them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from forensics.runlog.reading import Reading
from forensics.runlog.run import load_run
from forensics.runlog.steps import StepTable


def read(folder: Path, text: str | bytes, name: str = "it.log", **options: object) -> StepTable:
    """Write a log and read it, whatever it is."""
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_run(path, Reading(**options)).steps  # type: ignore[arg-type]


def column(table: StepTable, name: str) -> list[float | None]:
    """A column with None where nothing was written."""
    return [
        float(value) if there else None
        for value, there in zip(table[name], table.present(name), strict=True)
    ]


def same(found: Sequence[float | None], expected: Sequence[float | None]) -> bool:
    """Equal, NaN to NaN and None to None."""
    return len(found) == len(expected) and all(
        (a is None and b is None)
        or (a is not None and b is not None and np.isclose(a, b, rtol=1e-12, equal_nan=True))
        for a, b in zip(found, expected, strict=True)
    )
