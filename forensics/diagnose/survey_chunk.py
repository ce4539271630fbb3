"""Runs that are judged in one go by a worker, whatever engine hands them to it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from forensics.diagnose.survey import Choice, SurveyRow, unreadable

MOST = 32
"""Runs in a chunk: handing one over costs about as much as judging half a small run."""
_SHARES = 8
"""Chunks a worker gets, so that a slow one leaves its share to the others."""
DIED = "the process that read it died; it may need more memory than there is"

Judge = Callable[[str, Choice], SurveyRow]


def chunks_of(paths: Sequence[str], workers: int) -> Iterator[tuple[str, ...]]:
    """The runs in chunks, in order; small enough that all workers end at about the same time."""
    size = max(1, min(MOST, len(paths) // (max(workers, 1) * _SHARES)))
    for start in range(0, len(paths), size):
        yield tuple(paths[start : start + size])


def judge_chunk(
    judge: Judge, paths: Sequence[str], choice: Choice, limit: float = 0.0
) -> list[SurveyRow]:
    """One row a run. A run that trips a bug of ours hides no other.

    Args:
        judge: makes the row of a run.
        paths: the runs.
        choice: rules and thresholds.
        limit: seconds a run may take; beyond that this process is ended by a signal, which alone
            gets through to a reader that hangs. 0: any.
    """
    rows = []
    for path in paths:
        with _ended_after(limit):
            try:
                rows.append(judge(path, choice))
            except Exception as error:  # noqa: BLE001 - see above
                rows.append(unreadable(path, f"internal error: {type(error).__name__}: {error}"))
    return rows


@contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    main = threading.current_thread() is threading.main_thread()  # no other may set a timer
    if not seconds or not main or not hasattr(signal, "setitimer"):
        yield
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
