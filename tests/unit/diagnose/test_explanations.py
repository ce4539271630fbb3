"""Which finding explains which, where the signals between them decide."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from tests.unit.diagnose.test_verdict import bad_from, finding, root_of, signals_of, verdict_on

INFO, W, E = Severity.INFO, Severity.WARNING, Severity.ERROR


def test_a_nan_that_passed_explains_no_clipping_long_after_it() -> None:
    once = np.full(1000, 2.0)
    once[500] = np.nan
    nan, clip = finding("nonfinite-loss", W, 500, 500), finding("clipping-frequent", INFO, 600)
    verdict, _ = verdict_on(signals_of(loss=once), nan, clip)
    assert (verdict.consequences, verdict.unrelated) == ((), (1,))
    verdict, _ = verdict_on(signals_of(loss=bad_from(500)), nan, clip)
    assert verdict.consequences == (1,)


def test_a_spike_that_the_loss_did_not_come_back_from_is_the_root_of_its_rise() -> None:
    rise, jump = finding("loss-divergence", E, 701), finding("loss-spike", W, 701)
    assert root_of(signals_of(), finding("gradient-spike", W, 700, 700), rise, jump) == (
        "gradient-spike"
    )
    # One that passed is no cause, and one within the rise is part of it.
    assert root_of(signals_of(), finding("gradient-spike", INFO, 700, 700), rise, jump) == (
        "loss-divergence"
    )
    assert root_of(signals_of(), finding("gradient-spike", W, 760, 760), rise) == "loss-divergence"
