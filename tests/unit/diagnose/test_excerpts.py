"""Excerpts around findings: the right rows, no spike lost, nothing bad hidden, nothing routine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forensics.diagnose.chart_axis import Layout
from forensics.diagnose.engine import diagnose
from forensics.diagnose.excerpts import PLACES, Excerpt, excerpts_of
from forensics.diagnose.finding import Evidence, Finding, Severity
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.step_logs import FP16, INF, NAN, calm, run_of


def finding(first: int, last: int, *signals: str) -> Finding:
    evidence = tuple(Evidence(signal=name, steps=(first,), values=(1.0,)) for name in signals)
    return Finding(
        rule="x",
        severity=Severity.ERROR,
        message="",
        first_step=first,
        last_step=last,
        evidence=evidence,
    )


def cut(signals: Signals, first: int, last: int, *named: str) -> dict[str, Excerpt]:
    return {e.column: e for e in excerpts_of(signals, finding(first, last, *named))}


def at(rows: int, row: int, value: float) -> Any:
    values = 2.0 + 0.01 * np.arange(rows)
    values[row] = value
    return values


def test_a_short_finding_has_ten_rows_on_either_side_a_place_each() -> None:
    found = cut(run_of(calm(100, loss=at(100, 50, NAN))), 50, 50)["loss"]
    assert (found.first_step, found.last_step) == (40, 60)
    assert (found.begin, found.end) == (10, 11)
    assert found.bad.tolist() == [row == 50 for row in range(40, 61)]
    assert np.isnan(found.low[10])
    assert np.isnan(found.high[10])
    others = np.delete(found.low, 10)
    assert others.tolist() == [2.0 + 0.01 * row for row in range(40, 61) if row != 50]
    assert np.array_equal(found.low, found.high, equal_nan=True)


def test_a_long_finding_has_a_third_of_its_length_before_it() -> None:
    found = cut(run_of(calm(1_000)), 600, 899)["loss"]
    assert (found.first_step, found.last_step) == (500, 949)
    assert len(found.low) == PLACES
    per_place = 450 / PLACES
    assert found.begin == int(100 / per_place)
    assert found.end == int(np.ceil(400 / per_place))


@pytest.mark.parametrize("value", [1e6, -1e6])
def test_a_spike_of_one_row_in_very_many_is_kept(value: float) -> None:
    found = cut(run_of(calm(50_000, loss=at(50_000, 33_333, value))), 0, 49_999)["loss"]
    assert value in (found.low.min(), found.high.max())


def test_one_bad_row_in_very_many_is_kept() -> None:
    found = cut(run_of(calm(50_000, loss=at(50_000, 33_333, INF))), 0, 49_999)["loss"]
    assert int(found.bad.sum()) == 1
    assert np.isfinite(found.high).all()


def test_a_finding_at_the_edge_of_the_log_reaches_the_edge() -> None:
    found = cut(run_of(calm(30)), 0, 29)["loss"]
    assert (found.first_step, found.last_step, found.begin, found.end) == (0, 29, 0, 30)


def test_loss_and_norm_share_their_steps_though_the_norm_is_missing_where_it_went_bad() -> None:
    there = np.arange(100) < 50
    signals = run_of(
        calm(100, loss=at(100, 50, NAN)), masks={"grad_l2_pre_clip": there | (np.arange(100) > 50)}
    )
    found = cut(signals, 50, 50)
    loss, norm = found["loss"], found["grad_l2_pre_clip"]
    assert (loss.first_step, loss.last_step) == (norm.first_step, norm.last_step)
    assert not norm.bad.any()
    assert np.isnan(norm.low[10])


def test_a_column_written_now_and_then_goes_by_its_own_rows() -> None:
    there = np.arange(1_000) % 100 == 0
    found = cut(run_of(calm(1_000), masks={"loss": there}), 500, 500)["loss"]
    assert (found.first_step, found.last_step) == (0, 900)
    assert np.isfinite(found.low).all()


def test_what_the_evidence_names_comes_first_and_three_at_most() -> None:
    signals = run_of(calm(100, scaler_scale=np.full(100, 1024.0)), FP16)
    assert [*cut(signals, 50, 50)] == ["loss", "grad_l2_pre_clip"]
    assert [*cut(signals, 50, 50, "grad_l2_pre_clip")] == ["grad_l2_pre_clip", "loss"]
    assert [*cut(signals, 50, 50, "scaler_scale")] == ["scaler_scale", "loss", "grad_l2_pre_clip"]
    assert [*cut(signals, 50, 50, "lr", "loss", "scaler_scale")] == ["scaler_scale", "lr", "loss"]
    assert cut(signals, 50, 50, "scaler_scale")["scaler_scale"].axis.layout is Layout.LOG2


def test_a_column_the_log_lacks_has_no_excerpt() -> None:
    assert [*cut(run_of(calm(100, grad_l2_pre_clip=None)), 50, 50, "scaler_scale", "lr")] == [
        "scaler_scale",
        "lr",
        "loss",
    ]


def test_an_overflow_that_a_healthy_scaler_dealt_with_is_not_bad() -> None:
    rows = np.arange(2_500)
    skipped = rows == 2_000
    columns = calm(
        2_500,
        skipped=skipped,
        grad_l2_pre_clip=np.where(skipped, INF, 1.0),
        scaler_scale=np.where(rows > 2_000, 32_768.0, 65_536.0),
    )
    signals = run_of(columns, FP16)
    assert signals.scaling.routine[2_000]
    norm = cut(signals, 2_005, 2_005)["grad_l2_pre_clip"]
    assert not norm.bad.any()
    assert np.isnan(norm.low[2_000 - norm.first_step])


def test_a_diagnosis_carries_the_excerpts_of_its_findings_and_compares_without_them() -> None:
    signals = run_of(calm(100, loss=at(100, 50, NAN)))
    found = diagnose(signals.run)
    (bad,) = [f for f in found.findings if f.rule == "nonfinite-loss"]
    assert [e.column for e in bad.excerpts] == ["loss", "grad_l2_pre_clip"]
    assert replace(bad, excerpts=()) == bad
    assert "excerpts" not in repr(bad)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_the_shortest_logs_have_excerpts_too(rows: int) -> None:
    found = cut(run_of(calm(rows)), 0, rows - 1)["loss"]
    assert len(found.low) == rows
    assert (found.begin, found.end) == (0, rows)
