"""Writing ``steps.csv``: a row a step, on its way to the disk before the next step begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from forensics.errors import UsageError
from forensics.runlog.schema import Kind, spec_of

_LINE_BREAKS = str.maketrans({"\n": " ", "\r": " ", "\0": None})
_TAIL = 1 << 16


class StepWriter:
    """Appends rows to a step log, one line each, handed to the operating system at once.

    A line is written by one ``write`` call and always ends with a newline, so a reader knows a
    torn line by its missing newline. Floats are written by ``repr`` and come back bit for bit;
    an absent value is an empty cell.

    Args:
        path: the file.
        columns: names of all columns in order.
        append: continue an existing file; a torn last line is cut off first. Otherwise the
            file is begun anew.

    Raises:
        UsageError: the file to continue has other columns.
        OSError: the file cannot be opened, read or written.
    """

    def __init__(
        self, path: str | os.PathLike[str], columns: Sequence[str], *, append: bool = False
    ) -> None:
        self.path = Path(path)
        self.columns = tuple(columns)
        if not self.columns or len(set(self.columns)) != len(self.columns):
            raise ValueError(f"columns must be unique and at least one, not {self.columns}")
        self._known = frozenset(self.columns)
        self._formats = tuple((name, format_of(name)) for name in self.columns)
        self._torn = False
        self._file = self.path.open("r+b" if append and self.path.exists() else "wb", buffering=0)
        try:
            self._size = self._mend() if append else 0
            self._file.seek(self._size)
            if self._size == 0:
                self._append(",".join(map(quoted, self.columns)))
        except BaseException:
            self._file.close()
            raise

    def write(self, row: Mapping[str, object]) -> None:
        """Append one row.

        Args:
            row: values by column name; a missing one or None becomes an empty cell.

        Raises:
            ValueError: the row names a column the file has not, or a value has no such form.
            OSError: the row could not be written (such as a full disk). The file is as it was
                before, or is mended before the next row: that one starts on a line of its own.
        """
        if not row.keys() <= self._known:
            raise ValueError(f"no column {sorted(row.keys() - self._known)} in {self.path}")
        get = row.get
        self._append(
            ",".join(
                [
                    "" if (value := get(name)) is None else text_of(value)
                    for name, text_of in self._formats
                ]
            )
        )

    def sync(self) -> None:
        """Wait until every row is on the disk itself; raises OSError."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; safe to call twice. Raises OSError where the last sync fails."""
        if self._file.closed:
            return
        try:
            self.sync()
        finally:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _append(self, line: str) -> None:
        """Write one line, or nothing of it."""
        if self._torn:
            self._cut_back()
        data = memoryview(line.encode("utf-8", errors="replace") + b"\n")
        written = 0
        self._torn = True
        try:
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError:
            with suppress(OSError):
                self._cut_back()
            raise
        self._torn = False
        self._size += written

    def _cut_back(self) -> None:
        """Remove what a failed write has left behind the last good line."""
        self._file.truncate(self._size)
        self._file.seek(self._size)
        self._torn = False

    def _mend(self) -> int:
        """Cut a torn last line (or a NUL tail) off and compare the header; the size kept."""
        end = self._file.seek(0, os.SEEK_END)
        kept = end
        while kept > 0:
            start = max(0, kept - _TAIL)
            self._file.seek(start)
            newline = _read(self._file.fileno(), kept - start).rfind(b"\n")
            if newline >= 0:
                kept = start + newline + 1
                break
            kept = start
        if kept > 0:
            self._compare_header()
        if kept < end:
            self._file.truncate(kept)
        return kept

    def _compare_header(self) -> None:
        self._file.seek(0)
        expected = ",".join(map(quoted, self.columns)).encode() + b"\n"
        found = _read(self._file.fileno(), len(expected))
        if found != expected:
            raise UsageError(
                "has other columns than this recording",
                where=self.path,
                hint="resume with the same settings of the log, or record into another directory",
            )


def format_of(name: str) -> Callable[[object], str]:
    """How cells of a column are written: by the schema, for foreign columns by the value."""
    spec = spec_of(name)
    return _FORMATS[spec.kind] if spec is not None else _foreign_text


def quoted(text: str) -> str:
    """A text cell: line breaks become spaces, and quotes are put where CSV needs them."""
    flat = text.translate(_LINE_BREAKS)
    if not flat or not ("," in flat or '"' in flat or ";" in flat or flat != flat.strip()):
        return flat
    return '"' + flat.replace('"', '""') + '"'


def _float_text(value: object) -> str:
    return repr(float(value))  # type: ignore[arg-type]


def _int_text(value: object) -> str:
    return repr(int(value))  # type: ignore[call-overload]


def _flag_text(value: object) -> str:
    return "1" if value else "0"


def _plain_text(value: object) -> str:
    return quoted(str(value))


def _foreign_text(value: object) -> str:
    return _plain_text(value) if isinstance(value, str) else _float_text(value)


_FORMATS: dict[Kind, Callable[[object], str]] = {
    Kind.INT: _int_text,
    Kind.FLOAT: _float_text,
    Kind.FLAG: _flag_text,
    Kind.TEXT: _plain_text,
}


def _read(descriptor: int, size: int) -> bytes:
    """Exactly ``size`` bytes from the current place, fewer only at the end of the file."""
    parts: list[bytes] = []
    while size > 0 and (part := os.read(descriptor, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
