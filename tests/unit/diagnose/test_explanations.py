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


def test_a_norm_that_grows_until_nothing_is_finite_is_the_root_of_that() -> None:
    """And not a batch: neither the NaN nor the rise of the loss beside it stands alone."""
    norm = np.full(1000, 1.0)
    norm[500:503], norm[503:] = (8.0, 14.0, 25.0), np.nan
    spike, jump = finding("gradient-spike", W, 500, 502), finding("loss-spike", W, 500, 502)
    nan = finding("nonfinite-loss", Severity.CRITICAL, 503)
    grown = signals_of(loss=bad_from(503), grad_l2_pre_clip=norm)
    verdict, ordered = verdict_on(grown, spike, jump, nan)
    assert verdict.root is not None
    assert ordered[verdict.root].rule == "gradient-spike"
    assert len(verdict.consequences) == 2
    assert not any("hard batch" in question for question in verdict.undecided)
    # A spike that fell again before it, and one that passed long before it, are no cause.
    for values in ((8.0, 25.0, 3.0), (25.0, 8.0, 14.0)):
        norm[500:503] = values
        fell = signals_of(loss=bad_from(503), grad_l2_pre_clip=norm)
        assert root_of(fell, spike, nan) == "nonfinite-loss"
    norm[500:510] = (8.0, 14.0, 25.0, *7 * [1.0])
    passed = signals_of(loss=bad_from(510), grad_l2_pre_clip=norm)
    assert root_of(passed, spike, finding("nonfinite-loss", Severity.CRITICAL, 510)) == (
        "nonfinite-loss"
    )


def test_a_spike_does_not_follow_a_rise_that_began_after_it() -> None:
    rise = finding("loss-divergence", E, 701)
    verdict, _ = verdict_on(signals_of(), rise, finding("gradient-spike", INFO, 600, 600))
    assert (verdict.consequences, verdict.unrelated) == ((), (1,))
    verdict, _ = verdict_on(signals_of(), rise, finding("gradient-spike", INFO, 695, 695))
    assert verdict.consequences == (1,)


def test_the_rise_of_a_sparse_log_follows_the_spike_of_the_rows_before_it() -> None:
    """Rows of 10 steps: the norm jumped in 681–690, and the loss rises from 701–710 on."""
    sparse = signals_of(step=np.arange(10, 10010, 10))
    rise, jump = finding("loss-divergence", E, 710), finding("loss-spike", W, 710, 730)
    spike = finding("gradient-spike", W, 690, 750)
    verdict, ordered = verdict_on(sparse, spike, rise, jump)
    assert verdict.root is not None
    assert ordered[verdict.root] is spike
    assert len(verdict.consequences) == 2
    assert root_of(sparse, finding("gradient-spike", W, 500, 750), rise) == "loss-divergence"


def test_a_nan_in_the_next_row_of_a_log_with_gaps_follows_the_gradient() -> None:
    norm = np.full(1000, 1.0)
    norm[500:] = np.nan
    step = np.arange(1000) + 20 * (np.arange(1000) > 500)
    loss = bad_from(501)
    gappy = signals_of(step=step, loss=loss, grad_l2_pre_clip=norm, skipped=1000 * [None])
    gradient = finding("nonfinite-gradient", Severity.CRITICAL, 500)
    nan = finding("nonfinite-loss", Severity.CRITICAL, 521)
    verdict, _ = verdict_on(gappy, gradient, nan)
    assert (verdict.root, verdict.consequences) == (0, (1,))


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
