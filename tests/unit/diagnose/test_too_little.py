"""A rule on snapshots that has too little to go by is SKIPPED and says why, never CLEAR."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Outcome, RuleOutcome
from forensics.diagnose.rules import RULES
from forensics.diagnose.snapshots import too_few_snapshots
from tests.unit.diagnose.snapshot_runs import NAMES, manifest_of, noisy, signals_of, store
from tests.unit.diagnose.step_logs import calm, run_of

OF_PARAMS = ("frozen-parameter", "update-ratio", "weight-growth", "dominant-parameter")


def outcomes(snapshots: int, names: tuple[str, ...] = NAMES, apart: int = 20) -> dict[str, str]:
    """The outcome of every rule on a calm run with so many snapshots, in a word and its reason."""
    rng = np.random.default_rng(1)
    statistics = ("grad_l2", "value_l2", "update_l2", "v_ratio")
    level = dict(zip(statistics, (1.0, 50.0, 0.05, 1.0), strict=True))
    params = store(
        {name: noisy(rng, snapshots, level[name], len(names)) for name in statistics},
        names,
        np.arange(snapshots) * apart,
    )
    activations = store(
        {"std": noisy(rng, snapshots, 1.0, len(names))}, names, np.arange(snapshots) * apart
    )
    run = signals_of(params, activations, manifest=manifest_of(names)).run
    diagnosis = diagnose(run)
    return {one.rule: _told(one) for one in diagnosis.rules}


def _told(one: RuleOutcome) -> str:
    return f"{one.outcome} {one.reason}".strip()


def test_enough_snapshots_are_judged() -> None:
    told = outcomes(30)
    for rule in (*OF_PARAMS, "stale-second-moment", "activation-overflow-risk", "depth-decay"):
        assert told[rule] == Outcome.CLEAR, rule


@pytest.mark.parametrize(
    ("rule", "needed"),
    [
        ("frozen-parameter", 5),
        ("update-ratio", 8),
        ("weight-growth", 12),
        ("dominant-parameter", 9),
        ("stale-second-moment", 9),
        ("activation-overflow-risk", 5),
    ],
)
def test_too_few_snapshots_are_not(rule: str, needed: int) -> None:
    told = outcomes(3)[rule]
    assert told.startswith("skipped too few snapshots")
    assert f"{needed} needed" in told


def test_a_network_without_a_stack_of_layers_has_no_trend_with_depth() -> None:
    names = ("embed.weight", "head.weight")
    assert outcomes(20, names)["depth-decay"] == "skipped too few like layers"
    assert outcomes(20, names)["depth-growth"] == "skipped too few like layers"


def test_no_state_beside_the_weights_is_no_sound_state() -> None:
    rng = np.random.default_rng(0)
    params = store({"grad_l2": noisy(rng, 9), "value_nonfinite": np.zeros((9, 8))})
    diagnosis = diagnose(signals_of(params).run)
    told = {one.rule: _told(one) for one in diagnosis.rules}
    assert told["poisoned-state"] == "skipped no state beside the weights was recorded"
    assert told["nonfinite-parameter"] == "clear"


def test_a_finding_is_told_whatever_is_too_little() -> None:
    absent = np.zeros((3, 8), bool)
    absent[:, :4] = True
    norms = noisy(np.random.default_rng(0), 3)
    params = store({"grad_l2": norms}, absent={"grad_l2": absent})
    diagnosis = diagnose(signals_of(params, manifest=manifest_of()).run)
    told = {one.rule: one.outcome for one in diagnosis.rules}
    assert told["frozen-parameter"] is Outcome.FIRED


def test_the_reason_says_how_many_and_how_far() -> None:
    steps = np.array([0, 4, 8], dtype=np.int64)
    assert too_few_snapshots(steps, 3) == ""
    assert too_few_snapshots(steps, 5) == "too few snapshots (3 that count, 5 needed)"
    assert too_few_snapshots(steps, 3, 20) == "snapshots of 8 steps only (20 needed)"
    assert too_few_snapshots(steps[:0], 1) == "too few snapshots (0 that count, 1 needed)"


def test_a_short_log_is_not_clear_of_what_takes_longer_to_show() -> None:
    columns = calm(60)
    columns["loss"] = np.linspace(3, 2, 60) + 0.01 * np.random.default_rng(0).normal(size=60)
    told = {one.rule: _told(one) for one in diagnose(run_of(columns).run).rules}
    assert told["loss-plateau"] == "skipped too few losses (100 needed)"
    assert told["clipping-every-step"] == "skipped too few norms (300 needed)"
    assert told["clipping-frequent"] == "skipped too few norms (300 needed)"
    assert told["loss-divergence"] == "clear"
    short = {name: values[:11] for name, values in columns.items()}
    told = {one.rule: _told(one) for one in diagnose(run_of(short).run).rules}
    assert told["loss-divergence"] == "skipped too few losses (12 needed)"


def test_every_rule_that_may_be_short_of_data_says_what_it_needs() -> None:
    short = {rule.id for rule in RULES if rule.too_little is not None}
    assert short >= {*OF_PARAMS, "depth-decay", "depth-growth", "poisoned-state"}
    assert all(rule.parts or rule.needs for rule in RULES if rule.id in short)
