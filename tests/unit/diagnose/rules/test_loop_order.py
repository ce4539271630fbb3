"""loop-order: what the recorder's hooks saw of a loop that does things in another order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loop_order import loop_order
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP32, calm, run_of


@pytest.mark.parametrize(
    ("kind", "severity", "told"),
    [
        ("late_clip", Severity.ERROR, "clipped after the optimizer had used them"),
        ("bypassed", Severity.ERROR, "without the scaler"),
        ("late_gradients", Severity.WARNING, "those after it"),
        ("unended", Severity.INFO, "holds both"),
        ("remeasured", Severity.INFO, "more than once"),
        ("unmeasured", Severity.INFO, "missing there"),
    ],
)
def test_fires_from_the_first_of_the_steps_on(kind: str, severity: Severity, told: str) -> None:
    seen = replace(FP32, loop={f"{kind}_steps": 40, f"first_{kind}": 10})
    (finding,) = found(loop_order, run_of(calm(100), seen))
    assert finding.severity is severity
    assert (finding.first_step, finding.last_step) == (10, 99)
    assert finding.message.startswith("in 40 steps from 10 on ")
    assert told in finding.message
    assert finding.remedy


@pytest.mark.parametrize("kind", ["unupdated", "updated_twice"])
def test_what_ended_the_run_counts_at_once(kind: str) -> None:
    seen = replace(FP32, loop={f"{kind}_steps": 1, f"first_{kind}": 10})
    (finding,) = found(loop_order, run_of(calm(12), seen))
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (10, 10)


def test_two_faults_are_two_findings() -> None:
    seen = {"late_clip_steps": 9, "first_late_clip": 0, "unended_steps": 9, "first_unended": 4}
    findings = found(loop_order, run_of(calm(100), replace(FP32, loop=seen)))
    assert [f.first_step for f in findings] == [0, 4]


@pytest.mark.parametrize(
    "loop",
    [
        {},
        {"late_clip_steps": 2},
        {"bypassed_steps": 2, "first_bypassed": 97},
        {"reapplied_steps": 90},  # another rule's
        {"unmeasured_steps": 100},  # a loop that does without norms
        {"another_steps": 3},
    ],
    ids=str,
)
def test_silent_where_nothing_was_seen_or_it_is_meant(loop: dict[str, int]) -> None:
    assert found(loop_order, run_of(calm(100), replace(FP32, loop=loop))) == []


def micro(taken: np.ndarray) -> dict[str, object]:
    return {**calm(len(taken)), "skipped": ~taken}


def test_rows_of_micro_batches_are_told_and_steps_left_out_at_will_are_not() -> None:
    rows = np.arange(60)
    seen = replace(FP32, loop={"unstepped_steps": 45, "first_unstepped": 0})
    (finding,) = found(loop_order, run_of(micro(rows % 4 == 3), seen))
    assert finding.severity is Severity.WARNING
    assert "each micro-batch has a row" in finding.message
    at_will = np.isin(rows, [1, 2, 9, 17, 18, 30, 44, 45, 51, 58])
    assert found(loop_order, run_of(micro(at_will), seen)) == []
    assert found(loop_order, run_of(micro(~at_will), seen)) == []
