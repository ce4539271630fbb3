"""repeated-update: what the recorder's hooks saw of a loop that steps twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.repeated_update import repeated_update
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP32, calm, run_of


def test_fires_from_the_first_of_the_steps_on() -> None:
    seen = replace(FP32, loop={"reapplied_steps": 90, "first_reapplied": 10})
    (finding,) = found(repeated_update, run_of(calm(100), seen))
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (10, 99)
    assert finding.message.startswith("in 90 steps from 10 on the optimizer was stepped again")


def test_once_is_a_warning_at_its_step() -> None:
    seen = replace(FP32, loop={"reapplied_steps": 1, "first_reapplied": 10})
    (finding,) = found(repeated_update, run_of(calm(100), seen))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (10, 10)


@pytest.mark.parametrize("loop", [{}, {"reapplied_steps": 0}, {"another": 3}], ids=str)
def test_silent_where_nothing_was_seen(loop: dict[str, int]) -> None:
    assert found(repeated_update, run_of(calm(100), replace(FP32, loop=loop))) == []
