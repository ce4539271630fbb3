"""Closing a recording whose trainer died without a word to its callbacks."""

from __future__ import annotations

import atexit
import sys
import weakref

from forensics.record.recorder import Recorder


def close_at_exit(recorder: Recorder) -> None:
    """Close it when Python exits, if nobody has by then: with the error that ended the script."""
    held = weakref.ref(recorder)

    def close() -> None:
        left = held()
        if left is not None:
            error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
            close_after(left, error)  # does nothing where it is closed

    atexit.register(close)
    weakref.finalize(recorder, atexit.unregister, close)


def close_after(recorder: Recorder, error: BaseException | None) -> None:
    """Close it as its ``with`` block would: finished, or ended by this error."""
    recorder.__exit__(None if error is None else type(error), error, None)
