"""While a file is read for its recipe it is not the script that trains: it must not act as one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forensics.errors import UsageError

_read: list[Path] = []
"""The files that are being read, the innermost last."""


@contextmanager
def being_read(path: Path) -> Iterator[None]:
    """The arguments of the process are ours, not the file's: ``sys.argv`` is the file alone."""
    arguments, sys.argv = sys.argv, [str(path)]
    _read.append(path)
    try:
        yield
    finally:
        _read.pop()
        sys.argv = arguments


def refuse_while_read() -> None:
    """Call where a recording begins.

    Raises:
        UsageError: a file that is read for its recipe begins it. Its training would run anew, and
            write into whatever folder it finds in the arguments of another command.
    """
    if _read:
        raise UsageError(
            "trains while it is being read for its recipe",
            where=_read[-1],
            hint="put what trains under if __name__ == '__main__':",
        )
