"""The chain of events: which lead-up it opens with."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.timeline import timeline
from tests.unit.diagnose.snapshot_runs import signals_of

BAD = 150
ROOT = Finding(
    rule="nonfinite-loss", severity=Severity.CRITICAL, message="", first_step=BAD, last_step=199
)


def lead_up(norm: np.ndarray) -> list[str]:
    """What the timeline of a run with these norms, bad from row 150 on, says before it."""
    norm = norm.astype(float)
    norm[BAD:] = np.nan
    columns = {"step": np.arange(200), "loss": np.full(200, 2.0), "grad_l2_pre_clip": norm}
    told = timeline(signals_of(columns=columns), ROOT, ())
    return [entry.when for entry in told if entry.title == "lead-up"]


def swinging(last: float) -> np.ndarray:
    """Norms between a seventh of 1 and 7, as small batches make them; the last one given."""
    norm = np.exp(2 * np.sin(np.arange(200.0)))
    norm[BAD - 1] = last
    return norm


@pytest.mark.parametrize(
    ("last", "told"), [(40.0, ["149→"]), (5.0, []), (0.15, []), (1e-3, ["149→"])]
)
def test_a_lead_up_leaves_the_range_of_the_run(last: float, told: list[str]) -> None:
    assert lead_up(swinging(last)) == told


def test_a_norm_that_fell_by_a_little_more_than_the_factor_is_no_lead_up() -> None:
    norm = np.where(np.arange(200) % 2 == 0, 1.0, 0.5)
    norm[BAD - 1] = 0.2
    assert lead_up(norm) == []


@pytest.mark.parametrize("rate", [0.2, -0.2])
def test_a_steady_rise_or_fall_is_told_from_where_it_left_the_median(rate: float) -> None:
    norm = np.full(200, 1.0)
    norm[BAD - 30 : BAD] = np.exp(rate * np.arange(30))
    assert lead_up(norm) == ["126→"]
