"""A dask cluster judges as the pool does, and outlives workers that die."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
    monkeypatch.setattr("forensics.diagnose.survey_dask._PATIENCE", "0.2s")
    with pytest.raises(InputError, match="no dask scheduler answers"):
        survey_on_dask(["a"], Choice(), scheduler="tcp://127.0.0.1:9")


def test_without_dask_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(MissingExtraError, match=r"pip install dask distributed"):
        survey_on_dask(["a"], Choice())
