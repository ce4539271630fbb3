"""The charts as JSON and in words."""

import json
import math

import numpy as np
import pytest

from forensics.diagnose.chart_series import chart_series
from forensics.render.html.charts import chart_views, charts_json, rounded
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.unit.render.html.pages import diagnosed, hostile_run, spiked_run


def chart(data: dict, name: str) -> dict:
    return next(one for one in data["charts"] if one["name"] == name)


def test_a_spike_of_one_row_is_in_the_page_however_few_places_there_are() -> None:
    data = charts_json(chart_series(spiked_run(rows=5_000), places=50))
    loss = chart(data, "loss")["series"][0]
    assert max(v for v in loss["high"] if v is not None) == 90.0
    assert max(v for v in loss["middle"] if v is not None) < 4
    assert len(data["step"]) <= 50


def test_a_row_of_its_own_is_told_once() -> None:
    run = spiked_run(rows=50_000)
    data = charts_json(chart_series(run, diagnosed(run), places=50, close_up=20_000))
    loss = chart(data, "loss")["series"][0]
    kept = [data["step"].index(step) for step in range(25_000 - 400, 25_000 + 400)]
    assert [loss["middle"][i] for i in kept] == [
        rounded(v) for v in run.steps["loss"][25_000 - 400 : 25_000 + 400].tolist()
    ]
    assert all(loss[part][i] is None for i in kept for part in ("low", "high"))
    shared = next(i for i, high in enumerate(loss["high"]) if high is not None)
    assert loss["high"][shared] > loss["middle"][shared] > loss["low"][shared]


def test_where_a_place_is_one_row_there_is_one_line() -> None:
    loss = chart(charts_json(chart_series(spiked_run(rows=100))), "loss")["series"][0]
    assert set(loss) == {"label", "sparse", "middle"}


def test_every_series_has_a_place_on_the_common_steps() -> None:
    run = spiked_run(rows=90)
    columns = {name: run.steps[name] for name in run.steps}
    values = np.full(90, np.nan)
    values[[10, 40]] = [3.0, 2.5]
    present = np.isfinite(values)
    table = StepTable.from_arrays({**columns, "val_loss": values}, masks={"val_loss": present})
    data = charts_json(chart_series(Run(path=run.path, steps=table)))
    for one in data["charts"]:
        for series in one["series"]:
            assert len(series["middle"]) == len(data["step"])
    sparse = chart(data, "loss")["series"][1]
    assert sparse["sparse"] is True
    assert [(i, v) for i, v in enumerate(sparse["middle"]) if v is not None] == [
        (10, 3.0),
        (40, 2.5),
    ]


def test_nothing_in_it_is_beyond_json() -> None:
    run = spiked_run()
    data = charts_json(chart_series(run, diagnosed(run)))
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert chart(data, "loss")["nonfinite"] == [[395, 399, 5, "NaN"]]


@pytest.mark.parametrize(
    ("value", "shown"),
    [(1 / 3, 0.333333), (123_456_789.0, 123_457_000.0), (math.nan, None), (math.inf, None)],
)
def test_values_are_rounded(value: float, shown: float | None) -> None:
    assert rounded(value) == shown


def test_bands_are_numbered_as_the_report_numbers_them() -> None:
    run = spiked_run()
    diagnosis = diagnosed(run)
    bands = charts_json(chart_series(run, diagnosis))["bands"]
    assert [band["number"] for band in bands] == list(range(1, len(bands) + 1))
    root = diagnosis.verdict.root
    assert root is not None
    assert bands[0]["rule"] == diagnosis.findings[root].rule


def test_a_chart_is_told_in_words() -> None:
    told = {view.name: view.summary for view in chart_views(chart_series(spiked_run()))}
    assert "highest 90 at 200" in told["loss"]
    assert "NaN at steps 395 to 399, 5 rows" in told["loss"]
    assert "before the clip: from" in told["norm"]
    assert told["lr"] == "0.001 throughout."
    assert "backoff: 1" in told["scale"]
    assert "skipped (no reason logged): 8" in told["scale"]


def test_a_scale_is_told_in_powers_of_two_and_a_zero_as_zero() -> None:
    step = np.arange(40)
    scale = np.where(step < 30, 2.0 ** (30 - step), 0.0)
    columns = {"step": step, "loss": np.ones(40), "skipped": step > 0, "scaler_scale": scale}
    run = Run(path=spiked_run().path, steps=StepTable.from_arrays(columns))
    told = {view.name: view.summary for view in chart_views(chart_series(run))}
    assert told["scale"].startswith("from 2^30 at step 0 to 0 at 39, lowest 0 at 30")


def test_a_reason_from_the_log_is_made_visible(tmp_path) -> None:
    run = hostile_run(tmp_path)
    labels = [m["label"] for m in chart(charts_json(chart_series(run)), "scale")["marks"]]
    hostile = [label for label in labels if "window.broken" in label]
    assert hostile
    assert all(label.isprintable() for label in hostile)


def test_a_log_without_rows_has_no_charts() -> None:
    empty = chart_series(Run(path=spiked_run().path, steps=StepTable.from_arrays({})))
    assert charts_json(empty)["charts"] == []
    assert charts_json(empty)["step"] == []
