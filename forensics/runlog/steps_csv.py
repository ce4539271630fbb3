"""The step log on disk, both ways: ``read_steps`` and ``StepWriter``."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

from forensics.errors import InputError
from forensics.runlog.schema import Kind, spec_of
from forensics.runlog.step_writer import StepWriter
from forensics.runlog.steps import StepTable

__all__ = ["StepWriter", "read_steps"]


def read_steps(path: str | os.PathLike[str]) -> StepTable:
    """Read a step log."""
    source = Path(path)
    try:
        rows = list(csv.reader(source.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise InputError(error.strerror or str(error), where=source) from error
    if len(rows) < 2:
        raise InputError("has no rows", where=source)
    arrays, masks = {}, {}
    for index, name in enumerate(rows[0]):
        cells = [row[index] for row in rows[1:]]
        masks[name] = np.array([cell != "" for cell in cells])
        spec = spec_of(name)
        if spec is not None and spec.kind is Kind.TEXT:
            arrays[name] = np.array(cells)
        else:
            arrays[name] = np.array([float(cell or "nan") for cell in cells])
            if spec is not None and spec.kind is not Kind.FLOAT:
                arrays[name] = np.where(masks[name], arrays[name], 0)
    return StepTable.from_arrays(arrays, masks)
