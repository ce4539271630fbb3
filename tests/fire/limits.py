"""What a reader may take of a file that means harm: seconds of work and a gigabyte."""

from __future__ import annotations

import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORK_S = 20
"""Seconds of processor time: a busy machine is no failure, a pattern that tries every split is."""
WAIT_S = 300
"""Seconds on the clock: for a wait that would never end."""
HEADROOM = 1 << 30
"""Bytes of address space beyond what is in use."""


@contextmanager
def limited() -> Iterator[None]:
    """Raise TimeoutError for a hang, also within a pattern, and MemoryError for a gigabyte."""

    def late(*_: object) -> None:
        raise TimeoutError("a hang")

    before = {number: signal.signal(number, late) for number in (signal.SIGPROF, signal.SIGALRM)}
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if sys.platform == "linux":  # elsewhere nothing enforces it
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, hard))
    signal.setitimer(signal.ITIMER_PROF, WORK_S)
    signal.alarm(WAIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for number, handler in before.items():
            signal.signal(number, handler)
