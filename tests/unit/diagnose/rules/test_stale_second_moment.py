"""stale-second-moment: g²/v jumps, and the loss spikes 1 to 8 steps later."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.stale_second_moment import stale_second_moment
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.snapshot_runs import (
    NAMES,
    any_run,
    assert_sane,
    found,
    noisy,
    signals_of,
    store,
)


def run(
    jumps: Sequence[int], spikes: Sequence[int] = (), lasting: int = 1, nan_at: int = -1
) -> Signals:
    """Snapshots every 10 steps with jumps at some of them, and a loss with spikes at some steps."""
    rng = np.random.default_rng(0)
    ratio = noisy(rng, 100)
    for at in jumps:
        ratio[at, 2] = 20
    loss = 2 + 0.02 * rng.normal(size=1000)
    for at in spikes:
        loss[at : at + lasting] += 1.5
    loss[nan_at] = np.nan if nan_at >= 0 else loss[nan_at]
    columns = {"step": np.arange(1000), "loss": loss, "lr": np.full(1000, 1e-3)}
    return signals_of(store({"v_ratio": ratio}), columns=columns)


def test_fires_as_info_on_one_jump_with_a_spike_that_recovers() -> None:
    (finding,) = found(stale_second_moment, run([50], [503]))
    assert finding.severity is Severity.INFO
    assert (finding.first_step, finding.last_step) == (500, 500)
    assert finding.subject == NAMES[2]
    assert 503 in finding.evidence[1].steps


def test_fires_as_warning_on_three_spikes() -> None:
    (finding,) = found(stale_second_moment, run([30, 50, 70], [303, 506, 708]))
    assert finding.severity is Severity.WARNING
    assert "3 loss spikes" in finding.message
    assert (finding.first_step, finding.last_step) == (300, 700)


def test_fires_as_warning_where_the_loss_stays_up() -> None:
    (finding,) = found(stale_second_moment, run([50], [503], lasting=400))
    assert finding.severity is Severity.WARNING


def test_fires_with_a_nan_in_the_loss_before() -> None:
    assert found(stale_second_moment, run([50], [503], nan_at=498))


def test_silent_where_no_spike_follows() -> None:
    assert not found(stale_second_moment, run([50]))
    assert not found(stale_second_moment, run([50], [515]))
    assert not found(stale_second_moment, run([50], [500]))  # the same step: a common cause


def test_silent_in_the_first_hundred_steps() -> None:
    assert not found(stale_second_moment, run([9], [93]))


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(stale_second_moment, signals)
