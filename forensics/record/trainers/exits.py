"""Closing a recording whose trainer died without a word to its callbacks."""

from __future__ import annotations

import atexit
import sys
import weakref

from forensics.record.recorder import Recorder
from forensics.runlog.manifest import Ended


def close_at_exit(recorder: Recorder) -> None:
    """Close it when Python exits, if nobody has by then: with the error that ended the script."""
    held = weakref.ref(recorder)

    def close() -> None:
        left = held()
        if left is not None:
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            left.close(how_it_ended(error, left.next_step))  # does nothing where it is closed

    atexit.register(close)
    weakref.finalize(recorder, atexit.unregister, close)


def how_it_ended(error: BaseException | None, step: int) -> Ended | None:
    """What to write of a training that this error ended; None where there was none."""
    if error is None:
        return None
    if isinstance(error, KeyboardInterrupt):
        return Ended("interrupted", step)
    return Ended("exception", step, f"{type(error).__name__}: {error}")
