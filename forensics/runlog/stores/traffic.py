"""How much was read from elsewhere: people pay by the byte and by the request."""

from __future__ import annotations

import threading


class Traffic:
    """Requests and bytes of this process.

    Attributes:
        requests: lists, looks at one object, and parts of objects.
        received: bytes of objects.
    """

    def __init__(self) -> None:
        self.requests = self.received = 0
        self._lock = threading.Lock()

    def count(self, received: int = 0) -> None:
        """Note a request that gave so many bytes of an object."""
        with self._lock:
            self.requests += 1
            self.received += received

    def forget(self) -> None:
        """Count from here on."""
        with self._lock:
            self.requests = self.received = 0

    def told(self) -> str:
        """``read 1.2 MB in 9 requests``."""
        size = self.received
        shown = f"{size:,} bytes" if size < 1_000_000 else f"{size / 1e6:,.1f} MB"
        return f"read {shown} in {self.requests:,} request{'s' * (self.requests != 1)}"


TRAFFIC = Traffic()
