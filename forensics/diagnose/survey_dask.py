"""Judging many runs on a dask cluster: one that is there, or one of this machine's processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from forensics.diagnose.survey import Choice, SurveyRow, survey_one, unreadable
from forensics.diagnose.survey_chunk import DIED, Judge, chunks_of, judge_chunk
from forensics.diagnose.survey_pool import OnRow
from forensics.errors import InputError, MissingExtraError
from forensics.runlog.stores.scheme import is_uri

if TYPE_CHECKING:
    from distributed import Client, Future, as_completed

_PATIENCE_S = 15.0
"""Seconds that a scheduler may take to answer, and that may pass without a worker and a word."""
_ALONE_S = 600.0
"""Seconds without a scheduler or any worker after which nobody is waited for any more."""
_LOOK_S = 2.0
_PAUSE_S = 0.02


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
    _silence()
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
        client = _connected(Client, where)
        yield stack.enter_context(client)


def _silence() -> None:
    """A scheduler that goes is told in one line: dask would log where in its code it noticed."""
    import logging

    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm.tcp"):
        logging.getLogger(name).setLevel(logging.CRITICAL)


def _connected(kind: Callable[..., Client], where: Any) -> Client:
    """A client of a scheduler; whoever is no scheduler may say anything, or nothing for ever.

    Raises:
        InputError: no scheduler answers in time.
    """
    made: list[Client] = []
    failed: list[Exception] = []

    def connect() -> None:
        try:
            made.append(kind(where, timeout=_PATIENCE_S))
        except Exception as error:  # noqa: BLE001 - told below
            failed.append(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * _PATIENCE_S)
    if made:
        return made[0]
    hint = "start one with `dask scheduler`, or leave --scheduler out"
    cause = failed[0] if failed else None
    raise InputError("no dask scheduler answers", where=where, hint=hint) from cause


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
    from distributed import CancelledError, KilledWorker, as_completed

    futures = {
        client.submit(judge_chunk, judge, chunk, choice, pure=False): chunk for chunk in chunks
    }
    lonely = _Lonely(client)
    for future in _as_they_come(as_completed(futures), lonely):
        try:
            rows = future.result()
        except KilledWorker:
            rows = None
        except CancelledError:
            raise lonely.lost() from None
        except ImportError as error:
            hint = "install the same version of forensics where the workers run"
            raise InputError(f"a dask worker has {error}", hint=hint) from error
        yield futures.pop(future), rows


def _as_they_come(results: as_completed, lonely: _Lonely) -> Iterator[Future[Any]]:
    """Finished chunks; meanwhile somebody sees whether there is anyone who could finish more."""
    while results.count() or results.has_ready():
        if not results.has_ready():
            lonely.look()
            time.sleep(_PAUSE_S)
            continue
        yield from results.next_batch(block=False)


class _Lonely:
    """Notices that the scheduler or all workers are gone: dask itself would wait for ever.

    Args:
        client: of the cluster.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._where = client.scheduler.address if client.scheduler is not None else None
        self._seen = self._looked = time.monotonic()
        self._said = False

    def look(self) -> None:
        """Say it after a while, and give up after a long one.

        Raises:
            InputError: there has been nobody for too long.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S:
            return
        self._looked = now
        if self._client.status != "running":
            what = "the dask scheduler is gone"
        elif self._client.scheduler_info(n_workers=1)["workers"]:
            self._seen, self._said = now, False
            return
        else:
            what = "there is no dask worker"
        if now - self._seen >= _ALONE_S:
            raise self.lost(what)
        if now - self._seen >= _PATIENCE_S and not self._said:
            self._said = True
            import logging

            text = f"forensics: {what}; waited for up to {_ALONE_S / 60:g} minutes"
            logging.getLogger("forensics").warning(text)

    def lost(self, what: str = "the dask scheduler is gone") -> InputError:
        """Nobody is there to go on."""
        hint = "start it again; with --catalogue what was judged is kept"
        return InputError(what, where=self._where, hint=hint)
