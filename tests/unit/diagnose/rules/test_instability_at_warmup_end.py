import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.instability_at_warmup_end import instability_at_warmup_end
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns


def diverging(rows: int, onset: int) -> Columns:
    columns = healthy_columns("pretraining", 0, rows)
    columns["loss"][onset:] = 10.8 * np.exp(
        0.01 * np.random.default_rng(0).normal(size=rows - onset)
    )
    return columns


@pytest.mark.parametrize("onset", [250, 320, 550])
def test_fires_at_trouble_near_the_end_of_the_warm_up(onset: int) -> None:
    (finding,) = found(instability_at_warmup_end, diverging(6_000, onset))
    assert finding.severity is Severity.INFO
    assert abs(finding.first_step - onset) <= 5
    assert "end of the warm-up at step 299" in finding.message


def test_run_json_says_where_the_warm_up_ends() -> None:
    columns = diverging(6_000, 1_000)
    assert not found(instability_at_warmup_end, columns)
    manifest = Manifest(schedule={"name": "cosine", "warmup_steps": 900})
    assert found(instability_at_warmup_end, columns, manifest)


def test_silent_where_everything_becomes_nan_out_of_a_calm_norm() -> None:
    columns = healthy_columns("pretraining", 0, 6_000)
    columns["loss"][400:] = np.nan
    columns["grad_l2_pre_clip"][400:] = np.nan
    assert not found(instability_at_warmup_end, columns)  # a bad sample, whatever the rate was
    columns["grad_l2_pre_clip"][397:400] *= 20
    assert found(instability_at_warmup_end, columns)


def test_fires_where_no_norm_tells_of_calm() -> None:
    columns = healthy_columns("pretraining", 0, 6_000)
    columns["loss"][400:] = np.nan
    del columns["grad_l2_pre_clip"]
    (finding,) = found(instability_at_warmup_end, columns)
    assert finding.first_step == 400


def test_silent_on_trouble_elsewhere_and_on_health() -> None:
    assert not found(instability_at_warmup_end, diverging(6_000, 3_000))
    assert not found(instability_at_warmup_end, healthy_columns("pretraining", 0, 6_000))
    constant = diverging(6_000, 320)
    constant["lr"] = np.full(6_000, 1e-3)
    assert not found(instability_at_warmup_end, constant)
