import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_plateau import loss_plateau
from tests.unit.diagnose.healthy import found, healthy_columns, serious


def flat(rows: int, noise: float, level: float = 2.303, seed: int = 0) -> np.ndarray:
    return level * np.exp(noise * np.random.default_rng(seed).normal(size=rows))


@pytest.mark.parametrize(
    ("rows", "noise"), [(200, 0.005), (2_000, 0.02), (20_000, 0.05), (100_000, 0.1)]
)
def test_fires_when_the_loss_never_fell(rows: int, noise: float) -> None:
    (finding,) = found(loss_plateau, {"loss": flat(rows, noise)})
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (0, rows - 1)
    assert "never fell" in finding.message


def test_fires_though_a_third_of_the_losses_is_nan() -> None:
    loss = flat(3_000, 0.02)
    loss[::3] = np.nan
    assert [f.severity for f in found(loss_plateau, {"loss": loss})] == [Severity.WARNING]


def test_the_cause_fits_what_is_seen() -> None:
    loss = flat(2_000, 0.01)
    assert "rate is 0" in found(loss_plateau, {"loss": loss, "lr": np.zeros(2_000)})[0].cause
    zero = {"loss": loss, "grad_l2_pre_clip": np.zeros(2_000)}
    assert "graph is cut" in found(loss_plateau, zero)[0].cause
    normal = {"loss": loss, "grad_l2_pre_clip": np.full(2_000, 0.5), "lr": np.full(2_000, 1e-3)}
    assert "0.001" in found(loss_plateau, normal)[0].cause


def test_a_loss_that_has_stopped_is_an_info() -> None:
    (finding,) = found(loss_plateau, healthy_columns("floor", 0, 4_000))
    assert finding.severity is Severity.INFO
    assert finding.first_step < 1_000
    assert "gained nothing" in finding.message


@pytest.mark.parametrize(("end", "advice"), [(1e-3, "a decay of"), (1e-4, "has come down already")])
def test_no_decay_is_advised_where_the_rate_has_come_down(end: float, advice: str) -> None:
    columns = healthy_columns("floor", 0, 4_000)
    columns["lr"] = np.geomspace(1e-3, end, 4_000)
    (finding,) = found(loss_plateau, columns)
    assert advice in finding.remedy


def test_silent_on_fine_tuning_that_gains_two_percent() -> None:
    for seed in range(10):
        assert not serious(found(loss_plateau, healthy_columns("flat_fine_tuning", seed, 20_000)))


def test_silent_on_the_middle_of_a_run() -> None:
    assert not serious(found(loss_plateau, healthy_columns("late_segment", 0, 20_000)))


def test_silent_while_the_loss_falls() -> None:
    assert not found(loss_plateau, healthy_columns("pretraining", 0, 2_000))


def test_silent_on_noise_and_on_losses_about_zero() -> None:
    assert not found(loss_plateau, {"loss": flat(2_000, 0.4)})
    assert not found(loss_plateau, {"loss": flat(2_000, 0.01) - 2.303})
