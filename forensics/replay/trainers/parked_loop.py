"""A loop of somebody else's, run in a thread of its own and stopped wherever we want to look.

A trainer's loop calls us and not we it. So it runs in a thread that is parked at each optimizer
step, with all its frames alive, while the replay computes the step; then it is let on to the next
one. Only one of the two threads ever runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from forensics.errors import NoBatchError

_CLOSING = 5.0
"""Seconds to wait for the loop's own clean-up."""


class LoopEndedError(NoBatchError):
    """The loop is through: it has no further step."""


class _Abandoned(BaseException):
    """Unwinds a parked loop; no ``except Exception`` of the trainer's may keep it."""


class ParkedLoop:
    """Runs ``loop`` up to where it parks, again and again.

    Args:
        loop: calls ``park`` in every step.
    """

    def __init__(self, loop: Callable[[], Any]) -> None:
        self._go, self._parked = threading.Event(), threading.Event()
        self._item: Any = None
        self._ended = self._abandoned = False
        self._error: BaseException | None = None
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name="trainer", daemon=True)

    def advance(self) -> Any:
        """Let the loop run to where it parks next; returns what it hands over there.

        Raises:
            LoopEndedError: it ended instead.
            Exception: what it raised.
        """
        if self._ended:
            raise self._error or LoopEndedError(
                "the trainer makes no further step", where="the trainer's loop"
            )
        if self._thread.ident is None:
            self._thread.start()
        self._go.set()
        self._parked.wait()
        self._parked.clear()
        return self.advance() if self._ended else self._item

    def park(self, item: Any) -> None:
        """Called by the loop: hand this over and wait to be let on."""
        self._item = item
        self._parked.set()
        self._go.wait()
        self._go.clear()
        if self._abandoned:
            raise _Abandoned

    def abandon(self) -> None:
        """Let the loop unwind; it is not waited for."""
        self._abandoned = True
        self._go.set()

    def close(self) -> None:
        """Let the loop unwind, and wait until it has."""
        self.abandon()
        if self._thread.ident is not None:
            self._thread.join(_CLOSING)

    def _run(self) -> None:
        self._go.wait()
        self._go.clear()
        try:
            if not self._abandoned:
                self._loop()
        except _Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - raised again where the loop was let on
            self._error = error
        self._ended = True
        self._item, self._loop = None, lambda: None
        self._parked.set()
