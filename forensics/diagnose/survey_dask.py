"""Judging many runs on a dask cluster: one that is there, or one of this machine's processes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forensics.diagnose.survey import Choice, SurveyRow, survey_one, unreadable
from forensics.diagnose.survey_chunk import DIED, Judge, chunks_of, judge_chunk
from forensics.diagnose.survey_pool import OnRow
from forensics.errors import InputError, MissingExtraError
from forensics.runlog.stores.scheme import is_uri

if TYPE_CHECKING:
    from distributed import Client

_PATIENCE = "15s"
"""How long a scheduler may take to answer."""


def survey_on_dask(
    paths: Sequence[str],
    choice: Choice,
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
    on_row: OnRow | None = None,
    judge: Judge = survey_one,
) -> list[SurveyRow]:
    """One row a run, worst first; the same rows as ``survey_pool.survey`` gives.

    What a worker had been given when it died, dask gives to another one; what has been with several
    workers that died (dask's ``allowed-failures``) is judged at the end, one run at a time, and the
    run that does it is a row that says so.

    Args:
        paths: the runs, each once; every worker must find them under the same absolute paths or
            URIs.
        choice: rules and thresholds.
        scheduler: its address, such as ``tcp://10.0.0.1:8786``; None starts processes here.
        jobs: processes to start; None for as many as there are processors.
        on_row: called with each row as it is finished.
        judge: makes the row of a run; a function that the workers can import.

    Raises:
        MissingExtraError: dask is not installed.
        InputError: no scheduler answers, or its workers lack this program.
    """
    told = on_row or (lambda row: None)
    rows: list[SurveyRow] = []
    given = {path if is_uri(path) else os.path.abspath(path): path for path in paths}
    with _client(scheduler, jobs) as client:
        for row in _judged(client, list(given), choice, judge):
            rows.append(replace(row, path=given[row.path]))
            told(rows[-1])
    return sorted(rows, key=lambda row: row.order)


@contextmanager
def _client(scheduler: str | None, jobs: int | None) -> Iterator[Client]:
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        hint = "pip install dask distributed"
        raise MissingExtraError("needs dask", where="--engine dask", hint=hint) from None
    with ExitStack() as stack:
        where: Any = scheduler
        if scheduler is None:
            where = stack.enter_context(
                LocalCluster(
                    n_workers=jobs or os.cpu_count() or 1,
                    threads_per_worker=1,  # rules hold Python's lock for most of their time
                    dashboard_address=":0",
                )
            )
        try:
            client = Client(where, timeout=_PATIENCE)
        except (OSError, ValueError) as error:
            hint = "start one with `dask scheduler`, or leave --scheduler out"
            raise InputError("no dask scheduler answers", where=scheduler, hint=hint) from error
        yield stack.enter_context(client)


def _judged(
    client: Client, paths: Sequence[str], choice: Choice, judge: Judge
) -> Iterator[SurveyRow]:
    """Rows as they come; then, one at a time, the runs of chunks that died with their workers.

    Dask blames all that a dying worker had been given: only what it was given alone is at fault.
    """
    workers = len(client.scheduler_info(n_workers=-1)["workers"])
    suspected: list[str] = []
    for chunk, rows in _results(client, chunks_of(paths, workers), choice, judge):
        if rows is None:
            suspected.extend(chunk)
        else:
            yield from rows
    for path in suspected:
        for _, rows in _results(client, [(path,)], choice, judge):
            yield from rows if rows is not None else [unreadable(path, DIED)]


def _results(
    client: Client, chunks: Iterable[tuple[str, ...]], choice: Choice, judge: Judge
) -> Iterator[tuple[tuple[str, ...], list[SurveyRow] | None]]:
    """Each chunk and its rows, as they come; None where it took its workers along."""
    from distributed import KilledWorker, as_completed

    futures = {
        client.submit(judge_chunk, judge, chunk, choice, pure=False): chunk for chunk in chunks
    }
    for future in as_completed(futures):
        try:
            rows = future.result()
        except KilledWorker:
            rows = None
        except ImportError as error:
            hint = "install the same version of forensics where the workers run"
            raise InputError(f"a dask worker has {error}", hint=hint) from error
        yield futures.pop(future), rows
