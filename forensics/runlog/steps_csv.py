"""The step log on disk, both ways: ``read_steps`` and ``StepWriter``."""

from __future__ import annotations

import codecs
import os
import zlib
from collections.abc import Callable
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.csv_reader.spans import opened
from forensics.runlog.csv_reader.table import read_table
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.step_writer import StepWriter
from forensics.runlog.steps import StepTable

__all__ = ["StepWriter", "is_own_log", "read_steps"]

_PEEK = 1 << 16
_GZIP = b"\x1f\x8b"
_OWN = ",".join(CANONICAL_NAMES).encode()


def is_own_log(path: Path) -> bool:
    """Is it a step log in our own columns, or empty? A look at its beginning, no more.

    A pipe is not looked into: what is taken out of it is gone.
    """
    try:
        if not path.is_file():
            return False
        with opened(path) as file:
            start = file.read(_PEEK)
    except OSError:
        return True  # whose reader says what is wrong with it
    if start.startswith(_GZIP):
        try:
            start = zlib.decompressobj(wbits=31).decompress(start, _PEEK)
        except zlib.error:
            return True
    lines = start.removeprefix(codecs.BOM_UTF8).lstrip().split(b"\n")
    header = next((line for line in lines if not line.startswith(b"#") and line.strip()), b"")
    return not start or header.startswith(_OWN)


def read_steps(
    path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None
) -> StepTable:
    """Read a step log: ours, or any CSV with columns of a training log.

    Clean stretches are read by typed pyarrow.csv, the others line by line. Whatever is mended is
    noted in ``repairs``, one a kind with its count; nothing is lost unseen. A file that is being
    written gives the rows that are whole.

    Args:
        path: the file; may be gzip-compressed, whatever its name.
        progress: told the bytes read so far, and of how many.

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
    return read_table(source, progress=progress)
