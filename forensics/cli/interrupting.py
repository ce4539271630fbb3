"""Ctrl-C or SIGTERM while a store is silent: Python hears of it only when Arrow returns."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress

from forensics.errors import ExitCode

GRACE_S = 2.0
"""Seconds in which whoever can hear of it has ended in order."""
_ENDS: dict[int, tuple[ExitCode, str]] = {
    signal.SIGINT: (ExitCode.INTERRUPTED, "interrupted"),
    signal.SIGTERM: (ExitCode.TERMINATED, "terminated"),
}


def end_in_time() -> None:
    """From now on these end this process soon, though it waits for a store in Arrow's code.

    Only then: whoever is not waiting for one ends by himself, and saves what there is to save.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        return
    heard, told = os.pipe()
    os.set_blocking(told, False)
    before = signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    if before != -1:  # somebody else's, such as an event loop's: it is left alone
        signal.set_wakeup_fd(before)
        os.close(heard)
        os.close(told)
        return
    threading.Thread(target=_listen, args=(heard,), daemon=True).start()


def _listen(heard: int) -> None:
    while number := os.read(heard, 1):
        if (end := _ENDS.get(number[0])) is not None:
            time.sleep(GRACE_S)
            _end_if_stuck(*end)


def _end_if_stuck(code: ExitCode, word: str) -> None:
    """End here and now where a request still goes on: exit handlers would wait for it, too."""
    from forensics.cli.streams import say
    from forensics.runlog.stores import disk
    from forensics.runlog.stores.patience import PATIENCE

    if PATIENCE.waits():
        with suppress(Exception):
            disk.clear()
            say(word)
        os._exit(code)
