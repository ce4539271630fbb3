"""How a log is opened: where it lies, or only parts of it, as of a log that is being written.

The file is read where it lies, as a copy of a log of some gigabytes would fill a disk or, where
temporary files lie in memory, that.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

Span = tuple[int, int]
"""First byte, and the one after the last."""

_ONLY: dict[str, tuple[Span, ...]] = {}
Opener = Callable[[bool], BinaryIO]
"""Opens what a file stands for; told whether it is read from the beginning to the end."""
_ELSEWHERE: dict[str, Opener] = {}


@contextmanager
def reading_only(path: Path, spans: Sequence[Span]) -> Iterator[None]:
    """Within it, ``opened`` and ``size_of`` know only these parts of a file, in this order."""
    key = os.path.abspath(path)
    _ONLY[key] = tuple(spans)
    try:
        yield
    finally:
        del _ONLY[key]


def lies_elsewhere(path: Path, opener: Opener) -> None:
    """From now on a file, which is there, only stands for one whose contents lie elsewhere."""
    _ELSEWHERE[str(path)] = opener


def forget_elsewhere(path: Path) -> None:
    """From now on it is itself again."""
    _ELSEWHERE.pop(str(path), None)


def arrow_source(path: Path) -> Path | BinaryIO:
    """What Arrow is to read a file of columns from, a part here and a part there."""
    opener = _ELSEWHERE.get(str(path)) if _ELSEWHERE else None
    return path if opener is None else opener(False)


def on_disk(path: Path) -> Path:
    """The file with its contents, for a library that opens it by its name."""
    opener = _ELSEWHERE.get(str(path)) if _ELSEWHERE else None
    if opener is not None:
        with opener(True) as source, path.open("wb") as copy:
            shutil.copyfileobj(source, copy)
        forget_elsewhere(path)
    return path


def opened(path: Path) -> BinaryIO:
    """The file, or the parts of it that are to be read, opened for reading."""
    opener = _ELSEWHERE.get(str(path)) if _ELSEWHERE else None
    file = path.open("rb") if opener is None else opener(True)
    spans = _ONLY.get(os.path.abspath(path)) if _ONLY else None
    return file if spans is None else cast(BinaryIO, _Parts(file, spans))


def size_of(path: Path) -> int:
    """Bytes of a file on disk, or of the parts that are to be read; 0 where it cannot be told."""
    spans = _ONLY.get(os.path.abspath(path)) if _ONLY else None
    if spans is not None:
        return sum(stop - start for start, stop in spans)
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Parts(io.RawIOBase):
    """The bytes of some parts of a file, one after the other."""

    def __init__(self, file: BinaryIO, spans: Sequence[Span]) -> None:
        self._file = file
        self._left = list(spans)

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill the buffer as far as the current part goes; 0 at the end of the last."""
        while self._left:
            start, stop = self._left[0]
            chunk = os.pread(self._file.fileno(), min(stop - start, len(buffer)), start)
            if chunk:
                self._left[0] = (start + len(chunk), stop)
                buffer[: len(chunk)] = chunk
                return len(chunk)
            del self._left[0]  # read, or the file was cut meanwhile
        return 0

    def close(self) -> None:
        """Close the file, too."""
        self._file.close()
        super().close()
