"""A dask cluster judges as the pool does, and outlives workers that die."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forensics.diagnose import survey_dask
from forensics.diagnose.survey import Choice, SurveyRow
from forensics.diagnose.survey_dask import survey_on_dask
from forensics.diagnose.survey_pool import survey
from forensics.errors import InputError, MissingExtraError
from tests.unit.diagnose.test_survey import judge_once_killed, judge_or_die, write_run

pytestmark = pytest.mark.filterwarnings("default")  # of dask's own, at its workers' deaths


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    distributed = pytest.importorskip("distributed")
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50
        ) as cluster,
    ):
        yield cluster.scheduler_address


def test_the_table_is_the_pool_s(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(6):
        write_run(tmp_path / f"r{i}", bad_from=30 + 10 * i)
    monkeypatch.chdir(tmp_path)
    paths = [*(f"r{i}" for i in range(6)), "nothing"]
    seen: list[SurveyRow] = []
    rows = survey_on_dask(paths, Choice(), scheduler=scheduler, on_row=seen.append)
    assert rows == survey(paths, Choice(), jobs=1)
    assert sorted(row.path for row in seen) == sorted(paths)


def test_what_a_killed_worker_was_at_is_judged_by_another(scheduler: str, tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a", "killed", *map(str, range(20)))]
    rows = survey_on_dask(paths, Choice(), scheduler=scheduler, judge=judge_once_killed)
    assert sorted(row.path for row in rows) == sorted(paths)
    assert {row.status for row in rows} == {"healthy"}


def test_a_run_that_takes_every_worker_along_is_one_row(scheduler: str) -> None:
    paths = ["a", "kill", "raise", "b"]
    rows = survey_on_dask(paths, Choice(), scheduler=scheduler, judge=judge_or_die)
    told = {row.path: row for row in rows}
    assert sorted(told) == sorted(paths)
    assert told["a"].status == told["b"].status == "healthy"
    assert "died" in told["kill"].summary
    assert "ZeroDivisionError" in told["raise"].summary


def test_no_scheduler_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("forensics.diagnose.survey_dask._PATIENCE_S", 0.2)
    with pytest.raises(InputError, match="no dask scheduler answers"):
        survey_on_dask(["a"], Choice(), scheduler="tcp://127.0.0.1:9")


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install dask distributed"):
        survey_on_dask(["a"], Choice())


class Cluster:
    """As much of a client as tells who is there."""

    scheduler = None

    def __init__(self, status: str, workers: int) -> None:
        self.status, self.workers = status, workers

    def scheduler_info(self, n_workers: int) -> dict[str, dict[int, None]]:
        del n_workers
        return {"workers": dict.fromkeys(range(self.workers))}


@pytest.mark.parametrize(
    ("cluster", "what"),
    [
        (Cluster("running", 0), "there is no dask worker"),
        (Cluster("connecting", 2), "the dask scheduler is gone"),
        (Cluster("running", 1), ""),
    ],
)
def test_nobody_is_waited_for_for_ever(
    cluster: Cluster,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(survey_dask, "_LOOK_S", 0.0)
    monkeypatch.setattr(survey_dask, "_PATIENCE_S", 0.0)
    lonely = survey_dask._Lonely(cluster)  # type: ignore[arg-type]
    lonely.look()
    lonely.look()
    assert [what in message for message in caplog.messages] == [True] * bool(what)
    monkeypatch.setattr(survey_dask, "_ALONE_S", 0.0)
    if what:
        with pytest.raises(InputError, match=what):
            lonely.look()
    else:
        lonely.look()
