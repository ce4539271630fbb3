"""How the log of a loss scaler is read."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forensics.diagnose.scaler_reading import spared
from forensics.diagnose.scaling import DEFAULT_INTERVAL
from forensics.runlog.manifest import Segment
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, limits, run_scaler
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, TORCH, calm, run_of, with_values


def after_update(columns: dict) -> dict:
    """The same log, written by a loop that logs the scale after ``update()``."""
    scale = columns["scaler_scale"]
    return {**columns, "scaler_scale": np.append(scale[1:], scale[-1])}


@pytest.mark.parametrize("seed", range(3))
def test_falls_belong_to_the_step_that_overflowed_whenever_the_scale_is_logged(seed: int) -> None:
    columns = healthy_columns(6000, seed)
    overflowed = np.flatnonzero(columns["skipped"])
    before = run_of(columns).scaling
    np.testing.assert_array_equal(before.falls.rows, overflowed)
    assert before.lag_from == 6000
    after = run_of(after_update(columns)).scaling
    known = after.falls.rows >= after.lag_from
    np.testing.assert_array_equal(after.falls.rows[known], overflowed[-known.sum() :])
    assert known.sum() >= len(overflowed) - 6, "only the calibration comes before it is known"


def test_our_own_record_logs_the_scale_before_the_update() -> None:
    columns = after_update(healthy_columns(3000, 0))
    assert run_of(columns, FP16).scaling.lag_from == 3000


@pytest.mark.parametrize("interval", [20, 200, 1000])
@pytest.mark.parametrize("hysteresis", [1, 2])
def test_the_growth_interval_is_read_from_the_log(interval: int, hysteresis: int) -> None:
    columns = healthy_columns(9000, 0, policy=Policy(16.0, interval, hysteresis))
    scaling = run_of(columns).scaling
    assert scaling.interval == interval
    early, late = scaling.interval_at(np.array([scaling.interval_row - 1, scaling.interval_row]))
    assert (early, late) == (DEFAULT_INTERVAL, interval)


def test_the_growth_interval_of_run_json_holds_from_the_first_row() -> None:
    assert FP16.scaler is not None
    manifest = replace(FP16, scaler=replace(FP16.scaler, growth_interval=123, hysteresis=2))
    scaling = run_of(healthy_columns(500, 0), manifest).scaling
    assert (scaling.interval, scaling.interval_row, scaling.hysteresis) == (123, 0, 2)


def test_no_interval_is_read_from_a_log_that_leaves_steps_out() -> None:
    columns = healthy_columns(9000, 0, policy=Policy(16.0, 200))
    sparse = {name: values[::7] for name, values in columns.items()}
    assert run_of(sparse).scaling.interval is None


def test_the_calibration_ends_with_200_clean_steps_and_has_a_cap() -> None:
    columns = calm(1000, scaler_scale=np.full(1000, 16.0))
    columns["skipped"][[3, 150, 340, 600]] = True
    calibrating = run_of(columns).scaling.calibrating
    assert calibrating.tolist() == [True, True, True, False]
    columns["skipped"][:20] = True
    calibrating = run_of(columns).scaling.calibrating
    assert calibrating[:6].all()  # log2(16) and a hysteresis of 2
    assert not calibrating[6:].any()


def test_a_resume_and_a_jump_of_the_scale_calibrate_again() -> None:
    columns = calm(3000, scaler_scale=np.full(3000, 1024.0))
    columns["skipped"][[1500, 1510]] = True
    assert not run_of(columns).scaling.calibrating.any()
    resumed = replace(FP16, segments=(Segment(0), Segment(1490, reason="resume")))
    assert run_of(columns, resumed).scaling.calibrating.all()
    columns["scaler_scale"][1500:] = 65536.0
    assert run_of(columns).scaling.calibrating.all()


def test_skips_by_chance_are_counted_in_steps_not_in_rows() -> None:
    columns = calm(100)
    columns["step"] = np.arange(100) * 100
    columns["skipped"][::5] = True
    scaling = run_of(columns).scaling
    assert scaling.in_window(scaling.skips).max() == 2


def test_a_fall_is_a_skip_where_no_skips_are_logged() -> None:
    columns = healthy_columns(5000, 0)
    skips = np.flatnonzero(columns["skipped"])
    for skipped in (None, np.zeros(5000, dtype=bool)):
        changed = {**columns, "skipped": skipped}
        log = {name: values for name, values in changed.items() if values is not None}
        np.testing.assert_array_equal(run_of(log).scaling.skips, skips)


@pytest.mark.parametrize(
    ("columns", "manifest", "active"),
    [
        (calm(10), None, False),
        (calm(10, scaler_scale=None), None, None),
        (calm(10, scaler_scale=None), FP32, False),
        (calm(10, scaler_scale=None), replace(FP16, scaler=None), None),
        (calm(10, scaler_scale=None), FP16, True),
        (calm(10, scaler_scale=np.full(10, 8.0)), None, True),
        (calm(10, scaler_scale=np.full(10, 8.0)), FP32, True),
    ],
)
def test_a_scaler_is_at_work_or_not_or_it_is_not_known(
    columns: dict, manifest: object, active: bool | None
) -> None:
    assert run_of(columns, manifest).scaling.active is active  # type: ignore[arg-type]


def test_an_overflow_that_was_dealt_with_is_routine_and_a_poisoned_step_is_not() -> None:
    columns = healthy_columns(6000, 0)
    np.testing.assert_array_equal(run_of(columns).scaling.routine, columns["skipped"])
    columns["grad_l2_pre_clip"][5500:] = NAN
    columns["skipped"] = np.zeros(6000, dtype=bool)
    routine = run_of(columns).scaling.routine
    assert not routine[5500:].any()


def test_nothing_is_routine_without_a_scaler_with_a_bad_loss_or_below_a_scale_of_one() -> None:
    columns = calm(100)
    columns["grad_l2_pre_clip"][50] = INF
    assert not run_of(columns).scaling.routine.any()
    columns["scaler_scale"] = np.full(100, 1024.0)
    assert run_of(columns).scaling.routine.sum() == 1
    bad = np.array(columns["loss"])
    bad[50] = NAN
    assert not run_of({**columns, "loss": bad}).scaling.routine.any()
    columns["scaler_scale"][:] = 0.5
    assert not run_of(columns).scaling.routine.any()


def test_a_run_of_skips_is_too_long_when_halving_would_have_passed_one() -> None:
    limit = np.full(400, 30.0)
    limit[300:] = -400
    scale, skipped = run_scaler(limit, Policy(floor_log2=-400))
    for length, too_long in ((16, False), (17, True)):
        rows = 300 + length
        columns = calm(rows, scaler_scale=scale[:rows], skipped=skipped[:rows])
        runs = run_of(columns).scaling.runs
        assert runs.length.tolist() == [length]
        assert runs.too_long.tolist() == [too_long]


def test_rows_that_do_not_say_break_no_run_of_skips() -> None:
    columns = calm(300)
    columns["skipped"][250:280:2] = True
    said = np.ones(300, dtype=bool)
    said[251:280:2] = False
    scaling = run_of(columns, masks={"skipped": said}).scaling
    assert scaling.runs.length.tolist() == [15]
    assert scaling.run_start(270) == 250


def test_losses_and_guards_are_spared() -> None:
    columns = calm(10, skip_reason=["", "other", "nonfinite_loss", "nonfinite_grad:a", *[""] * 6])
    columns["skipped"][1:5] = True
    columns["loss"][4] = NAN
    assert np.flatnonzero(spared(run_of(columns))).tolist() == [1, 2, 4]


def test_a_scale_of_zero_a_placeholder_and_an_infinite_one() -> None:
    scale = np.array([8.0, 0.0, -1.0, INF, NAN, 2.0])
    rows, log2 = run_of(calm(6, scaler_scale=scale)).scaling.scales.spelled_out()
    assert rows.tolist() == [0, 1, 5]
    assert log2.tolist() == [3.0, -150.0, 1.0]


@given(st.lists(st.sampled_from([1.0, 2.0, 8.0, NAN, -1.0]), min_size=1, max_size=30))
def test_the_scale_in_stretches_says_what_the_column_says(column: list[float]) -> None:
    scales = run_of(calm(len(column), scaler_scale=np.array(column))).scaling.scales
    usable = [row for row, scale in enumerate(column) if scale > 0]
    rows, log2 = scales.spelled_out()
    assert rows.tolist() == usable
    assert log2.tolist() == [math.log2(column[row]) for row in usable]
    for row in range(-1, len(column) + 1) if usable else ():
        before = max((r for r in usable if r <= row), default=usable[0])
        after = min((r for r in usable if r >= row), default=usable[-1])
        assert scales.at(np.array([row]))[0] == math.log2(column[before])
        assert scales.since(np.array([row]))[0] == math.log2(column[after])
        inside = scales.within(row, row + 3)
        assert inside.spelled_out()[0].tolist() == [r for r in usable if row <= r <= row + 3]


def test_octaves_are_net_of_growth() -> None:
    scale = np.full(4000, 2.0**12)
    scale[3000:] = 2.0**8
    scale[3500:] = 2.0**9
    scale[3600:] = 2.0**5
    overflows = np.isin(np.arange(4000), (2999, 3599))
    scaling = run_of(calm(4000, scaler_scale=scale, skipped=overflows)).scaling
    assert scaling.octaves_lost().tolist() == [4.0, 7.0]


def test_a_fall_too_far_for_a_sound_step_was_written() -> None:
    scale = np.full(400, 2.0**16)
    scale[200:] = 2.0**13
    scale[300:] = 2.0**12
    columns = calm(400, scaler_scale=scale)
    scaling = run_of(columns).scaling
    assert scaling.written.tolist() == [True, False]
    assert scaling.falls.rows.tolist() == [199, 299]
    assert scaling.skips.tolist() == [299]
    assert scaling.counted_falls.rows.tolist() == [299]
    overflow = with_values(columns["grad_l2_pre_clip"], 199, INF)
    scaling = run_of({**columns, "grad_l2_pre_clip": overflow}).scaling
    assert scaling.written.tolist() == [False, False]
    eighth = replace(TORCH, backoff_factor=0.125)
    scaling = run_of(columns, replace(FP16, scaler=eighth)).scaling
    assert scaling.written.tolist() == [False, False]


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_the_shortest_logs_are_read(rows: int) -> None:
    scaling = run_of(calm(rows, scaler_scale=np.full(rows, 4.0))).scaling
    assert len(scaling.falls) == len(scaling.skips) == 0
    assert len(scaling.starts) == min(rows, 1)


def test_the_simulator_does_what_a_scaler_does() -> None:
    scale, skipped = run_scaler(limits(9000, 0), Policy(interval=700))
    log2 = np.log2(scale)
    np.testing.assert_array_equal(np.diff(log2) < 0, skipped[:-1])
    grown = np.flatnonzero(np.diff(log2) > 0)
    for at in grown:
        assert not skipped[at - 699 : at + 1].any()
