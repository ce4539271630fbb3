import numpy as np
import pytest

from forensics.diagnose.rules.recurring_sample import recurring_sample
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns


def bad_every(period: int, rows: int, first: int = 37, wobble: int = 0) -> Columns:
    columns = healthy_columns("pretraining", 0, rows)
    at = np.arange(first, rows, period)
    at += np.random.default_rng(0).integers(0, wobble + 1, size=len(at))
    columns["loss"][at[at < rows]] = np.nan
    return columns


@pytest.mark.parametrize(
    ("period", "rows"), [(391, 2_000), (100, 2_000), (5_000, 60_000), (31, 300)]
)
def test_fires_at_bad_steps_equally_spaced(period: int, rows: int) -> None:
    (finding,) = found(recurring_sample, bad_every(period, rows))
    assert finding.first_step == 37
    assert f"every {period:,} steps" in finding.message
    assert "37" in finding.remedy


def test_a_wobble_of_one_step_is_allowed() -> None:
    assert found(recurring_sample, bad_every(391, 6_000, wobble=1))


def test_the_epoch_column_agrees() -> None:
    columns = bad_every(391, 3_000)
    columns["epoch"] = np.arange(3_000) / 391
    assert "the epoch column says the same" in found(recurring_sample, columns)[0].cause


def test_fires_at_spikes_equally_spaced() -> None:
    columns = healthy_columns("pretraining", 1, 5_000)
    columns["loss"][300::700] *= 2
    (finding,) = found(recurring_sample, columns)
    assert finding.first_step == 300
    assert "a spike" in finding.message


def test_silent_at_random_distances() -> None:
    for seed in range(30):
        columns = healthy_columns("pretraining", seed, 5_000)
        at = np.random.default_rng(seed).choice(5_000, size=12, replace=False)
        columns["loss"][at] = np.nan
        assert not found(recurring_sample, columns)


def test_silent_on_the_overflows_of_a_scaler() -> None:
    for seed in range(10):
        assert not found(recurring_sample, healthy_columns("half_precision", seed, 30_000))


def test_silent_on_restarts_of_the_learning_rate() -> None:
    columns = healthy_columns("restarts", 0, 8_000)
    columns["loss"] *= np.where(np.arange(8_000) % 1_000 == 1, 1.8, 1.0)
    columns["loss"][1] /= 1.8
    assert not found(recurring_sample, columns)


def test_silent_on_every_other_step() -> None:
    columns = healthy_columns("pretraining", 0, 1_000)
    columns["loss"][::2] = np.nan
    assert not found(recurring_sample, columns)


def test_in_fp16_what_is_bad_may_be_merely_large() -> None:
    columns = bad_every(391, 2_000)
    (half,) = found(recurring_sample, columns, Manifest(precision="fp16"))
    assert "beyond 65,504 a value becomes inf" in half.remedy
    (single,) = found(recurring_sample, columns, Manifest(precision="fp32"))
    assert "65,504" not in single.remedy


def test_the_batch_is_where_the_norm_spiked_and_not_where_the_loss_followed() -> None:
    columns = healthy_columns("pretraining", 1, 5_000)
    columns["grad_l2_pre_clip"][300::700] *= 40
    columns["loss"][301::700] *= 2
    (finding,) = found(recurring_sample, columns)
    assert finding.first_step == 300
    assert "batch of step 300 (and of 1,000" in finding.remedy
    assert finding.evidence[0].signal == "grad_l2_pre_clip"
