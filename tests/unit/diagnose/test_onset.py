"""What a log shows around a value that goes bad."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.onset import (
    clips,
    damage,
    last_value,
    lasts,
    onset,
    settled_from,
    stretch,
    went_on_after,
)
from forensics.diagnose.series import Episode
from tests.unit.diagnose.step_logs import FP32, NAN, calm, run_of


def test_the_lead_up_is_read_from_what_came_before() -> None:
    columns = calm(200)
    columns["loss"][98:120] = NAN
    columns["loss"][97] = 2.5
    columns["grad_l2_pre_clip"][95:98] = 40.0
    found = onset(run_of(columns), 98)
    assert found.last_loss_row == 97
    assert found.grew
    assert not found.calm
    assert found.norm_growth == pytest.approx(40, rel=0.3)
    assert last_value(run_of(columns), found) == "last finite value 2.5 at 97"


def test_a_spike_of_long_ago_is_no_lead_up() -> None:
    columns = calm(200)
    columns["grad_l2_pre_clip"][60] = 1000.0
    assert onset(run_of(columns), 150).calm


def test_without_norms_it_was_neither_calm_nor_growing() -> None:
    found = onset(run_of(calm(50, grad_l2_pre_clip=None)), 20)
    assert not found.calm
    assert not found.grew


def test_a_bad_rate_and_a_bad_update_before_are_seen() -> None:
    columns = calm(50)
    columns["lr"][19] = NAN
    columns["grad_l2_pre_clip"][19] = NAN
    found = onset(run_of(columns), 20)
    assert found.bad_lr
    assert found.applied_before
    columns["skipped"][19] = True
    assert not onset(run_of(columns), 20).applied_before
    assert not onset(run_of(columns), 0).applied_before


def test_whether_it_lasts_and_from_when_on_all_is_bad() -> None:
    bad = np.array([0, 1, 0, 1, 1, 0], dtype=bool)
    written = np.ones(6, dtype=bool)
    episode = Episode(1, 4, 3)
    assert not lasts(bad, written, episode)
    written[5] = False
    assert lasts(bad, written, episode)
    assert settled_from(bad, episode) == 3


@pytest.mark.parametrize(
    ("rows", "folded", "to_end", "skipped", "severity"),
    [
        (1, 1, False, True, Severity.WARNING),
        (4, 1, False, False, Severity.WARNING),
        (5, 1, False, False, Severity.ERROR),
        (2, 2, False, True, Severity.ERROR),
        (1, 1, True, True, Severity.WARNING),
        (1, 1, True, False, Severity.CRITICAL),
        (9, 1, True, True, Severity.CRITICAL),
    ],
)
def test_damage_is_what_it_cost(
    rows: int, folded: int, to_end: bool, skipped: bool, severity: Severity
) -> None:
    columns = calm(50)
    columns["skipped"][20] = skipped
    assert damage(run_of(columns), Episode(20, 20 + rows - 1, rows, folded), to_end) is severity


def test_a_stretch_reads_as_a_clause() -> None:
    signals, bad = run_of(calm(100)), np.zeros(100, dtype=bool)
    bad[[10, 12]] = True
    bad[14:] = True
    assert stretch(signals, Episode(10, 10, 1), bad, False) == "at step 10"
    assert stretch(signals, Episode(10, 12, 2), bad, False) == "at 2 of steps 10 to 12"
    assert stretch(signals, Episode(14, 99, 86), bad, True) == "from step 14 on"
    assert stretch(signals, Episode(10, 99, 88), bad, True) == (
        "first at step 10, and at every step from 14 on"
    )
    assert stretch(signals, Episode(10, 99, 88, 3), bad, False) == (
        "at 88 steps from 10 to 99, in 3 stretches"
    )


def test_a_run_went_on_only_with_a_finite_step_that_was_taken() -> None:
    columns = calm(50)
    columns["loss"][30:] = NAN
    assert went_on_after(run_of(columns), 20)
    assert not went_on_after(run_of(columns), 29)
    skipped = calm(50)
    skipped["skipped"][30:] = True
    assert not went_on_after(run_of(skipped), 29)


def test_clipping_is_known_from_run_json_else_from_the_norms() -> None:
    assert clips(run_of(calm(50), replace(FP32, max_norm=1.0)))
    assert not clips(run_of(calm(50), replace(FP32, max_norm=None)))
    assert clips(run_of(calm(50)))
    assert not clips(run_of(calm(50, grad_l2_post_clip=None)))
