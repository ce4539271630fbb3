"""phantom-skip: steps thrown away for no reason that the log shows."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.phantom_skip import phantom_skip
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, FP32, INF, calm, run_of


def test_fires_on_skips_of_sound_steps() -> None:
    columns = calm(1000)
    columns["skipped"][[300, 310, 500]] = True
    (finding,) = found(phantom_skip, run_of(columns, FP32))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (300, 500)
    assert finding.message.startswith("3 steps skipped at steps 300 to 500 though loss")


def test_fires_beside_a_scaler_without_hysteresis() -> None:
    columns = calm(1000, scaler_scale=np.full(1000, 1024.0))
    columns["skipped"][[300, 310, 500]] = True
    (finding,) = found(phantom_skip, run_of(columns, FP16))
    assert finding.severity is Severity.WARNING
    assert "scale stays at 1,024" in finding.message


def test_fires_as_info_on_one_or_where_no_scale_is_logged() -> None:
    one = calm(1000)
    one["skipped"][300] = True
    assert found(phantom_skip, run_of(one, FP32))[0].severity is Severity.INFO
    unknown = calm(1000, scaler_scale=None)
    unknown["skipped"][[300, 310, 500]] = True
    assert found(phantom_skip, run_of(unknown))[0].severity is Severity.INFO


def test_silent_on_overflows_whatever_norm_is_logged_for_them() -> None:
    for policy in (Policy(), Policy(32.0, 1000, 2)):
        columns = healthy_columns(8000, 0, policy=policy)
        assert found(phantom_skip, run_of(columns)) == []
        norm = np.array(columns["grad_l2_pre_clip"])
        norm[columns["skipped"]] = 0.7
        assert found(phantom_skip, run_of({**columns, "grad_l2_pre_clip": norm})) == []


def test_silent_on_a_guard_a_placeholder_and_a_stale_norm() -> None:
    rows = [300, 310, 500]
    guard = calm(1000, skip_reason=["other" if i in rows else "" for i in range(1000)])
    guard["skipped"][rows] = True
    assert found(phantom_skip, run_of(guard)) == []
    placeholder = calm(1000)
    placeholder["skipped"][rows] = True
    placeholder["grad_l2_pre_clip"][rows] = -1.0
    assert found(phantom_skip, run_of(placeholder)) == []
    stale = calm(1000)
    stale["skipped"][rows] = True
    stale["grad_l2_pre_clip"][rows] = stale["grad_l2_pre_clip"][[299, 309, 499]]
    assert found(phantom_skip, run_of(stale)) == []
    bad = calm(1000)
    bad["skipped"][rows] = True
    bad["grad_l2_pre_clip"][rows] = INF
    assert found(phantom_skip, run_of(bad)) == []
