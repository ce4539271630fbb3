"""activation-overflow-risk: near the format's limit, dead, jumping, saturated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules.activation_overflow_risk import activation_overflow_risk
from forensics.diagnose.signals import Signals
from tests.unit.diagnose.snapshot_runs import (
    any_run,
    assert_sane,
    found,
    manifest_of,
    noisy,
    signals_of,
    store,
)

MODULES = tuple(f"blocks.{i}.attn" for i in range(8))


def judge(stats: dict[str, np.ndarray], precision: str = "fp16") -> list[Finding]:
    acts = store(stats, MODULES)
    manifest = manifest_of((), precision=precision)
    return found(activation_overflow_risk, signals_of(activations=acts, manifest=manifest))


def growing(top: float, snapshots: int = 60) -> np.ndarray:
    sizes = noisy(np.random.default_rng(0), snapshots, 10.0)
    sizes[:, 5] = 10 * np.geomspace(1, top / 10, snapshots)
    return sizes


def test_fires_within_three_octaves_of_the_limit_and_says_when() -> None:
    (finding,) = judge({"absmax": growing(30_000)})
    assert finding.severity is Severity.WARNING
    assert finding.subject == "blocks.5.attn"
    assert 480 <= finding.first_step <= 520
    # ×3,000 in 590 steps: the missing ×2.18 takes 58 more
    assert "overflows near step 64" in finding.message
    assert finding.evidence[0].threshold == 65504.0


def test_fires_as_error_once_it_overflows() -> None:
    sizes = growing(60_000)
    sizes[57:, 5] = np.inf
    (finding,) = judge({"absmax": sizes})
    assert finding.severity is Severity.ERROR
    assert "overflows" in finding.message


def test_fires_on_units_that_die_for_good() -> None:
    zeros = np.full((40, 8), 0.5)
    zeros[25:, 3] = 1.0
    (finding,) = judge({"zero_share": zeros}, "fp32")
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (250, 390)
    assert finding.subject == "blocks.3.attn"


def test_fires_as_info_on_a_variance_that_jumps() -> None:
    std = noisy(np.random.default_rng(1), 40)
    std[30, 2] = 20
    (finding,) = judge({"std": std}, "fp32")
    assert finding.severity is Severity.INFO
    assert finding.first_step == 300


def test_fires_as_info_on_a_saturated_tanh() -> None:
    level = np.zeros((20, 8))
    stats = {"absmax": np.full((20, 8), 0.9), "mean": level, "std": np.full((20, 8), 0.4)}
    stats["absmax"][:, 4], stats["std"][:, 4] = 1.0, 0.999
    (finding,) = judge(stats, "fp32")
    assert finding.severity is Severity.INFO
    assert finding.subject == "blocks.4.attn"


@pytest.mark.parametrize("precision", ["bf16", "fp32", ""])
def test_silent_where_the_format_is_wide(precision: str) -> None:
    assert not judge({"absmax": growing(60_000)}, precision)


def test_silent_on_the_filling_of_a_mask() -> None:
    sizes = noisy(np.random.default_rng(2), 30, 10.0)
    sizes[:, 1] = 65504.0
    sizes[:, 2] = 10_000.0
    assert not judge({"absmax": sizes})


def test_silent_on_an_inf_that_nothing_led_up_to() -> None:
    sizes = noisy(np.random.default_rng(5), 30, 10.0)
    sizes[:, 1] = np.inf  # a mask filled with -inf
    sizes[20, 3] = np.inf  # the log of 0, once
    assert not judge({"absmax": sizes})


def test_silent_on_large_but_calm_activations_and_partial_zeros() -> None:
    zeros = np.full((30, 8), 0.95)
    zeros[:3] = 1.0  # outputs initialised at zero
    zeros[10:14, 2] = 1.0
    stats = {"absmax": noisy(np.random.default_rng(3), 30, 1500.0), "zero_share": zeros}
    assert not judge(stats)


def test_silent_on_scales_that_grow_without_a_jump() -> None:
    std = noisy(np.random.default_rng(4), 60) * np.geomspace(1, 1e3, 60)[:, None]
    assert not judge({"std": std}, "fp32")


@settings(deadline=None, max_examples=80)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(activation_overflow_risk, signals)
