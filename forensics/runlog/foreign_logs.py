"""Logs that other programs wrote: one file, several of one run, or standard input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from forensics.errors import InputError
from forensics.runlog.importers.detect import import_logs
from forensics.runlog.importers.refusals import is_binary, unknown
from forensics.runlog.importers.several_files import import_several
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.named_csv import header_of
from forensics.runlog.scanner.names import canonical_name
from forensics.runlog.scanner.numbers import number
from forensics.runlog.scanner.source import STDIN, head_of, spooled
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import read_steps


def read_foreign(sources: Sequence[Path], reading: Reading) -> StepTable:
    """Read a log, or several files of one run joined, whatever wrote them.

    Args:
        sources: files, oldest first; ``-`` is standard input.
        reading: what the user says of format and columns.

    Raises:
        InputError: a file cannot be read, or is no training log.
        UsageError: a format or column that is not there.
    """
    first = sources[0]
    with ExitStack() as stack:
        files = [stack.enter_context(spooled(source)) for source in sources]
        try:
            return _read(files, reading)
        except InputError as error:
            if files[0] != first and error.where == str(files[0]):
                raise InputError(error.what, where=_named(first), hint=error.hint) from error
            raise


def _named(source: Path) -> object:
    return "standard input" if str(source) == STDIN else source


def _read(files: Sequence[Path], reading: Reading) -> StepTable:
    several = len(files) > 1
    table = import_several(files, reading) if several else import_logs(files, reading)
    if table is not None:
        return table
    head = head_of(files[0])
    if head.lines and (is_binary(head.raw) or not (header_of(head) or _is_table(head))):
        raise unknown(files[0], head)
    return read_steps(files[0], reading.progress)  # which says what it is, or is not


def _is_table(head: Head) -> bool:
    """Is it a CSV whose rows are odd, of one column, or one that has lost its header?"""
    cells = [cell.strip() for cell in re.split(rb"[,;\t]", head.first_line)]
    if any(canonical_name(cell.decode("utf-8", "replace")) is not None for cell in cells):
        return True
    return len(cells) > 1 and all(number(cell) is not None for cell in cells)
