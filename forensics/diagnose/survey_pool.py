"""Judging many runs in several processes: one that dies is one row, and takes none along."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial

from forensics.diagnose.survey import Choice, SurveyRow, survey_one, unreadable
from forensics.diagnose.survey_chunk import DIED, Judge, chunks_of, judge_chunk

FEW = 64
"""Runs a process; starting one costs about as much as judging that many small runs."""
LIMIT = 600.0
"""Seconds that a run may take; the largest logs take a tenth of that."""
_AHEAD = 2
"""Chunks handed out for each process: one that it judges, and the next one."""

OnRow = Callable[[SurveyRow], None]
Chunk = tuple[str, ...]
Task = Callable[[Chunk], list[SurveyRow]]


def survey(
    paths: Sequence[str],
    choice: Choice,
    *,
    jobs: int | None = None,
    on_row: OnRow | None = None,
    judge: Judge = survey_one,
    limit: float = LIMIT,
) -> list[SurveyRow]:
    """One row a run, worst first.

    Args:
        paths: the runs, each once.
        choice: rules and thresholds.
        jobs: processes; 1 judges them here; None takes as many as pay, up to the processors.
        on_row: called with each row as it is finished.
        judge: makes the row of a run; a function that can be imported by name.
        limit: seconds a run may take in a process of its own.
    """
    told = on_row or (lambda row: None)
    count = jobs or min(os.cpu_count() or 1, -(-len(paths) // FEW))
    rows: list[SurveyRow] = []
    if count <= 1:
        for path in paths:
            rows += judge_chunk(judge, (path,), choice)
            told(rows[-1])
    else:
        for row in _in_parallel(paths, choice, min(count, len(paths)), judge, limit):
            rows.append(row)
            told(row)
    return sorted(rows, key=lambda row: row.order)


def _in_parallel(
    paths: Sequence[str], choice: Choice, jobs: int, judge: Judge, limit: float
) -> Iterator[SurveyRow]:
    """Rows as they come.

    A process that dies breaks its pool: what it may have been at is put aside, a fresh pool goes
    on with the others, and at the end one process takes what is aside.
    """
    task = partial(judge_chunk, judge, choice=choice, limit=limit)
    waiting, aside = deque(chunks_of(paths, jobs)), deque[str]()
    while waiting:
        with _pool(jobs) as pool, _ended_early():
            yield from _until_it_breaks(pool, task, waiting, aside, _AHEAD * jobs)
    while aside:
        with _pool(1) as pool, _ended_early():
            yield from _one_by_one(pool, task, aside, limit)


def _until_it_breaks(
    pool: ProcessPoolExecutor, task: Task, waiting: deque[Chunk], aside: deque[str], most: int
) -> Iterator[SurveyRow]:
    """Take chunks from ``waiting``; those that a broken pool may have been at go ``aside``."""
    given: dict[Future[list[SurveyRow]], Chunk] = {}
    try:
        while waiting or given:
            while waiting and len(given) < most:
                future = _handed(pool, task, waiting[0])
                given[future] = waiting.popleft()
            for future in wait(given, return_when=FIRST_COMPLETED).done:
                rows = future.result()
                del given[future]
                yield from rows
    except BrokenProcessPool:
        for future, chunk in given.items():
            if future.done() and not future.exception():
                yield from future.result()
            else:
                aside.extend(chunk)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _one_by_one(
    pool: ProcessPoolExecutor, task: Task, paths: deque[str], limit: float
) -> Iterator[SurveyRow]:
    """One run at a time, until one breaks the pool: now it is known which."""
    while paths:
        path, began = paths.popleft(), time.monotonic()
        try:
            yield from _handed(pool, task, (path,)).result()
        except BrokenProcessPool:
            late = 0 < limit <= time.monotonic() - began
            why = f"took longer than {limit:g} s to read and judge" if late else DIED
            yield unreadable(path, why)
            return


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Never fork: a parent with threads (pyarrow has some) can leave a child with a held lock.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(jobs, mp_context=context, initializer=_serve)


def _handed(pool: ProcessPoolExecutor, task: Task, chunk: Chunk) -> Future[list[SurveyRow]]:
    """Give a chunk to a pool, which may start a process for it: deaf to Ctrl-C until it serves.

    A terminal's Ctrl-C goes to all of them, and one that is still importing would print where.
    """
    if not hasattr(signal, "pthread_sigmask"):
        return pool.submit(task, chunk)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return pool.submit(task, chunk)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve() -> None:
    """In a fresh process: Ctrl-C ends it without a word, and so does the end of its parent.

    A pool's processes hold both ends of its pipes: after a parent that was killed they would wait
    for work for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


@contextmanager
def _ended_early() -> Iterator[None]:
    """Whoever leaves before the end (Ctrl-C) does not wait for what the processes are at."""
    others = set(multiprocessing.active_children())
    try:
        yield
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
