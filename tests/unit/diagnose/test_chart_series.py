"""The series of charts, from small logs whose charts are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.chart_axis import Axis, Layout, axis_of
from forensics.diagnose.chart_parts import Chart, Mark
from forensics.diagnose.chart_series import charts_of, rows_near
from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.report_order import report_order
from forensics.diagnose.series import runs_of
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.manifest import Manifest, ScalerPolicy
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of, with_values


def chart(name: str, columns: dict, manifest: Manifest | None = None, **kwargs) -> Chart:
    found = charts_of(run_of(columns, manifest), **kwargs).chart(name)
    assert found is not None
    return found


def test_a_calm_run_has_its_columns_unchanged_in_few_rows() -> None:
    columns = calm(50)
    series = charts_of(run_of(columns, FP32))
    assert [c.name for c in series.charts] == ["loss", "norm", "lr", "skips"]
    assert (series.first_step, series.last_step, series.unit, series.rows) == (0, 49, "step", 50)
    loss = series.charts[0].series[0]
    assert (loss.low == columns["loss"]).all()
    assert (loss.high == loss.low).all()
    assert series.charts[0].nonfinite == ()


def test_an_empty_log_has_no_charts() -> None:
    series = charts_of(run_of({"step": np.array([], dtype=np.int64)}))
    assert (series.charts, series.first_step, series.rows) == ((), None, 0)


def test_what_is_not_finite_is_a_span_and_what_is_absent_is_not() -> None:
    columns = calm(30, loss=with_values(np.ones(30), [4, 5, 9], NAN))
    written = np.ones(30, dtype=bool)
    written[20:25] = False
    signals = run_of(columns, FP32, masks={"loss": written})
    found = charts_of(signals).chart("loss")
    assert found is not None
    assert [(s.first_step, s.last_step, s.count) for s in found.nonfinite] == [(4, 5, 2), (9, 9, 1)]
    assert np.isnan(found.series[0].low[[4, 5, 9, 20]]).all()


def test_the_steps_of_all_lines_are_the_same() -> None:
    rows = 5000
    series = charts_of(run_of(calm(rows, scaler_scale=np.full(rows, 8.0))), places=100)
    grids = [s.step for c in series.charts for s in c.series]
    assert len(grids) > 4
    assert all(np.array_equal(grid, grids[0]) for grid in grids)
    assert len(grids[0]) == 100


def finding(first: int, last: int, severity: Severity = Severity.ERROR, rule: str = "x") -> Finding:
    return Finding(rule=rule, severity=severity, message="", first_step=first, last_step=last)


def near(rows: int, *findings: Finding, most: int = 10**6) -> list[tuple[int, int]]:
    diagnosis = replace(diagnose(run_of(calm(5)).run), findings=findings)
    diagnosis = replace(diagnosis, verdict=replace(diagnosis.verdict, root=None, consequences=()))
    found = rows_near(np.arange(rows) * 2, diagnosis, most)
    assert found is not None
    mask = np.zeros(rows, dtype=bool)
    mask[found] = True
    return [*zip(*(ends.tolist() for ends in runs_of(mask)), strict=True)]


def test_rows_near_a_short_finding_reach_500_to_either_side() -> None:
    assert near(10_000, finding(8_000, 8_002)) == [(3_500, 4_501)]
    assert near(10_000, finding(0, 0), finding(19_998, 19_998, rule="y")) == [
        (0, 500),
        (9_499, 9_999),
    ]


def test_rows_near_the_ends_of_a_long_finding() -> None:
    assert near(10_000, finding(4_000, 16_000)) == [(1_500, 2_499), (7_501, 8_500)]


def test_rows_near_findings_are_at_most_so_many_and_every_kind_comes_first() -> None:
    spikes = [finding(2 * k, 2 * k) for k in range(2_000, 60_000, 2_000)]
    other = finding(140_000, 140_000, Severity.INFO, "y")
    found = near(80_000, *spikes, other, most=3_003)
    assert sum(last - first + 1 for first, last in found) == 3_003
    assert found[0] == (1_500, 2_500)
    assert found[-1] == (69_500, 70_500)


def test_a_close_up_has_the_rows_of_a_finding_as_the_log_has_them() -> None:
    columns = calm(60_000, loss=with_values(calm(60_000)["loss"], [40_001], NAN))
    signals = run_of(columns, FP32)
    series = charts_of(signals, diagnose(signals.run), places=100, close_up=5_000)
    loss = series.charts[0].series[0]
    rows = np.flatnonzero((loss.step >= 39_600) & (loss.step <= 40_400))
    assert loss.step[rows].tolist() == [*range(39_600, 40_401)]
    expected = np.where(np.arange(60_000) == 40_001, NAN, columns["loss"])[39_600:40_401]
    assert np.array_equal(loss.middle[rows], expected, equal_nan=True)
    assert len(loss.step) < 5_400
    assert [(s.first_step, s.last_step) for s in series.charts[0].nonfinite] == [(40_001, 40_001)]
    assert len(charts_of(signals, None, places=100, close_up=5_000).charts[0].series[0].step) == 100


def test_zeros_on_a_logarithmic_axis_are_marked() -> None:
    norm = np.geomspace(1e-3, 1e3, 1000)
    norm[[100, 700]] = 0.0
    found = chart("norm", calm(1000, grad_l2_pre_clip=norm, grad_l2_post_clip=None), FP32)
    assert found.axis.layout is Layout.LOG
    marks = [m for m in found.marks if m.kind is Mark.NOT_POSITIVE]
    assert [m.step.tolist() for m in marks] == [[100, 700]]
    assert np.nanmin(found.series[0].low) > 0


def test_the_threshold_of_the_clip_is_a_limit() -> None:
    policy = Manifest(precision="fp32", scaler=ScalerPolicy(), max_norm=0.7)
    found = chart("norm", calm(30), policy)
    assert [(limit.label, limit.value) for limit in found.limits] == [("clip threshold", 0.7)]
    assert [s.name for s in found.series] == ["grad_l2_pre_clip", "grad_l2_post_clip"]


def test_where_nothing_clips_there_is_one_norm_and_no_word_of_a_clip() -> None:
    norm = calm(30)["grad_l2_pre_clip"]
    found = chart("norm", calm(30, grad_l2_post_clip=norm), Manifest(precision="fp32"))
    assert [(s.name, s.label) for s in found.series] == [("grad_l2_pre_clip", "gradient norm")]
    found = chart("norm", calm(30, grad_l2_post_clip=np.minimum(norm, np.median(norm))))
    assert [s.label for s in found.series] == ["before the clip", "after the clip"]


def test_no_norm_no_panel() -> None:
    columns = calm(30, grad_l2_pre_clip=None, grad_l2_post_clip=None)
    assert charts_of(run_of(columns)).chart("norm") is None


def test_every_group_has_its_rate_up_to_six() -> None:
    groups = {f"lr_{i}": np.full(10, 1e-3 * i) for i in range(1, 9)}
    found = chart("lr", calm(10, **groups))
    assert [s.label for s in found.series] == [f"group {i}" for i in range(6)]


def test_a_validation_loss_is_points_where_it_was_taken() -> None:
    written = np.zeros(40, dtype=bool)
    written[9::10] = True
    signals = run_of(calm(40, val_loss=np.full(40, 3.0)), masks={"val_loss": written})
    found = charts_of(signals).chart("loss")
    assert found is not None
    points = found.series[1]
    assert points.sparse
    assert points.step.tolist() == [9, 19, 29, 39]


def test_epochs_are_the_unit_of_a_log_of_epochs() -> None:
    from dataclasses import replace

    from forensics.diagnose.signals import Signals

    run = run_of(calm(12)).run
    run = replace(run, steps=replace(run.steps, facts=LogFacts(unit="epoch")))
    assert charts_of(Signals(run)).unit == "epoch"


# -- the loss scaler ----------------------------------------------------------------------------


def sawtooth() -> dict:
    """Two overflows: 2^16 falls to 2^15 at step 11 and to 2^14 at step 31, and grows at 26."""
    scale = np.full(60, 2.0**16)
    scale[11:26], scale[26:31], scale[31:] = 2.0**15, 2.0**16, 2.0**15
    norm = with_values(np.ones(60), [10, 30], INF)
    skipped = with_values(np.zeros(60, dtype=bool), [10, 30], True)
    reason = [""] * 60
    reason[10], reason[30] = "nonfinite_grad:blocks.1.weight", "nonfinite_grad:head.bias"
    return calm(60, scaler_scale=scale, grad_l2_pre_clip=norm, skipped=skipped, skip_reason=reason)


def test_growths_backoffs_and_skips_are_marked_where_they_are() -> None:
    found = chart("scale", sawtooth(), FP16)
    marks = {(m.kind, m.label): m for m in found.marks}
    assert marks[Mark.BACKOFF, "backoff"].step.tolist() == [11, 31]
    assert marks[Mark.BACKOFF, "backoff"].value.tolist() == [2.0**15, 2.0**15]
    assert marks[Mark.GROWTH, "growth"].step.tolist() == [26]
    assert marks[Mark.SKIP, "nonfinite_grad"].step.tolist() == [10, 30]
    assert found.axis == Axis(Layout.LOG2)


def test_an_overflow_that_the_scaler_dealt_with_is_no_alarm() -> None:
    found = chart("norm", sawtooth(), FP16)
    assert found.nonfinite == ()
    assert [m.step.tolist() for m in found.marks if m.kind is Mark.ROUTINE] == [[10, 30]]


def test_without_a_scaler_it_is_one() -> None:
    columns = sawtooth() | {"scaler_scale": np.ones(60)}
    found = chart("norm", columns, FP32)
    assert [s.first_step for s in found.nonfinite] == [10, 30]
    assert not [m for m in found.marks if m.kind is Mark.ROUTINE]


def test_rare_reasons_share_a_row_and_none_is_lost() -> None:
    rows = 200
    skipped = np.zeros(rows, dtype=bool)
    skipped[::10] = True
    reason = [f"why {i // 10 % 8}" if i % 10 == 0 else "" for i in range(rows)]
    scale = np.full(rows, 2.0**10)
    found = chart("scale", calm(rows, skipped=skipped, skip_reason=reason, scaler_scale=scale))
    skips = [m for m in found.marks if m.kind is Mark.SKIP]
    assert len(skips) == 5
    assert skips[-1].label == "other reasons"
    assert sum(m.total for m in skips) == 20


def test_a_scale_of_zero_is_drawn_below_all_others() -> None:
    scale = np.exp2(np.maximum(16.0 - np.arange(180), -149))
    scale[170:] = 0.0
    found = chart("scale", calm(180, scaler_scale=scale, skipped=np.ones(180, dtype=bool)))
    assert np.nanmin(found.series[0].low) == 2.0**-150
    assert [limit.value for limit in found.limits] == [1.0, 2.0**-128]


def test_no_scaler_no_scale() -> None:
    assert charts_of(run_of(calm(30), FP32)).chart("scale") is None


def test_the_skip_rate_is_over_the_whole_window_from_the_first_step_on() -> None:
    skipped = with_values(np.zeros(100, dtype=bool), [0, 50], True)
    rate = chart("skips", calm(100, skipped=skipped)).series[0]
    assert rate.label == "of the last 20 steps"
    assert rate.high[[0, 19, 20, 50, 69, 70]].tolist() == [5.0, 5.0, 0.0, 5.0, 5.0, 0.0]


def test_the_numbers_of_the_bands_are_the_order_of_the_report() -> None:
    run = run_of(calm(80, loss=with_values(np.full(80, 2.0), slice(40, None), NAN)), FP32).run
    diagnosis = diagnose(run)
    series = charts_of(run_of(calm(3)), diagnosis)
    groups = report_order(diagnosis)
    assert len(groups) >= 2
    assert [(b.number, b.rule) for b in series.bands] == [
        (number, group.head.rule) for number, group in enumerate(groups, 1)
    ]
    assert series.bands[0].relation == "root"


# -- axes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "layout"),
    [
        ([1.0, 2.0, 3.0], Layout.LINEAR),
        ([0.01, 2.0, 3.0], Layout.LOG),
        ([0.0, 2.0, 3.0], Layout.LINEAR),
        ([-1.0, 2.0, 3.0], Layout.LINEAR),
        ([0.0, 2.0, 3.0, 2.5, 1e9], Layout.SYMLOG),
        ([-1e300, 2.0, 3.0], Layout.SYMLOG),
        ([1e-310, 2e-310], Layout.LOG),
        ([1e308, 1.7e308], Layout.LOG),
        ([0.0, 0.0], Layout.LINEAR),
        ([], Layout.LINEAR),
    ],
)
def test_the_axis_shows_the_small_and_the_large(values: list[float], layout: Layout) -> None:
    assert axis_of([np.array(values)]).layout is layout
