"""high-skip-rate: an alarm, silent about calibration and about one overflow a growth interval."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.high_skip_rate import high_skip_rate
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, limits, run_scaler
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP32, INF, NAN, calm, run_of


def overflowing(rows: int, start: int, stop: int, share: float) -> dict[str, np.ndarray]:
    """A run in which a share of the steps of a stretch overflows at any scale."""
    limit = limits(rows, 0)
    bad = np.random.default_rng(1).random(stop - start) < share
    bad[0] = True
    limit[start:stop][bad] = -400
    scale, skipped = run_scaler(limit, Policy(floor_log2=-400))
    columns = calm(rows, scaler_scale=scale, skipped=skipped)
    columns["grad_l2_pre_clip"][skipped] = INF
    return columns


def test_fires_on_a_share_of_steps_that_overflow() -> None:
    (finding,) = found(high_skip_rate, run_of(overflowing(6000, 3000, 6000, 0.1)))
    assert finding.severity is Severity.ERROR
    assert abs(finding.first_step - 3000) <= 2
    assert finding.last_step >= 5950
    assert "per 1,000, where a healthy scaler stays below 20" in finding.message


def test_fires_as_a_warning_on_a_moderate_rate() -> None:
    (finding,) = found(high_skip_rate, run_of(overflowing(8000, 3000, 8000, 0.03)))
    assert finding.severity is Severity.WARNING
    assert 2900 <= finding.first_step <= 3200


def test_fires_on_a_run_of_skips_before_the_scale_is_poison() -> None:
    columns = overflowing(4000, 3000, 4000, 1.0)
    cut = {name: values[:3020] for name, values in columns.items()}
    (finding,) = found(high_skip_rate, run_of(cut))
    assert finding.first_step == 3000
    assert "20 steps in a row were skipped from step 3,000 on" in finding.message


def test_fires_on_an_overflow_that_begins_with_the_run() -> None:
    (finding,) = found(high_skip_rate, run_of(overflowing(100, 0, 100, 1.0)))
    assert finding.first_step == 0


def test_fires_on_a_guard_without_any_scaler() -> None:
    columns = calm(2000)
    columns["loss"][1000:1100] = NAN
    columns["skipped"][1000:1100] = True
    (finding,) = found(high_skip_rate, run_of(columns, FP32))
    assert (finding.first_step, finding.last_step) == (1000, 1099)
    assert "loss itself is non-finite" in finding.cause
    assert "bf16" not in finding.remedy


def test_fires_on_octaves_where_no_skip_is_logged() -> None:
    columns = overflowing(4000, 3000, 3012, 1.0)
    del columns["skipped"]
    (finding,) = found(high_skip_rate, run_of(columns))
    assert abs(finding.first_step - 3000) <= 2


def test_two_episodes_far_apart_are_two_findings() -> None:
    columns = calm(20_000)
    for start in (3000, 15_000):
        columns["skipped"][start : start + 40] = True
    assert [f.first_step for f in found(high_skip_rate, run_of(columns))] == [3000, 15_000]


@pytest.mark.parametrize("start", [16.0, 32.0])
def test_silent_on_the_calibration(start: float) -> None:
    columns = healthy_columns(300, 0, policy=Policy(start, 1000, 2))
    assert columns["skipped"].sum() >= 4
    assert found(high_skip_rate, run_of(columns)) == []


@pytest.mark.parametrize("interval", [20, 50, 200, 2000])
def test_silent_on_one_overflow_a_growth_interval(interval: int) -> None:
    columns = healthy_columns(6000, 0, policy=Policy(16.0, interval))
    assert found(high_skip_rate, run_of(columns)) == []


def test_a_sawtooth_without_its_scale_is_at_most_an_info() -> None:
    columns = healthy_columns(6000, 0, policy=Policy(16.0, 20, 2))
    del columns["scaler_scale"]
    assert all(f.severity is Severity.INFO for f in found(high_skip_rate, run_of(columns)))


def test_skipped_without_skips_and_scale() -> None:
    columns = calm(10, skipped=None, scaler_scale=None, grad_l2_post_clip=None)
    assert "skipped or scaler_scale" in high_skip_rate.why_skipped(run_of(columns))


def test_an_optimizer_that_never_stepped_has_nothing_nonfinite_to_be_found() -> None:
    signals = run_of(calm(200, skipped=np.ones(200, dtype=bool)), FP32)
    (finding,) = found(high_skip_rate, signals)
    assert "does not call optimizer.step()" in finding.cause
    assert "non-finite" not in finding.remedy
