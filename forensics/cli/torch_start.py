"""Importing torch, which takes seconds in which a signal may come."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from forensics.errors import ExitCode, MissingExtraError

_SAID = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_CODE = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}


def without_torch(doing: str) -> MissingExtraError:
    """The error of a verb that needs torch where there is none, and how it is installed.

    Args:
        doing: what the verb does: ``bisecting``.
    """
    return MissingExtraError(
        f"{doing} needs torch, which is not installed (reports need none)",
        hint="pip install -c constraints.txt '.[torch]' in the checkout of forensics",
    )


def import_torch() -> None:
    """Import torch before anything else of it; Ctrl-C and SIGTERM meanwhile end the process.

    Parts of torch are imported by its C++, which makes an abort with a dump of an exception that
    comes just then. Nothing is open yet that would have to be closed.
    """
    if "torch" not in sys.modules and threading.current_thread() is threading.main_thread():
        with _ended_at_once():
            import_module("torch")


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """A signal that would be an exception is said and ends the process; others stay as they are."""
    kept = {number: signal.getsignal(number) for number in _SAID}
    ours = {number: was for number, was in kept.items() if callable(was)}
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number, was in ours.items():
            signal.signal(number, was)


def _end(number: int, _: Any) -> None:
    os.write(2, f"forensics: {_SAID[signal.Signals(number)]}\n".encode())
    os._exit(_CODE[signal.Signals(number)])
