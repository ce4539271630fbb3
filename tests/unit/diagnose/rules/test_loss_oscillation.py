import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_oscillation import loss_oscillation
from tests.unit.diagnose.healthy import Columns, found, healthy_columns


def swinging(rows: int, start: int, size: float, noise: float, end: int | None = None) -> Columns:
    rng = np.random.default_rng(0)
    at = np.arange(rows)
    inside = (at >= start) & (at < (rows if end is None else end))
    loss = 2 * np.exp(noise * rng.normal(size=rows)) * (1 + size * (-1.0) ** at * inside)
    return {"loss": loss, "lr": np.full(rows, 0.1)}


@pytest.mark.parametrize(
    ("rows", "start", "size", "noise"),
    [
        (80, 0, 0.1, 0.02),
        (200, 100, 0.05, 0.02),
        (2_000, 1_000, 0.05, 0.02),
        (20_000, 15_000, 0.04, 0.03),
    ],
)
def test_fires_at_swings_of_period_two(rows: int, start: int, size: float, noise: float) -> None:
    (finding,) = found(loss_oscillation, swinging(rows, start, size, noise))
    assert finding.severity is Severity.WARNING
    assert abs(finding.first_step - start) <= 10
    assert finding.last_step >= rows - 10
    assert "Halve the learning rate, from 0.1," in finding.remedy


def test_swings_that_end_are_told_to_their_end() -> None:
    (finding,) = found(loss_oscillation, swinging(8_000, 3_000, 0.1, 0.02, end=5_000))
    assert abs(finding.first_step - 3_000) <= 10
    assert abs(finding.last_step - 5_000) <= 10


def test_fires_though_spikes_and_nan_lie_in_it() -> None:
    columns = swinging(2_000, 1_000, 0.1, 0.02)
    columns["loss"][1_100::151] *= 20
    columns["loss"][1_103::97] = np.nan
    (finding,) = found(loss_oscillation, columns)
    assert abs(finding.first_step - 1_000) <= 40


def test_clipping_of_most_steps_is_named() -> None:
    columns = swinging(600, 0, 0.2, 0.02)
    columns["grad_l2_pre_clip"] = np.full(600, 5.0) + np.arange(600) * 1e-3
    columns["grad_l2_post_clip"] = np.ones(600)
    assert "clipped" in found(loss_oscillation, columns)[0].remedy


def test_silent_while_the_loss_falls() -> None:
    columns = swinging(2_000, 0, 0.1, 0.02)
    columns["loss"] *= np.linspace(2, 1, 2_000)
    assert not found(loss_oscillation, columns)


def test_silent_on_white_noise_and_on_batches_in_a_fixed_order() -> None:
    for seed in range(20):
        assert not found(loss_oscillation, healthy_columns("small_batch", seed, 4_000))
        assert not found(loss_oscillation, healthy_columns("unshuffled", seed, 4_000))


def test_silent_on_swings_below_two_percent() -> None:
    assert not found(loss_oscillation, swinging(2_000, 0, 0.01, 0.001))
