"""depth-growth: a scale that grows layer by layer from the first step on."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.depth_decay import depth_decay
from forensics.diagnose.rules.depth_growth import depth_growth
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.snapshot_runs import any_run, assert_sane, found, noisy, signals_of, store


def test_fires_on_a_gradient_that_explodes_towards_the_input() -> None:
    norms = noisy(np.random.default_rng(0), 5, np.logspace(6, 0, 8))
    signals = signals_of(store({"grad_l2": norms}))
    (finding,) = found(depth_growth, signals)
    assert finding.severity is Severity.WARNING
    assert "grows" in finding.message
    assert not found(depth_decay, signals)


def test_fires_on_activations_with_the_factor_a_layer() -> None:
    acts = store({"std": np.tile(10.0 ** np.arange(8), (3, 1))}, [f"net.{i}" for i in range(8)])
    (finding,) = found(depth_growth, signals_of(activations=acts))
    assert "×10 a layer" in finding.message
    assert finding.evidence[0].values[-1] == 1e7


def test_fires_in_spite_of_layers_without_a_value() -> None:
    norms = noisy(np.random.default_rng(2), 5, np.logspace(6, 0, 8))
    norms[:, 3] = np.nan
    norms[0] = np.inf
    (finding,) = found(depth_growth, signals_of(store({"grad_l2": norms})))
    assert "layer 0" in finding.message


def test_silent_where_the_scale_is_level() -> None:
    acts = store({"std": noisy(np.random.default_rng(3), 3)}, [f"net.{i}" for i in range(8)])
    assert not found(depth_growth, signals_of(activations=acts))


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(depth_growth, signals)
