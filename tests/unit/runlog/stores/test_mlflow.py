"""A run of MLflow's in a store: its metrics are read together, as on a disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.survey import find_runs
from forensics.errors import InputError
from forensics.runlog.run import load_run
from tests.unit.runlog.stores.s3_server import S3

RUN = "mlruns/0/abc"
METRICS = {"train/loss": 3.0, "grad_norm": 1.0, "lr": 0.1, "deep/er/loss": 9.0}
COLUMNS = {"step", "loss", "grad_l2_pre_clip", "lr"}


@pytest.fixture
def here(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> Path:
    run = tmp_path / RUN
    for name, value in METRICS.items():
        path = run / "metrics" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        points = [f"{1_690_000_000_000 + i} {value / (1 + i)} {i}\n" for i in range(30)]
        path.write_text("".join(points))
    for name in ("params/lr", "tags/mlflow.user", "meta.yaml"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("0.1")
    s3.upload(tmp_path, "bucket", "x")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("part", ["", "/metrics", "/metrics/train/loss", "/metrics/grad_norm"])
def test_the_table_is_that_of_the_local_run(here: Path, part: str) -> None:
    there, local = load_run(f"s3://bucket/x/{RUN}{part}"), load_run(RUN + part)
    assert set(local.steps.columns) == set(there.steps.columns) == COLUMNS
    assert there.steps["loss"].tolist() == local.steps["loss"].tolist()
    assert there.steps["loss"][1] == 1.5
    assert there.steps.facts == local.steps.facts
    assert there.named() == f"s3://bucket/x/{RUN}{part}"


def test_what_a_search_finds_can_be_read(here: Path) -> None:
    (found,) = find_runs(["s3://bucket/x"])
    assert found == f"s3://bucket/x/{RUN}/metrics"
    assert len(load_run(found).steps) == 30


def test_a_metric_that_is_not_there_is_said_to_be_none(here: Path) -> None:
    with pytest.raises(InputError, match="metrics/none: no such object or folder"):
        load_run(f"s3://bucket/x/{RUN}/metrics/none")
