"""Healthy loss scaling raises no alarm: the simulated runs of many policies, noises and logs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules import RULES
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns
from tests.unit.diagnose.step_logs import FP16, FP32, calm, run_of
from tests.unit.diagnose.test_scaler_rule_properties import RULES as MINE

JUDGED = [rule for rule in RULES if rule.id in MINE]
POLICIES = {
    "torch": Policy(),
    "megatron": Policy(32.0, 1000, 2),
    "deepspeed": Policy(16.0, 1000, 2),
    "from-2^32": Policy(32.0, 2000),
    "interval-200": Policy(16.0, 200),
    "interval-50": Policy(16.0, 50),
    "interval-20": Policy(16.0, 20, 2),
}
NOISES = ("gaussian", "t3", "bursty")


def alarms(columns: dict, manifest: Manifest | None = None) -> list[Finding]:
    """What the rules on non-finite values and loss scaling say above an info."""
    signals = run_of(columns, manifest)
    with np.errstate(all="ignore"):
        return [
            finding
            for rule in JUDGED
            if not rule.why_skipped(signals)
            for finding in rule.find(signals, rule.defaults)
            if finding.severity > Severity.INFO
        ]


def as_logged(columns: dict) -> dict[str, dict]:
    """The same run as different loops log it."""
    rows = len(columns["step"])
    scale = columns["scaler_scale"]
    finite = np.where(columns["skipped"], 0.8, columns["grad_l2_pre_clip"])
    return {
        "as it is": columns,
        "scale after update": {**columns, "scaler_scale": np.append(scale[1:], scale[-1])},
        "no scale": {k: v for k, v in columns.items() if k != "scaler_scale"},
        "no skips": {k: v for k, v in columns.items() if k != "skipped"},
        "neither": {k: v for k, v in columns.items() if k not in ("skipped", "scaler_scale")},
        "no skip is ever told": {**columns, "skipped": np.zeros(rows, dtype=bool)},
        "finite norms on skips": {**columns, "grad_l2_pre_clip": finite},
        "every tenth step": {k: v[::10] for k, v in columns.items()},
        "resumed": {k: v[rows // 3 :] for k, v in columns.items()},
    }


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("rows", [2000, 20_000])
def test_twenty_seeds_raise_no_alarm(name: str, rows: int) -> None:
    for seed in range(20):
        columns = healthy_columns(rows, seed, NOISES[seed % 3], POLICIES[name])
        assert alarms(columns) == [], f"seed {seed}"


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("noise", NOISES)
def test_no_way_of_logging_raises_an_alarm(name: str, noise: str) -> None:
    for rows in (20, 300, 4000):
        logs = as_logged(healthy_columns(rows, 7, noise, POLICIES[name]))
        for form, columns in logs.items():
            assert alarms(columns) == [], f"{form}, {rows} rows"


def test_our_own_record_of_a_healthy_run_raises_no_finding_at_all() -> None:
    for seed in range(6):
        columns = healthy_columns(6000, seed)
        columns["skip_reason"] = np.where(columns["skipped"], "nonfinite_grad:a.weight", "")
        signals = run_of(columns, FP16)
        for rule in JUDGED:
            if not rule.why_skipped(signals):
                assert list(rule.find(signals, rule.defaults)) == [], rule.id


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_scale_of_one_throughout_raises_no_alarm(precision: str) -> None:
    for rows in (1, 20, 5000):
        assert alarms(calm(rows), replace(FP32, precision=precision)) == []
        assert alarms(calm(rows)) == []
