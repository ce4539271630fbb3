"""depth-decay: a scale that falls layer by layer from the first step on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.depth_decay import depth_decay
from forensics.diagnose.rules.depth_growth import depth_growth
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.snapshot_runs import any_run, assert_sane, found, noisy, signals_of, store


def profile(decades: float, snapshots: int = 5) -> np.ndarray:
    """Gradient norms that change by so many decades from the last layer to the first."""
    return noisy(np.random.default_rng(0), snapshots, np.logspace(decades, 0, 8))


def test_fires_on_a_gradient_that_vanishes_towards_the_input() -> None:
    (finding,) = found(depth_decay, signals_of(store({"grad_l2": profile(-5)})))
    assert finding.severity is Severity.WARNING
    assert finding.subject == "blocks.*.fc.weight"
    assert finding.first_step == 0
    assert "layer 7 to" in finding.message
    assert finding.message.count("layer 0")


def test_fires_on_an_activation_that_dies_on_its_way_forward() -> None:
    std = noisy(np.random.default_rng(1), 3, np.logspace(0, -4, 8))
    acts = store({"std": std}, [f"net.{i}" for i in range(8)])
    (finding,) = found(depth_decay, signals_of(activations=acts))
    assert "activation" in finding.message


def test_fires_on_the_worst_family_alone() -> None:
    names = [f"blocks.{i}.{part}.weight" for i in range(8) for part in ("a", "b")]
    norms = np.repeat(profile(-4), 2, axis=1)
    norms[:, 1::2] **= 2
    (finding,) = found(depth_decay, signals_of(store({"grad_l2": norms}, names)))
    assert finding.subject == "blocks.*.b.weight"


@pytest.mark.parametrize("decades", [-2.6, 0.0, 2.6])
def test_silent_within_what_sound_networks_do(decades: float) -> None:
    for seed in range(20):
        norms = noisy(np.random.default_rng(seed), 5, np.logspace(decades, 0, 8))
        signals = signals_of(store({"grad_l2": norms}))
        assert not found(depth_decay, signals)
        assert not found(depth_growth, signals)


def test_silent_on_a_single_odd_layer_and_on_few_layers() -> None:
    norms = profile(0)
    norms[:, 0] = 1e-6
    assert not found(depth_decay, signals_of(store({"grad_l2": norms})))
    short = store({"grad_l2": profile(-5)[:, :5]}, [f"blocks.{i}.fc.weight" for i in range(5)])
    assert not found(depth_decay, signals_of(short))


def test_silent_where_the_record_starts_late() -> None:
    late = store({"grad_l2": profile(-5)}, steps=np.arange(5) * 10 + 5000)
    assert not found(depth_decay, signals_of(late))


def test_silent_on_biases_and_norms() -> None:
    names = [f"blocks.{i}.norm.weight" for i in range(8)]
    assert not found(depth_decay, signals_of(store({"grad_l2": profile(-5)}, names)))


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(depth_decay, signals)
