import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity, Status
from forensics.diagnose.rules.unbounded_loss import unbounded_loss
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, signals_of

ROWS = 600


def wrong_sign(rows: int = ROWS, power: float = 2.0, far: float = 1800.0) -> Columns:
    """The negative of a cross-entropy of ten classes, and the norm it drives up."""
    rng = np.random.default_rng(1)
    at = np.linspace(0, 1, rows)
    loss = -2.3 - far * at**power + 0.003 * rng.normal(size=rows)
    return {"loss": loss, "grad_l2_pre_clip": 0.34 * (1 + 900 * at) ** (power - 1)}


def test_fires_on_a_cross_entropy_with_the_wrong_sign() -> None:
    (finding,) = found(unbounded_loss, wrong_sign())
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (0, ROWS - 1)
    assert "falls without end below 0: from -2.3" in finding.message
    assert "sign is wrong" in finding.cause
    assert "logarithm of the number of classes" in finding.remedy


def test_the_sign_is_the_root_of_the_norm_that_explodes() -> None:
    columns = wrong_sign()
    columns["grad_l2_pre_clip"] = 0.3 * np.exp(np.arange(ROWS) / 50)
    diagnosis = diagnose(signals_of(columns).run)
    assert diagnosis.verdict.root is not None
    assert diagnosis.findings[diagnosis.verdict.root].rule == "unbounded-loss"
    rest = {diagnosis.findings[i].rule for i in diagnosis.verdict.consequences}
    assert "gradient-explosion" in rest


def test_a_loss_that_starts_above_0_is_dated_to_where_it_passes_it() -> None:
    columns = wrong_sign()
    columns["loss"] += 4.6
    (finding,) = found(unbounded_loss, columns)
    assert finding.first_step == pytest.approx(21, abs=3)  # 2.3 = 1800 (21 / 599)²
    assert "logarithm of the number" not in finding.remedy


def test_a_steady_fall_with_a_calm_norm_is_an_info_and_an_open_question() -> None:
    columns = wrong_sign(power=1.0, far=300.0)
    (finding,) = found(unbounded_loss, columns)
    assert finding.severity is Severity.INFO
    verdict = diagnose(signals_of(columns).run).verdict
    assert verdict.status is Status.HEALTHY
    assert any("cannot be negative" in text for text in verdict.undecided)
    assert "as far as this log can tell" in verdict.summary


@pytest.mark.parametrize("power", [0.2, 0.4])
def test_silent_on_a_fall_that_slows_down(power: float) -> None:
    assert not found(unbounded_loss, wrong_sign(power=power))


def test_silent_above_0_on_short_logs_and_beside_rewards() -> None:
    columns = wrong_sign()
    assert not found(unbounded_loss, {**columns, "loss": columns["loss"] + 3000})
    assert not found(unbounded_loss, wrong_sign(rows=60))
    rewarded = {**wrong_sign(far=150.0), "reward": np.linspace(0, 1, ROWS)}
    assert not found(unbounded_loss, rewarded)


@pytest.mark.parametrize("kind", ["pretraining", "negative", "reinforcement", "near_zero"])
def test_silent_on_healthy_training(kind: str) -> None:
    for seed in range(3):
        assert not found(unbounded_loss, healthy_columns(kind, seed, 2000))
