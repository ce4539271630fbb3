"""The condition that finds a spike, as a bisection would read it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.spike_condition import spike_options
from forensics.runlog.steps import StepTable


def root(rule: str = "loss-spike", step: int = 150) -> Finding:
    return Finding(
        rule=rule, severity=Severity.WARNING, message="", first_step=step, last_step=step
    )


def table(**at: float) -> StepTable:
    """A loss of 1 to 1.5 and a norm of 2 for 300 steps, but for ``loss_150=…``."""
    columns: dict[str, Any] = {
        "loss": [1.0 + 0.1 * (i % 6) for i in range(300)],
        "grad_l2_pre_clip": [2.0] * 300,
    }
    for name, value in at.items():
        column, _, step = name.rpartition("_")
        columns[column][int(step)] = value
    return StepTable.from_arrays(columns)


def test_the_limit_is_between_the_spike_and_the_highest_row_before_it() -> None:
    assert spike_options(table(loss_150=11_196.0), root()) == " --bad 'loss>130'"
    assert spike_options(table(loss_150=11_196.0, loss_149=600.0), root()) == " --bad 'loss>2600'"


def test_a_gradient_spike_is_one_of_the_norm() -> None:
    rows = table(grad_l2_pre_clip_150=800.0)
    assert spike_options(rows, root("gradient-spike")) == " --bad 'norm>40'"


def test_rows_long_before_that_were_as_high_are_left_out() -> None:
    assert spike_options(table(loss_150=15.0, loss_0=90.0), root()) == " --bad 'loss>4.7' --from 50"


@pytest.mark.parametrize(
    ("rows", "finding"),
    [
        (table(loss_150=1e4), root("loss-divergence")),  # no spike: any limit is passed by chance
        (table(loss_150=2.0), root()),  # hardly above the rows before it
        (table(loss_150=math.inf), root()),  # bad without any condition
        (table(loss_0=1e4), root(step=0)),  # nothing before it to tell it from
        (table(), root(step=999)),  # not in the log
        (StepTable.from_arrays({"lr": [0.1] * 300}), root()),
    ],
)
def test_where_no_limit_tells_it_there_is_none(rows: StepTable, finding: Finding) -> None:
    assert spike_options(rows, finding) == ""
