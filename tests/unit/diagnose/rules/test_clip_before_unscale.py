import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.clip_before_unscale import clip_before_unscale
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.grad_scaler import Policy
from tests.unit.diagnose.grad_scaler import healthy_columns as fp16_columns
from tests.unit.diagnose.healthy import Columns, found

SGD = Manifest(precision="fp16", optimizer={"name": "sgd"}, max_norm=1.0)


def scaled(rows: int, seed: int, interval: int = 500) -> Columns:
    """The norms of a healthy fp16 run as a clip before unscale sees them."""
    columns = dict(fp16_columns(rows, seed, policy=Policy(interval=interval)))
    columns["grad_l2_pre_clip"] = columns["grad_l2_pre_clip"] * columns["scaler_scale"]
    columns["grad_l2_post_clip"] = np.minimum(columns["grad_l2_pre_clip"], 1.0)
    return columns


@pytest.mark.parametrize(("rows", "seed"), [(4_000, 0), (4_000, 1), (20_000, 2), (100_000, 3)])
def test_fires_when_the_norm_follows_the_scale(rows: int, seed: int) -> None:
    (finding,) = found(clip_before_unscale, scaled(rows, seed))
    assert finding.severity is Severity.WARNING
    assert finding.first_step <= 20
    assert "follows the loss scale" in finding.message
    assert "unscale_" in finding.cause


def test_fires_as_an_error_under_sgd_which_does_not_hide_it() -> None:
    (finding,) = found(clip_before_unscale, scaled(4_000, 0), SGD)
    assert finding.severity is Severity.ERROR


def test_fires_on_rows_that_say_it_themselves() -> None:
    columns = dict(fp16_columns(300, 0))
    columns["grads_scaled"] = np.arange(300) >= 20
    (finding,) = found(clip_before_unscale, columns)
    assert finding.first_step == 20
    assert "says itself" in finding.message


def test_norms_of_scaled_gradients_are_an_info_where_nothing_clips() -> None:
    columns = dict(fp16_columns(300, 0))
    del columns["grad_l2_post_clip"]
    columns["grads_scaled"] = np.ones(300, dtype=bool)
    (finding,) = found(clip_before_unscale, columns, Manifest(precision="fp16"))
    assert finding.severity is Severity.INFO
    assert "multiplied by the loss scale" in finding.message
    (unknown,) = found(clip_before_unscale, columns)
    assert unknown.severity is Severity.WARNING


def test_fires_when_norms_after_the_clip_are_threshold_over_scale() -> None:
    columns = dict(fp16_columns(600, 0, policy=Policy(start_log2=10.0)))
    columns["grad_l2_post_clip"] = 1.0 / columns["scaler_scale"]
    (finding,) = found(clip_before_unscale, columns, SGD)
    assert "divided by the loss scale" in finding.message


@pytest.mark.parametrize("noise", ["gaussian", "t3", "bursty"])
def test_silent_on_healthy_scalers(noise: str) -> None:
    for seed in range(6):
        for interval in (200, 1_000, 2_000):
            columns = dict(fp16_columns(8_000, seed, noise, Policy(interval=interval)))
            assert not found(clip_before_unscale, columns)
            assert not found(clip_before_unscale, columns, SGD)


def test_silent_without_a_scaler() -> None:
    columns = dict(fp16_columns(2_000, 0))
    columns["scaler_scale"] = np.ones(2_000)
    assert not found(clip_before_unscale, columns)
