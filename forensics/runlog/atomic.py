"""Replacing a file whole: after a kill there is the old one or the new one, never a half."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_REPLACE_TRIES = 20
_REPLACE_WAIT_S = 0.05


def atomic_write(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write a file so that readers see the old contents or all of the new ones.

    Args:
        path: the file; its directory must exist.
        data: the contents; text is written as UTF-8 as it stands.

    Raises:
        OSError: it cannot be written; the old file is as it was and nothing else is left.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with replacing(path) as temporary:
        temporary.write_bytes(payload)


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Lend a temporary name beside ``path``; on success sync it and rename it to ``path``.

    The body writes the file itself (with whatever writer it likes). If the body raises, the
    temporary file is removed and ``path`` is as it was.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        _replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(target.parent)


def rewrite(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Write over an existing file where it lies, for a disk with no room for a second copy.

    The last resort: only a machine that goes down in the middle can tear the file.

    Raises:
        OSError: the new contents do not fit either; the old ones are put back.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with open(path, "r+b", buffering=0) as file:
        old = file.read()
        try:
            _write_over(file, payload)
        except OSError:
            _write_over(file, old)
            raise


def _write_over(file: io.FileIO, payload: bytes) -> None:
    file.seek(0)
    rest = memoryview(payload)
    while rest:
        rest = rest[file.write(rest) or 0 :]
    file.truncate()
    os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Push a file's contents to the disk."""
    # Windows syncs only what is open for writing.
    descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Push a directory's entries to the disk, where the platform can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(source: Path, target: Path) -> None:
    """``os.replace``; on Windows a reader may hold the target for a moment, so try again."""
    for _ in range(_REPLACE_TRIES if os.name == "nt" else 0):
        try:
            os.replace(source, target)
        except PermissionError:
            time.sleep(_REPLACE_WAIT_S)
        else:
            return
    os.replace(source, target)
