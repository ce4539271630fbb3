"""dominant-parameter: who left its own baseline first, and who went furthest."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.dominant_parameter import dominant_parameter
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


def growing(factor: float, column: int = 5, since: int = 60, until: int = 80) -> np.ndarray:
    norms = noisy(np.random.default_rng(0), 80)
    norms[since:until, column] *= np.geomspace(1, factor, until - since)
    return norms


def test_fires_at_the_parameter_that_leaves_its_baseline() -> None:
    (finding,) = found(dominant_parameter, signals_of(store({"grad_l2": growing(100)})))
    assert finding.subject == NAMES[5]
    assert 600 <= finding.first_step <= 700  # ×2 is reached in a sixth of the growth
    assert finding.last_step == 790
    assert finding.severity is Severity.WARNING  # it carries nearly all of the norm to the end
    assert any("share" in e.signal and e.values[0] > 0.9 for e in finding.evidence)


def test_fires_as_info_where_it_comes_back() -> None:
    (finding,) = found(dominant_parameter, signals_of(store({"grad_l2": growing(100, until=70)})))
    assert finding.severity is Severity.INFO
    assert finding.last_step < 700


def test_fires_naming_the_first_and_the_furthest() -> None:
    norms = growing(30, column=2, since=55)
    norms[65:, 6] *= np.geomspace(1, 1000, 15)
    (finding,) = found(dominant_parameter, signals_of(store({"grad_l2": norms})))
    assert finding.subject == NAMES[2]
    assert NAMES[6] in finding.message


def test_fires_in_spite_of_nan_in_the_window() -> None:
    norms = growing(100)
    norms[30:34, 5] = np.nan
    norms[70] = np.inf
    (finding,) = found(dominant_parameter, signals_of(store({"grad_l2": norms})))
    assert finding.subject == NAMES[5]
    assert finding.first_step < 700


def test_fires_at_the_same_step_when_snapshots_are_appended() -> None:
    norms = growing(100, until=70)
    later = np.concatenate((norms, noisy(np.random.default_rng(1), 50)))
    first = found(dominant_parameter, signals_of(store({"grad_l2": norms})))
    second = found(dominant_parameter, signals_of(store({"grad_l2": later})))
    assert [f.first_step for f in first] == [f.first_step for f in second]


def test_silent_when_all_grow_together() -> None:
    norms = noisy(np.random.default_rng(2), 80)
    norms[60:] *= np.geomspace(1, 1000, 20)[:, None]
    assert not found(dominant_parameter, signals_of(store({"grad_l2": norms})))


def test_silent_when_the_parameter_is_small_beside_the_others() -> None:
    norms = growing(100)
    norms[:, 5] *= 1e-4
    assert not found(dominant_parameter, signals_of(store({"grad_l2": norms})))


def test_silent_on_what_settles_in_the_first_steps() -> None:
    norms = noisy(np.random.default_rng(3), 80)
    norms[9:20, 4] *= 50
    steps = np.arange(80)
    assert not found(dominant_parameter, signals_of(store({"grad_l2": norms}, steps=steps)))


def test_silent_on_health_for_many_seeds() -> None:
    for seed in range(20):
        norms = noisy(np.random.default_rng(seed), 100, np.geomspace(3, 0.3, 100)[:, None])
        assert not found(dominant_parameter, signals_of(store({"grad_l2": norms}))), seed


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(dominant_parameter, signals)
