"""Where a bad gradient was born, as the snapshot of its step tells."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.bad_parameters import born
from forensics.diagnose.rules.nonfinite_gradient import nonfinite_gradient
from forensics.diagnose.rules.nonfinite_step_applied import nonfinite_step_applied
from forensics.diagnose.rules.rank_divergence import rank_divergence
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.snapshot_runs import found, store
from tests.unit.diagnose.step_logs import FP32, NAN, calm, run_of

BAD = 200
IN_BACKWARD = "Every gradient is bad and the loss is finite, so the value was born in backward"


def bad_gradients(*, skipped: bool = False, layers: int = 3) -> Signals:
    """A run of 300 steps whose gradients are NaN at step 200; of so many of 3 layers."""
    counts = np.zeros((2, 3))
    counts[1, 3 - layers :] = 8
    columns = calm(300)
    columns["grad_l2_pre_clip"][BAD : BAD + 1 if skipped else None] = NAN
    if not skipped:
        columns["loss"][BAD + 1 :] = NAN
    columns["skipped"] = np.where(np.arange(300) == BAD, float(skipped), 0.0)
    params = store({"grad_nonfinite": counts}, ["a", "b", "c"], steps=[100, BAD])
    return run_of(columns, FP32, params=params)


def with_ranks(signals: Signals, *losses: float) -> Signals:
    """The same run as rank 0 of one more rank than there are losses, each of step 200."""
    logs = []
    for loss in losses:
        at = np.where(signals.step == BAD, loss, 2.0)
        logs.append(StepTable.from_arrays({"step": signals.step, "loss": at}))
    manifest = Manifest(precision="fp32", world_size=2)
    return Signals(replace(signals.run, ranks=tuple(logs), manifest=manifest))


def test_the_cause_of_a_step_that_was_taken_says_where_the_value_was_born() -> None:
    (finding,) = found(nonfinite_step_applied, bad_gradients())
    assert finding.cause.startswith("Nothing checks the gradients")
    assert IN_BACKWARD in finding.cause


def test_the_cause_of_a_bad_gradient_says_where_the_value_was_born() -> None:
    (finding,) = found(nonfinite_gradient, bad_gradients(skipped=True))
    assert finding.cause.startswith("Born in backward: ")
    assert IN_BACKWARD in finding.cause
    (finding,) = found(nonfinite_gradient, bad_gradients(skipped=True, layers=2))
    assert "born in backward between c, which is nearer the loss" not in finding.cause
    assert "born in backward at c or between it and the loss" in finding.cause


@pytest.mark.parametrize(("losses", "told"), [([2.0], True), ([NAN], False), ([], False)])
def test_a_loss_of_rank_zero_acquits_no_other_rank_s(losses: list[float], told: bool) -> None:
    signals = with_ranks(bad_gradients(skipped=True), *losses)
    assert (IN_BACKWARD in born(signals, BAD)) is told
    (finding,) = found(nonfinite_gradient, signals)
    assert "while rank 0's loss is finite" in finding.message
    assert finding.cause.startswith("Born in backward" if told else "The loss of another rank is")


def test_a_local_gradient_of_one_rank_says_where_its_value_was_born() -> None:
    signals = with_ranks(bad_gradients(skipped=True), 2.0)
    local = np.where(signals.step == BAD, NAN, 1.0)
    zero = StepTable.from_arrays({"step": signals.step, "grad_l2_local": local})
    (finding,) = found(rank_divergence, Signals(replace(signals.run, rank_zero=zero)))
    assert finding.message.startswith("the local gradient norm of rank 0 is NaN")
    assert IN_BACKWARD in finding.cause


def test_a_step_without_a_snapshot_tells_nothing() -> None:
    assert born(bad_gradients(), 150) == ""
    assert born(bad_gradients(), 100) == ""
