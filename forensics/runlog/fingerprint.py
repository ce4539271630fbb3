"""Has a run changed since it was last looked at? Told by its files' sizes and times alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from hashlib import blake2b

from forensics.runlog.lock import LOCK_NAME
from forensics.runlog.manifest import MANIFEST_NAME
from forensics.runlog.run import STEP_LOGS


def fingerprint(path: str) -> str:
    """A digest of name, size and time of change (ns) of a run's parts; no file is opened.

    Args:
        path: a run directory, a directory of logs, or a log.

    Returns:
        32 hexadecimal digits; empty where nothing can be said for sure: the path cannot be
        listed, or a process holds the run, whose end no file would tell.
    """
    digest = blake2b(digest_size=16)
    try:
        for name, status in sorted(_parts(path)):
            digest.update(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n".encode(*_ANY_NAME))
    except (OSError, ValueError, _HeldError):
        return ""
    return digest.hexdigest()


_ANY_NAME = ("utf-8", "surrogateescape")


class _HeldError(Exception):
    """The run is being recorded."""


def _parts(path: str) -> Iterator[tuple[str, os.stat_result]]:
    if os.path.basename(path) in (*STEP_LOGS, MANIFEST_NAME):  # names its whole run
        path = os.path.dirname(path) or "."
    if not os.path.isdir(path):
        yield "", os.stat(path)
        return

    def fail(error: OSError) -> None:
        raise error

    for directory, _, files in os.walk(path, onerror=fail):
        if LOCK_NAME in files:
            raise _HeldError
        for name in files:
            whole = os.path.join(directory, name)
            yield os.path.relpath(whole, path), os.stat(whole)
