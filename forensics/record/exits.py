"""Closing a recording that nobody has closed: no ``with``, or a trainer that said no word."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
import weakref
from typing import TYPE_CHECKING

from forensics.runlog.manifest import Ended

if TYPE_CHECKING:
    from forensics.record.recorder import Recorder

_open: weakref.WeakSet[Recorder] = weakref.WeakSet()
_newest: list[Recorder] = []
"""At most one: a script's recorder is often gone with the function that made it. Earlier ones that
were left open are not kept: they hold their models."""


def close_at_exit(recorder: Recorder) -> None:
    """Close it when Python exits, if nobody has by then: with the error that ended the script."""
    _open.add(recorder)
    _newest[:] = [recorder]
    atexit.unregister(_close_open)
    atexit.register(_close_open, os.getpid())


def forget(recorder: Recorder) -> None:
    """It is closed."""
    _open.discard(recorder)
    if _newest and _newest[0] is recorder:
        _newest.clear()


def close_after(recorder: Recorder, error: BaseException | None) -> None:
    """Close it as its ``with`` block would: finished, or ended by this error."""
    recorder.__exit__(None if error is None else type(error), error, None)


def _close_open(pid: int) -> None:
    """In the process that opened them, not in a fork of it.

    A session at a prompt, and a process that ``multiprocessing`` has started, tell nobody whether
    an error has ended the training: there the run's end stays unknown.
    """
    if os.getpid() != pid:
        return
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    prompt = hasattr(sys, "ps1")
    if prompt or (error is None and multiprocessing.parent_process() is not None):
        return
    for recorder in list(_open):
        if error is not None:
            close_after(recorder, error)
        else:  # no last state is saved: other ranks that must help with it may be gone
            last = recorder.next_step - 1
            recorder.close(Ended("finished", last if last >= 0 else None))
