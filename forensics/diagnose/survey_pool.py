"""Judging many runs in several processes: one that dies is one row, and takes none along."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from forensics.diagnose.survey import Choice, SurveyRow, survey_one, unreadable

FEW = 4
"""Runs a process; starting one costs about as much as judging a few small runs."""

OnRow = Callable[[SurveyRow], None]
Judge = Callable[[str, Choice], SurveyRow]


def survey(
    paths: Sequence[str],
    choice: Choice,
    *,
    jobs: int | None = None,
    on_row: OnRow | None = None,
    judge: Judge = survey_one,
) -> list[SurveyRow]:
    """One row a run, worst first.

    Args:
        paths: the runs.
        choice: rules and thresholds.
        jobs: processes; 1 judges them here; None takes as many as pay, up to the processors.
        on_row: called with each row as it is finished.
        judge: makes the row of a run; a function that can be imported by name.
    """
    told = on_row or (lambda row: None)
    count = jobs or min(os.cpu_count() or 1, -(-len(paths) // FEW))
    rows: list[SurveyRow] = []
    if count <= 1:
        for path in paths:
            rows.append(judge(path, choice))
            told(rows[-1])
    else:
        for row in _in_parallel(paths, choice, count, judge):
            rows.append(row)
            told(row)
    return sorted(rows, key=lambda row: row.order)


def _in_parallel(
    paths: Sequence[str], choice: Choice, jobs: int, judge: Judge
) -> Iterable[SurveyRow]:
    """Rows as they come; where a process dies, the rest go on one process each."""
    left = dict.fromkeys(paths)
    with _pool(min(jobs, len(paths))) as pool:
        futures = {pool.submit(judge, path, choice): path for path in paths}
        try:
            for future in as_completed(futures):
                row = _row_of(future, futures[future])
                if row is None:
                    break
                del left[row.path]
                yield row
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    for path in left:  # a dead process breaks its whole pool: alone, each breaks only itself
        with _pool(1) as pool:
            future = pool.submit(judge, path, choice)
            yield _row_of(future, path) or unreadable(
                path, "the process that read it died; it may need more memory than there is"
            )


def _pool(jobs: int) -> ProcessPoolExecutor:
    # Never fork: a parent with threads (pyarrow has some) can leave a child with a held lock.
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _row_of(future: Future[SurveyRow], path: str) -> SurveyRow | None:
    """The row; None where the process died."""
    try:
        return future.result()
    except BrokenProcessPool:
        return None
    except Exception as error:  # noqa: BLE001 - one run that trips a bug of ours hides no other
        return unreadable(path, f"internal error: {type(error).__name__}: {error}")
