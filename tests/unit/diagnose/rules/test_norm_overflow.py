"""norm-overflow: an infinite norm of finite gradients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.norm_overflow import norm_overflow
from tests.unit.diagnose.snapshot_runs import found, store
from tests.unit.diagnose.step_logs import FP32, INF, calm, run_of


def test_fires_on_a_row_that_the_record_marked() -> None:
    columns = calm(100, norm_overflow=np.zeros(100))
    columns["grad_l2_pre_clip"][40] = 3.1e20
    columns["norm_overflow"][40] = 1
    (finding,) = found(norm_overflow, run_of(columns, FP32))
    assert finding.severity is Severity.WARNING
    assert finding.first_step == finding.last_step == 40
    assert "true norm 3.1e20" in finding.message
    assert "clipped by its true norm and taken" in finding.remedy


def test_fires_where_a_snapshot_counts_no_bad_element() -> None:
    columns = calm(100)
    columns["grad_l2_pre_clip"][40] = INF
    params = store({"grad_nonfinite": np.zeros((10, 8), dtype=np.int64)})
    (finding,) = found(norm_overflow, run_of(columns, FP32, params=params))
    assert finding.severity is Severity.ERROR
    assert "turned every gradient into 0" in finding.message


def test_fires_where_the_clip_left_exactly_nothing() -> None:
    columns = calm(100)
    columns["grad_l2_pre_clip"][40:43] = INF
    columns["grad_l2_post_clip"][40:43] = 0.0
    (finding,) = found(norm_overflow, run_of(columns))
    assert "overflowed at steps 40 to 42 though" in finding.message


def test_a_true_norm_does_not_mean_that_the_clip_went_by_it() -> None:
    columns = calm(100)
    columns["grad_l2_pre_clip"][40] = 3e21
    columns["norm_overflow"] = np.zeros(100, dtype=bool)
    columns["norm_overflow"][40] = True
    columns["grad_l2_post_clip"][40] = 0.0
    (finding,) = found(norm_overflow, run_of(columns))
    assert "turned every gradient into 0" in finding.message
    columns["grad_l2_post_clip"][40] = 1.0
    assert "clipped by its true norm" in found(norm_overflow, run_of(columns))[0].remedy


def test_silent_where_an_element_is_bad_or_nothing_tells() -> None:
    columns = calm(100)
    columns["grad_l2_pre_clip"][40] = INF
    bad = np.zeros((10, 8), dtype=np.int64)
    bad[4, 2] = 1
    assert found(norm_overflow, run_of(columns, params=store({"grad_nonfinite": bad}))) == []
    assert found(norm_overflow, run_of(columns)) == []
    columns["grad_l2_post_clip"][40] = 0.0
    derived = replace(FP32, post_clip="derived")
    assert found(norm_overflow, run_of(columns, derived)) == []
    assert found(norm_overflow, run_of(calm(100))) == []
