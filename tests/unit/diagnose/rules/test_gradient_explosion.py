import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.gradient_explosion import gradient_explosion
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, serious


def growing(rows: int, onset: int, rate: float, seed: int = 0, noise: float = 0.2) -> Columns:
    columns = healthy_columns("pretraining", seed, rows)
    rng = np.random.default_rng(seed)
    grown = np.exp(rate * np.maximum(0, np.arange(rows) - onset))
    columns["grad_l2_pre_clip"] = 0.5 * np.exp(noise * rng.normal(size=rows)) * grown
    columns["grad_l2_post_clip"] = np.minimum(columns["grad_l2_pre_clip"], 1.0)
    return columns


@pytest.mark.parametrize(
    ("rows", "onset", "rate"),
    [
        (40, 0, 0.3),
        (100, 20, 0.2),
        (300, 200, 0.1),
        (2_000, 1_500, 0.02),
        (20_000, 15_000, 0.002),
        (200_000, 150_000, 0.0005),
        (200_000, 199_000, 0.02),
    ],
)
def test_fires_at_exponential_growth_from_its_onset(rows: int, onset: int, rate: float) -> None:
    (finding,) = found(gradient_explosion, growing(rows, onset, rate))
    assert finding.severity is Severity.ERROR
    assert abs(finding.first_step - onset) <= max(5, 0.03 * rows)
    assert finding.last_step == rows - 1


def test_fires_at_the_smooth_blow_up_of_a_rate_that_is_too_high() -> None:
    at = np.arange(50)
    columns = {
        "loss": np.minimum(0.5 * np.exp(0.5 * at), 1e30),
        "grad_l2_pre_clip": 2.0 * np.exp(0.25 * at),
        "lr": np.full(50, 0.5),
    }
    columns["loss"][45:] = np.inf
    columns["grad_l2_pre_clip"][45:] = np.nan
    (finding,) = found(gradient_explosion, columns)
    assert finding.severity is Severity.ERROR
    assert finding.first_step <= 2
    assert "non-finite at step 45" in finding.message
    assert "learning rate" in finding.remedy


def test_fires_though_nan_lies_in_its_windows() -> None:
    columns = growing(2_000, 1_000, 0.02)
    columns["grad_l2_pre_clip"][::17] = np.nan
    columns["grad_l2_pre_clip"][1_050:1_060] = np.inf
    (finding,) = serious(found(gradient_explosion, columns))
    assert abs(finding.first_step - 1_000) <= 60


def test_growth_that_came_back_is_told_as_that() -> None:
    columns = growing(4_000, 1_000, 0.02, noise=0.1)
    columns["grad_l2_pre_clip"][1_250:] = 0.5
    (finding,) = found(gradient_explosion, columns)
    assert finding.severity is Severity.INFO
    assert "came back" in finding.message
    assert finding.last_step < 1_300


def test_a_jump_of_the_rate_dates_the_growth() -> None:
    columns = growing(2_000, 1_000, 0.03)
    columns["lr"] = np.where(np.arange(2_000) < 1_003, 1e-4, 1e-2)
    assert found(gradient_explosion, columns)[0].first_step in range(1_003, 1_012)


def test_silent_on_adapters_that_start_at_zero() -> None:
    for seed in range(5):
        assert not found(gradient_explosion, healthy_columns("low_rank", seed, 2_000))


def test_silent_on_one_step_up() -> None:
    columns = growing(2_000, 5_000, 0.0)
    columns["grad_l2_pre_clip"][1_000:] *= 100
    assert not found(gradient_explosion, columns)


def test_the_advice_fits_the_clip() -> None:
    (finding,) = found(gradient_explosion, growing(2_000, 1_500, 0.02))
    assert "clip at 1 was in force" in finding.remedy
    columns = growing(2_000, 1_500, 0.02)
    del columns["grad_l2_post_clip"]
    assert "clip the global norm" in found(gradient_explosion, columns)[0].remedy
