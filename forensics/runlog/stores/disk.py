"""Room on this machine for what is read elsewhere."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from forensics.errors import StoreError

_FOLDERS: set[Path] = set()
_HINT = "make room there, or set TMPDIR to another folder"


def folder() -> Path:
    """A new folder for temporary files.

    Raises:
        StoreError: none can be made.
    """
    try:
        made = Path(tempfile.mkdtemp(prefix="forensics-")).absolute()
    except OSError as error:
        raise StoreError(f"no temporary folder can be made ({_why(error)})", hint=_HINT) from error
    _FOLDERS.add(made)
    return made


def remove(made: Path) -> None:
    """Remove one of them with what is in it."""
    shutil.rmtree(made, ignore_errors=True)
    _FOLDERS.discard(made)


def clear() -> None:
    """Remove all that are left."""
    for made in tuple(_FOLDERS):
        remove(made)


@contextmanager
def keeping(path: Path) -> Iterator[Callable[[bytes], object]]:
    """A function that adds bytes to a file, which is emptied first.

    What goes wrong with the file is told as such, not as a failure of whoever gives the bytes.

    Raises:
        StoreError: it cannot be written.
    """

    def keep(data: bytes) -> None:
        with _told():
            file.write(data)

    with _told():
        file = path.open("wb")
    try:
        yield keep
    finally:
        with _told():
            file.close()


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise full(error) from error


def full(error: OSError) -> StoreError:
    """What is said of a file here that cannot be written."""
    what = f"what is read cannot be kept ({_why(error)})"
    return StoreError(what, where=tempfile.gettempdir(), hint=_HINT)


def _why(error: OSError) -> str:
    return error.strerror or str(error)
