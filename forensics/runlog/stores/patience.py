"""A word where a store lets somebody wait: silence looks like a program that hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from forensics.errors import without_secrets

PATIENCE_S = 20.0
"""Seconds until the word; a store that works answers within one."""
_LOOKS = 8
"""Looks within that time."""


class Patience:
    """Watches requests, and says once in a process that one takes long.

    One thread looks at all of them while there are any: one for each would cost a scan of many
    small runs a tenth of its time.
    """

    def __init__(self, seconds: float = PATIENCE_S) -> None:
        self._seconds = seconds
        self._since: dict[int, tuple[str, float]] = {}
        self._lock = threading.Lock()
        self._watched = self._said = False
        self._next = 0

    @contextmanager
    def asked(self, where: str) -> Iterator[None]:
        """Within it somebody waits for a store, or reads what comes of it."""
        with self._lock:
            self._next += 1
            number = self._next
            self._since[number] = (where, time.monotonic())
            begin = not self._watched and not self._said
            self._watched = self._watched or begin
        if begin:
            threading.Thread(target=self._watch, daemon=True).start()
        try:
            yield
        finally:
            del self._since[number]

    def waits(self) -> bool:
        """Does a request go on?"""
        return bool(self._since)

    def _watch(self) -> None:
        idle = False
        while True:
            time.sleep(self._seconds / _LOOKS)
            now = time.monotonic()
            with self._lock:
                late = [where for where, at in self._since.values() if now - at >= self._seconds]
                if late or (idle and not self._since):
                    self._watched, self._said = False, bool(late)
                    break
                idle = not self._since
        if late:
            _say(late[0], self._seconds)


def _say(where: str, seconds: float) -> None:
    import logging  # for those who embed this; without a handler it goes to standard error

    text = f"forensics: {without_secrets(where)}: no end of reading after {seconds:g} s"
    shown = text if text.isprintable() else text.encode("unicode_escape").decode()
    logging.getLogger("forensics.stores").warning("%s; Ctrl-C ends it", shown)


PATIENCE = Patience()
