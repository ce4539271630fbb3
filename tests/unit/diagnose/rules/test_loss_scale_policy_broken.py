"""loss-scale-policy-broken: moves of the scale that no policy makes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_scale_policy_broken import loss_scale_policy_broken
from tests.unit.diagnose.grad_scaler import Policy, healthy_columns, run_scaler
from tests.unit.diagnose.snapshot_runs import found
from tests.unit.diagnose.step_logs import FP16, INF, NAN, calm, run_of


def sawtooth(rows: int, interval: int = 500) -> dict:
    """A scaler that overflows as soon as it has grown."""
    limit = np.full(rows, 16.5)
    scale, skipped = run_scaler(limit, Policy(16.0, interval))
    columns = calm(rows, scaler_scale=scale, skipped=skipped)
    columns["grad_l2_pre_clip"][skipped] = INF
    return columns


def test_fires_on_a_fall_without_a_skip() -> None:
    columns = sawtooth(4000)
    columns["scaler_scale"][2600:] /= 2
    (finding,) = found(loss_scale_policy_broken, run_of(columns))
    assert finding.severity is Severity.WARNING
    assert abs(finding.first_step - 2600) <= 1
    assert "fell from 65,536 to 32,768" in finding.message
    assert "though no step was skipped" in finding.message


def test_fires_on_skips_without_a_fall() -> None:
    columns = sawtooth(4000)
    columns["skipped"][2600:2604] = True
    columns["grad_l2_pre_clip"][2600:2604] = INF
    (finding,) = found(loss_scale_policy_broken, run_of(columns))
    assert finding.first_step == 2600
    assert "was skipped at a scale of 65,536 and the scale did not fall" in finding.message


def test_fires_on_one_skip_without_a_fall_where_the_policy_is_known() -> None:
    assert FP16.scaler is not None
    manifest = replace(FP16, scaler=replace(FP16.scaler, growth_interval=500))
    columns = sawtooth(4000)
    columns["skipped"][2600] = True
    (finding,) = found(loss_scale_policy_broken, run_of(columns, manifest))
    assert finding.first_step == 2600
    assert found(loss_scale_policy_broken, run_of(columns)) == []


def test_fires_on_growth_before_its_time() -> None:
    columns = sawtooth(6000)
    early = int(np.flatnonzero(columns["skipped"])[6]) + 200
    columns["scaler_scale"][early + 1 :] *= 2
    (finding, *_) = found(loss_scale_policy_broken, run_of(columns))
    assert finding.first_step == early
    assert "before its interval of 500 steps" in finding.message


def test_fires_on_a_scaler_that_started_anew() -> None:
    columns = sawtooth(6000)
    columns["scaler_scale"] /= 64
    columns["scaler_scale"][3100:] *= 64
    (finding,) = found(loss_scale_policy_broken, run_of(columns))
    assert abs(finding.first_step - 3100) <= 1
    assert "jumped from 1,024 to 65,536" in finding.message
    assert "scaler.state_dict()" in finding.remedy


@pytest.mark.parametrize("interval", [20, 200, 2000])
@pytest.mark.parametrize("lag", [0, 1])
def test_silent_on_what_policies_do(interval: int, lag: int) -> None:
    for seed, hysteresis in ((0, 1), (1, 2)):
        policy = Policy(32.0, interval, hysteresis)
        columns = healthy_columns(12_000, seed, policy=policy)
        scale = columns["scaler_scale"]
        columns["scaler_scale"] = np.append(scale[lag:], np.repeat(scale[-1], lag))
        assert found(loss_scale_policy_broken, run_of(columns)) == []


def test_silent_on_gaps_guards_and_bad_losses() -> None:
    columns = sawtooth(6000)
    columns["skipped"][[2600, 2601, 2602, 2603, 2610]] = True
    columns["loss"][2600:2604] = NAN
    columns["skip_reason"] = ["other" if i == 2610 else "" for i in range(6000)]
    assert found(loss_scale_policy_broken, run_of(columns)) == []
    sparse = {name: np.asarray(values)[::7] for name, values in sawtooth(6000).items()}
    assert found(loss_scale_policy_broken, run_of(sparse)) == []


def test_silent_where_the_scale_never_falls() -> None:
    columns = calm(100, scaler_scale=np.full(100, 1024.0))
    columns["skipped"][40:60] = True
    assert found(loss_scale_policy_broken, run_of(columns)) == []


def test_a_scale_set_lower_by_hand_is_dated_where_it_fell() -> None:
    scale = np.full(2000, 65536.0)
    scale[800:] = 8192.0
    scale[1300:] = 16384.0
    (finding,) = found(loss_scale_policy_broken, run_of(calm(2000, scaler_scale=scale)))
    assert finding.first_step == 799
    assert finding.message.startswith("loss scale jumped from 65,536 to 8,192 at step 799")
