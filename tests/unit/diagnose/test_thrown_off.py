"""Runs that their first updates threw off, and sound ones that look like them."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity, Status
from forensics.diagnose.rules.loss_plateau import loss_plateau
from forensics.diagnose.thrown_off import thrown_off
from tests.unit.diagnose.healthy import Columns, found, signals_of

ROWS = 600


def thrown(peak: float, end: float, start: float = 2.33, noise: float = 0.03) -> Columns:
    """A loss and a norm that jump after the first step and are flat ten steps later."""
    rng = np.random.default_rng(3)
    at = np.arange(ROWS)
    up = np.where(at > 0, np.exp(-at / 3.0), 0.0)
    loss = end + noise * rng.normal(size=ROWS) + (peak - end) * up * np.exp(1 / 3.0)
    loss[0] = start
    norm = 0.3 * (1 + 60 * up) * np.exp(0.2 * rng.normal(size=ROWS))
    return {"loss": loss, "grad_l2_pre_clip": norm, "lr": np.full(ROWS, 0.3)}


def test_a_loss_back_at_its_start_for_good_is_a_warning_from_step_0_on() -> None:
    (finding,) = found(loss_plateau, thrown(peak=23.7, end=2.25))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (0, ROWS - 1)
    assert finding.message == (
        "the loss is no better than it began: 2.33 at step 0, up to 23.6 at step 1, 2.26 at the end"
    )
    assert "The learning rate (0.3) is far too high" in finding.cause
    assert "ten times lower" in finding.remedy


def test_the_verdict_blames_the_first_updates_for_the_spikes_and_asks_nothing() -> None:
    columns = thrown(peak=650_000.0, end=2.56)
    columns["loss"][150:153] = 1500.0
    verdict = diagnose(signals_of(columns).run).verdict
    assert verdict.status is Status.FAULTY
    assert not verdict.undecided


def test_a_loss_that_was_learned_and_lost_again_within_50_steps_is_told() -> None:
    columns = thrown(peak=4.3, end=2.25)
    columns["loss"][1:40] = np.linspace(2.3, 1.2, 39)
    columns["loss"][40:43] = 4.3
    (finding,) = [f for f in found(loss_plateau, columns) if f.severity is Severity.WARNING]
    assert "down to 1.2, up to 4.3 at step 40" in finding.message


@pytest.mark.parametrize(
    ("peak", "end", "start"),
    [(23.7, 1.4, 2.33), (4.0, 2.25, 2.33), (9.0, 2.0, 2.33), (23.7, 0.69, 0.69)],
    ids=["learned-after-it", "small-bump", "gained-after-it", "two-sides-of-a-game"],
)
def test_no_warning_on_sound_neighbours(peak: float, end: float, start: float) -> None:
    assert thrown_off(signals_of(thrown(peak, end, start))) is None


def test_no_warning_where_the_norm_stayed_calm() -> None:
    columns = thrown(peak=23.7, end=2.25)
    columns["grad_l2_pre_clip"] = np.full(ROWS, 0.5)
    assert thrown_off(signals_of(columns)) is None


def test_no_warning_where_it_still_falls() -> None:
    columns = thrown(peak=23.7, end=2.25)
    columns["loss"][10:] += np.linspace(1.0, 0.0, ROWS - 10)
    assert thrown_off(signals_of(columns)) is None


def test_no_warning_on_a_first_row_that_is_a_part_of_a_loss() -> None:
    """A window of one step divided by ten: the first row is a tenth of what follows."""
    columns = thrown(peak=2.3, end=1.0, start=0.23)
    columns["grad_l2_pre_clip"] = np.full(ROWS, 0.5)
    assert thrown_off(signals_of(columns)) is None
    del columns["grad_l2_pre_clip"]
    assert thrown_off(signals_of(columns)) is None


def test_no_warning_on_a_value_loss_that_climbs_with_its_returns_and_stays() -> None:
    columns = thrown(peak=12.0, end=12.0)
    columns["loss"][1:40] = np.linspace(2.3, 12.0, 39)
    assert thrown_off(signals_of(columns)) is None
    columns["loss"][1:8] = 1.8
    assert thrown_off(signals_of(columns)) is None


def test_the_middle_of_a_run_is_not_judged() -> None:
    columns = {**thrown(peak=23.7, end=2.25), "step": np.arange(ROWS) + 5000}
    assert thrown_off(signals_of(columns)) is None
