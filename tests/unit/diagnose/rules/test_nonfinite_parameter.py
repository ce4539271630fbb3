"""nonfinite-parameter: the origin by gradient arrival, with the finite ones that bracket it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.nonfinite_parameter import nonfinite_parameter
from forensics.runlog.run import CheckpointInfo
from tests.unit.diagnose.snapshot_runs import NAMES, found, store
from tests.unit.diagnose.step_logs import FP16, FP32, INF, NAN, calm, run_of

ARRIVAL = tuple(reversed(NAMES))


def counts(snapshots: int = 10, **cells: dict[tuple[int, int], int]) -> dict[str, np.ndarray]:
    """Count matrices, all 0 but for some cells."""
    stats = {name: np.zeros((snapshots, 8), dtype=np.int64) for name in cells}
    for name, values in cells.items():
        for at, count in values.items():
            stats[name][at] = count
    return stats


def test_fires_on_the_gradient_nearest_the_loss() -> None:
    params = store(counts(grad_nonfinite={(4, 2): 64, (4, 3): 12, (4, 1): 64, (4, 0): 64}))
    manifest = replace(FP32, arrival_order=ARRIVAL)
    columns = calm(100)
    columns["grad_l2_pre_clip"][40] = NAN
    columns["skipped"][40] = True
    (finding,) = found(nonfinite_parameter, run_of(columns, manifest, params=params))
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[3]
    assert finding.first_step == 40
    assert "(12 elements)" in finding.message
    assert f"still finite: {NAMES[4]} before it" in finding.message
    assert NAMES[4] in finding.cause
    assert finding.evidence[0].signal == f"grad_nonfinite({NAMES[3]})"


def test_fires_by_reverse_network_order_where_run_json_does_not_say() -> None:
    params = store(counts(grad_nonfinite={(4, 2): 1, (4, 5): 1}))
    (finding,) = found(nonfinite_parameter, run_of(calm(100), params=params))
    assert finding.subject == NAMES[5]
    assert NAMES[6] in finding.message
    assert NAMES[4] in finding.message


def test_fires_as_critical_on_a_bad_weight_and_shows_it() -> None:
    params = store(counts(value_nonfinite={(0, 6): 4}, grad_nonfinite={(0, 7): 9}))
    (finding,) = found(nonfinite_parameter, run_of(calm(100), params=params))
    assert finding.severity is Severity.CRITICAL
    assert finding.subject == NAMES[6]
    assert finding.evidence[0].signal.startswith("value_nonfinite")
    assert "never initialised" in finding.cause


def test_fires_on_the_gradient_and_is_critical_when_the_weights_follow() -> None:
    everything = {(5, column): 7 for column in range(8)}
    params = store(counts(grad_nonfinite={(4, 3): 1}, value_nonfinite=everything))
    (finding,) = found(nonfinite_parameter, run_of(calm(60), params=params))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.subject) == (40, NAMES[3])
    assert not finding.evidence[0].signal.startswith("value")
    assert "Resume from a checkpoint before step 40" in finding.remedy


def test_fires_on_the_name_in_the_skip_reason() -> None:
    columns = calm(20, skip_reason=[""] * 20)
    columns["grad_l2_pre_clip"][5] = INF
    columns["skipped"][5] = True
    columns["skip_reason"][5] = "nonfinite_grad:head.weight"
    (finding,) = found(nonfinite_parameter, run_of(columns, FP32))
    assert (finding.subject, finding.first_step) == ("head.weight", 5)


def checkpoint(step: int, *bad: str) -> CheckpointInfo:
    listed: list[dict[str, Any]] = [{"name": name, "kind": "param", "nan": 3} for name in bad]
    return CheckpointInfo(step, Path(f"step-{step}.pt"), not bad, {"bad": listed})


def test_fires_on_the_first_bad_checkpoint_where_nothing_else_tells() -> None:
    saved = [checkpoint(20), checkpoint(40), checkpoint(60, "body.weight", "head.weight")]
    (finding,) = found(nonfinite_parameter, run_of(calm(80), checkpoints=saved))
    assert finding.severity is Severity.CRITICAL
    assert finding.subject == "body.weight"
    assert "before step 60; the one before step 40 is finite" in finding.message


def test_silent_on_an_overflow_that_the_scaler_dealt_with() -> None:
    columns = calm(100, scaler_scale=np.full(100, 65536.0))
    columns["grad_l2_pre_clip"][40] = INF
    columns["skipped"][40] = True
    columns["scaler_scale"][41:] = 32768.0
    params = store(counts(grad_nonfinite={(4, 3): 5}))
    assert found(nonfinite_parameter, run_of(columns, FP16, params=params)) == []
    columns["skip_reason"] = ["nonfinite_grad:a" if i == 40 else "" for i in range(100)]
    assert found(nonfinite_parameter, run_of(columns, FP16)) == []


def test_silent_on_finite_snapshots_and_checkpoints() -> None:
    params = store(counts(grad_nonfinite={}, value_nonfinite={}))
    signals = run_of(calm(100), params=params, checkpoints=[checkpoint(10)])
    assert found(nonfinite_parameter, signals) == []


def test_skipped_where_nothing_tells_a_parameter() -> None:
    reason = nonfinite_parameter.why_skipped(run_of(calm(10)))
    assert "snapshots" in reason
    assert "skip_reason" in reason
