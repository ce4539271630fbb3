"""The step log on disk, both ways: ``read_steps`` and ``StepWriter``."""

from __future__ import annotations

import os
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.csv_reader.table import read_table
from forensics.runlog.step_writer import StepWriter
from forensics.runlog.steps import StepTable

__all__ = ["StepWriter", "read_steps"]


def read_steps(path: str | os.PathLike[str]) -> StepTable:
    """Read a step log: ours, or any CSV with columns of a training log.

    Clean stretches are read by typed pyarrow.csv, the others line by line. Whatever is mended is
    noted in ``repairs``, one a kind with its count; nothing is lost unseen. A file that is being
    written gives the rows that are whole.

    Args:
        path: the file; may be gzip-compressed, whatever its name.

    Returns:
        The rows in ascending order of step; where the file holds several runs the last one, and
        the others as ``earlier``.

    Raises:
        InputError: there is no such file, it is empty, has no rows, no CSV or no column of a
            training log.
    """
    source = Path(path)
    if source.is_dir():
        raise InputError("is a directory, not a step log", where=source)
    return read_table(source)
