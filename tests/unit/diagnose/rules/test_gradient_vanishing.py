import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.gradient_vanishing import gradient_vanishing
from forensics.runlog.manifest import Manifest, ParameterInfo
from tests.unit.diagnose.healthy import Columns, found, healthy_columns


def flat_from(columns: Columns, row: int) -> Columns:
    columns["loss"][row:] = columns["loss"][row] * np.exp(
        0.01 * np.random.default_rng(0).normal(size=len(columns["loss"]) - row)
    )
    return columns


@pytest.mark.parametrize(
    ("rows", "at"), [(60, 30), (300, 100), (2_000, 400), (2_000, 1_700), (100_000, 60_000)]
)
def test_fires_where_the_norm_falls_to_nothing_at_once(rows: int, at: int) -> None:
    columns = flat_from(healthy_columns("pretraining", 0, rows), at)
    columns["grad_l2_pre_clip"][at:] *= 1e-7
    (finding,) = found(gradient_vanishing, columns)
    assert finding.first_step == at
    assert finding.last_step == rows - 1
    assert "at once" in finding.cause


def test_fires_where_it_falls_little_by_little() -> None:
    columns = flat_from(healthy_columns("pretraining", 1, 4_000), 1_000)
    columns["grad_l2_pre_clip"] *= np.exp(-0.02 * np.maximum(0, np.arange(4_000) - 1_500))
    (finding,) = found(gradient_vanishing, columns)
    assert 1_900 <= finding.first_step <= 2_200
    assert "little by little" in finding.cause


def test_fires_when_no_gradient_was_ever_there() -> None:
    rng = np.random.default_rng(0)
    norm = 3e-9 * np.exp(0.1 * rng.normal(size=500))
    columns = {"loss": 2.3 + 0.01 * rng.normal(size=500), "grad_l2_pre_clip": norm}
    (finding,) = found(gradient_vanishing, columns)
    assert (finding.first_step, finding.last_step) == (0, 499)
    assert "initialisation" in finding.cause


def test_fires_as_an_error_when_the_norm_is_exactly_zero() -> None:
    columns = flat_from(healthy_columns("pretraining", 2, 1_000), 500)
    columns["grad_l2_pre_clip"][500:] = 0.0
    (finding,) = found(gradient_vanishing, columns)
    assert finding.severity is Severity.ERROR
    assert "detach" in finding.cause


def test_fires_though_nan_lies_in_its_windows() -> None:
    columns = flat_from(healthy_columns("pretraining", 0, 2_000), 1_000)
    columns["grad_l2_pre_clip"][1_000:] *= 1e-8
    columns["grad_l2_pre_clip"][960:1_100:7] = np.nan
    assert abs(found(gradient_vanishing, columns)[0].first_step - 1_000) <= 2


def test_an_episode_that_ends_keeps_its_end() -> None:
    columns = flat_from(healthy_columns("pretraining", 3, 3_000), 900)
    columns["grad_l2_pre_clip"][1_000:1_400] *= 1e-8
    (finding,) = found(gradient_vanishing, columns)
    assert (finding.first_step, finding.last_step) == (1_000, 1_399)


def test_silent_on_a_sound_fit_to_the_last_bit() -> None:
    assert not found(gradient_vanishing, healthy_columns("full_batch", 0, 5_000))


def test_silent_when_the_loss_falls_as_far() -> None:
    at = np.arange(2_000)
    columns = {"loss": 2 * np.exp(-at / 50), "grad_l2_pre_clip": np.exp(-at / 60)}
    assert not found(gradient_vanishing, columns)


def test_silent_where_the_log_prints_too_few_decimals() -> None:
    rng = np.random.default_rng(0)
    norm = np.round(0.02 * np.exp(-np.arange(1_000) / 100) * np.exp(rng.normal(size=1_000)), 3)
    loss = 2.5 - 0.0005 * np.arange(1_000) + 0.01 * rng.normal(size=1_000)
    assert (norm[800:] == 0).all()
    assert not found(gradient_vanishing, {"loss": loss, "grad_l2_pre_clip": norm})


def test_silent_on_a_short_pause() -> None:
    columns = healthy_columns("pretraining", 4, 3_000)
    columns["grad_l2_pre_clip"][1_500:1_550] = 0.0
    assert not found(gradient_vanishing, columns)


@pytest.mark.parametrize(
    ("rows", "at"), [(60, 30), (400, 200), (2_000, 1_500), (2_000, 1_960), (100_000, 60_000)]
)
def test_fires_where_loss_and_norm_are_switched_off_together(rows: int, at: int) -> None:
    columns = healthy_columns("pretraining", 0, rows)
    columns["loss"][at:] = 0.0
    columns["grad_l2_pre_clip"][at:] = 0.0
    (finding,) = found(gradient_vanishing, columns)
    assert finding.first_step == at
    assert finding.last_step == rows - 1
    assert finding.severity is Severity.ERROR
    assert "the loss is exactly 0 with it" in finding.message
    assert "switched off" in finding.cause


def margin_loss(rows: int, batch: int, seed: int) -> Columns:
    """A perceptron with a margin on separable points: its loss arrives at 0 and stays there."""
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(200, 2)) + np.array([[2.5, 0.0]])
    points[100:] -= np.array([[5.0, 0.0]])
    points = points[np.abs(points[:, 0]) > 0.3]
    side = np.sign(points[:, 0])
    weight = np.array([0.0, 1.0])
    losses, norms = np.zeros(rows), np.zeros(rows)
    for i in range(rows):
        pick = rng.choice(len(points), batch, replace=False)
        short = np.maximum(0, 1 - side[pick] * (points[pick] @ weight))
        gradient = -((short > 0) * side[pick]) @ points[pick] / batch
        losses[i], norms[i] = short.mean(), np.linalg.norm(gradient)
        weight -= 0.05 * gradient
    return {"loss": losses, "grad_l2_pre_clip": norms}


@pytest.mark.parametrize("batch", [1, 8, 64, 180])
@pytest.mark.parametrize("seed", range(3))
def test_silent_where_a_margin_is_met(batch: int, seed: int) -> None:
    for rows in (60, 300, 2_000):
        assert not found(gradient_vanishing, margin_loss(rows, batch, seed))


def test_silent_on_batches_without_labels_and_on_a_loss_that_ends_at_rounding() -> None:
    masked = healthy_columns("pretraining", 0, 2_000)
    empty = np.random.default_rng(0).random(2_000) < 0.3
    empty[-5:] = True
    masked["loss"][empty] = 0.0
    masked["grad_l2_pre_clip"][empty] = 0.0
    assert not found(gradient_vanishing, masked)
    at = np.arange(2_000)
    half = np.round(np.exp(-at / 40) / 2**-9) * 2**-9  # a loss in steps of bf16
    assert not found(gradient_vanishing, {"loss": half, "grad_l2_pre_clip": half.copy()})


def test_an_optimizer_of_a_copy_is_named() -> None:
    """The norm is that of what the optimizer holds: a copy gets no gradient."""
    columns = flat_from(healthy_columns("pretraining", 0, 300), 0)
    columns["grad_l2_pre_clip"][:] = 0.0
    own = tuple(ParameterInfo(name, (8,), group=-1) for name in ("0.weight", "0.bias"))
    held = tuple(ParameterInfo(f"optimizers.0.{i}", (8,)) for i in range(2))
    (finding,) = found(gradient_vanishing, columns, Manifest(parameters=own + held))
    assert "holds none of the model's parameters" in finding.cause
    assert "Make the optimizer from the parameters of the model" in finding.remedy
    mine = tuple(ParameterInfo(info.name, (8,)) for info in own)
    (finding,) = found(gradient_vanishing, columns, Manifest(parameters=mine))
    assert "A graph cut" in finding.cause
