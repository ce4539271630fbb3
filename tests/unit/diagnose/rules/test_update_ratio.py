"""update-ratio: updates far too large or too small for the weights they go to."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.update_ratio import update_ratio
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.snapshot_runs import (
    NAMES,
    any_run,
    assert_sane,
    found,
    manifest_of,
    noisy,
    signals_of,
    store,
)

WEIGHTS = np.full((40, 8), 5.0)


def ratios(level: float = 1e-3) -> np.ndarray:
    return noisy(np.random.default_rng(0), 40, level)


def test_fires_on_updates_that_replace_the_matrix() -> None:
    ratio = ratios()
    ratio[20:35, 3] = 0.4
    params = store({"update_l2": ratio * WEIGHTS, "value_l2": WEIGHTS})
    (finding,) = found(update_ratio, signals_of(params))
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[3]
    assert (finding.first_step, finding.last_step) == (200, 340)
    assert max(finding.evidence[0].values) == np.float32(0.4)


def test_fires_on_updates_that_fp32_cannot_hold() -> None:
    ratio = ratios()
    ratio[:, 1] = 1e-10
    params = store({"update_l2": ratio * WEIGHTS, "value_l2": WEIGHTS})
    (finding,) = found(update_ratio, signals_of(params))
    assert finding.subject == NAMES[1]
    assert "too small" in finding.message


def test_fires_on_bf16_weights_below_half_their_spacing() -> None:
    params = store({"update_l2": ratios(2e-4) * WEIGHTS, "value_l2": WEIGHTS})
    (finding,) = found(update_ratio, signals_of(params, manifest=manifest_of(dtype="bfloat16")))
    assert "16 bits" in finding.message
    assert finding.evidence[0].threshold == 2.0**-10


def test_silent_on_fp32_weights_with_the_same_updates() -> None:
    params = store({"update_l2": ratios(2e-4) * WEIGHTS, "value_l2": WEIGHTS})
    assert not found(update_ratio, signals_of(params, manifest=manifest_of()))


def test_silent_on_bf16_weights_that_move() -> None:
    params = store({"update_l2": ratios(5e-3) * WEIGHTS, "value_l2": WEIGHTS})
    assert not found(update_ratio, signals_of(params, manifest=manifest_of(dtype="bfloat16")))


def test_silent_in_the_first_steps_and_the_warmup() -> None:
    ratio = ratios()
    ratio[:10] = 0.5
    params = store({"update_l2": ratio * WEIGHTS, "value_l2": WEIGHTS})
    assert not found(update_ratio, signals_of(params))
    ratio[:25] = 0.5
    params = store({"update_l2": ratio * WEIGHTS, "value_l2": WEIGHTS})
    warm = manifest_of(schedule={"warmup_steps": 250})
    assert found(update_ratio, signals_of(params))
    assert not found(update_ratio, signals_of(params, manifest=warm))


def test_silent_on_biases_norms_and_matrices_at_zero() -> None:
    names = ["fc.bias", "norm.weight", "ln_1.weight", "bn.weight", *NAMES[:4]]
    weights = WEIGHTS.copy()
    weights[:, 7] = 0
    updates = ratios() * 5.0
    updates[:, :4] = 5.0
    params = store({"update_l2": updates, "value_l2": weights}, names)
    assert not found(update_ratio, signals_of(params))


def test_silent_where_the_schedule_has_decayed() -> None:
    ratio = ratios()
    ratio[20:] = 1e-12
    log = {"step": np.arange(400), "lr": np.where(np.arange(400) < 200, 1e-3, 1e-12)}
    ratio[:20] = 1e-9
    params = store({"update_l2": ratio * WEIGHTS, "value_l2": WEIGHTS})
    (finding,) = found(update_ratio, signals_of(params, columns=log))
    assert finding.last_step < 200  # what is small after the decay is not held against it
    ratio[:20] = 1e-3
    params = store({"update_l2": ratio * WEIGHTS, "value_l2": WEIGHTS})
    assert not found(update_ratio, signals_of(params, columns=log))


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(update_ratio, signals)
