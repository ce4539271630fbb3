import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.gradient_spike import gradient_spike
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, serious


def spiked(rows: int, at: list[int], factor: float, kind: str = "pretraining") -> Columns:
    columns = healthy_columns(kind, 0, rows)
    columns["grad_l2_pre_clip"][at] *= factor
    columns["grad_l2_post_clip"] = np.minimum(columns["grad_l2_pre_clip"], 1.0)
    return columns


@pytest.mark.parametrize(
    ("rows", "at", "factor"),
    [
        (20, 9, 1e8),
        (60, 30, 50),
        (200, 150, 20),
        (2000, 40, 30),
        (2000, 1990, 15),
        (50_000, 31_234, 12),
    ],
)
def test_fires_at_a_spike_as_an_info_when_it_recovers(rows: int, at: int, factor: float) -> None:
    (finding,) = found(gradient_spike, spiked(rows, [at], factor))
    assert finding.severity is Severity.INFO
    assert finding.first_step == at
    assert f"at step {at:,}" in finding.message


def test_fires_though_nan_and_inf_lie_in_its_window() -> None:
    columns = spiked(2000, [1000], 40)
    columns["grad_l2_pre_clip"][940:980:7] = np.nan
    columns["grad_l2_pre_clip"][995] = np.inf
    assert [f.first_step for f in found(gradient_spike, columns)] == [1000]


def test_an_early_decay_hides_nothing() -> None:
    columns = healthy_columns("pretraining", 0, 400)
    columns["grad_l2_pre_clip"] = 100 * np.exp(-np.arange(400) / 30) + 0.1
    columns["grad_l2_pre_clip"][100] = 60.0
    assert [f.first_step for f in found(gradient_spike, columns)] == [100]


def test_fires_as_a_warning_on_a_crowd_of_spikes_told_as_one() -> None:
    at = [4000, 4130, 4290, 4300, 4555, 4789, 4902]
    (finding,) = found(gradient_spike, spiked(20_000, at, 25))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (4000, 4902)
    assert "spiked 7 times" in finding.message or "spiked 6 times" in finding.message


def test_fires_as_a_warning_when_the_norm_stays_up() -> None:
    columns = healthy_columns("pretraining", 1, 3000)
    columns["grad_l2_pre_clip"][2000:] *= 30
    (finding,) = serious(found(gradient_spike, columns))
    assert finding.first_step == 2000
    assert "stayed up" in finding.message


def test_fires_as_a_warning_when_nothing_finite_follows() -> None:
    columns = spiked(1000, [700], 80)
    columns["grad_l2_pre_clip"][701:] = np.nan
    (finding,) = serious(found(gradient_spike, columns))
    assert "non-finite" in finding.message


def test_silent_on_growth_that_takes_its_time() -> None:
    columns = healthy_columns("pretraining", 0, 2000)
    columns["grad_l2_pre_clip"] *= np.exp(0.01 * np.maximum(0, np.arange(2000) - 1000))
    assert not found(gradient_spike, columns)


def test_heavy_tails_never_make_a_warning() -> None:
    for seed in range(5):
        assert not serious(found(gradient_spike, healthy_columns("tails_t2", seed, 5000)))


def test_the_advice_fits_the_clip() -> None:
    clipped = spiked(2000, [900], 40)
    assert "held this update to a norm of 1" in found(gradient_spike, clipped)[0].remedy
    del clipped["grad_l2_post_clip"]
    assert "clip the global norm" in found(gradient_spike, clipped)[0].remedy
    stated = found(gradient_spike, clipped, Manifest(max_norm=0.5))[0]
    assert "norm of 0.5" in stated.remedy


def test_a_loss_that_jumps_too_is_named() -> None:
    columns = spiked(2000, [900], 40)
    columns["loss"][900] *= 3
    assert "same step" in found(gradient_spike, columns)[0].cause
    columns = spiked(2000, [900], 40)
    columns["loss"][903] *= 3
    assert "3 steps later" in found(gradient_spike, columns)[0].cause


def test_many_quiet_spikes_are_folded() -> None:
    at = list(range(1000, 60_000, 1100))
    findings = found(gradient_spike, spiked(61_000, at, 30))
    assert len(findings) == 12
    assert all(f.severity is Severity.INFO for f in findings)
    assert findings[-1].last_step == at[-1]


@pytest.mark.parametrize(("left", "severity"), [(0.0, Severity.INFO), (4.0, Severity.WARNING)])
def test_a_spike_after_which_the_loss_stays_up_is_serious(left: float, severity: Severity) -> None:
    columns = spiked(3000, [2000], 60)
    away = np.arange(999.0)
    columns["loss"][2001:] += (5.0 - left) * np.exp(-away / 8) + left * np.exp(-away / 900)
    (finding,) = found(gradient_spike, columns)
    assert finding.severity is severity
    assert ("the loss stayed up" in finding.message) is (severity is Severity.WARNING)


def test_growth_that_ends_in_nan_is_no_batch_to_inspect() -> None:
    columns = healthy_columns("pretraining", 0, 400)
    norm, loss = columns["grad_l2_pre_clip"], columns["loss"]
    norm[300:303] = norm[280:300].mean() * np.array([8.0, 14.0, 27.0])
    norm[303:] = loss[303:] = np.nan
    (finding,) = serious(found(gradient_spike, columns))
    assert (finding.first_step, finding.last_step) == (300, 302)
    assert finding.cause.startswith("The run was diverging: the norm grew to ×30.2 its level")
    assert finding.remedy.startswith("Resume from before the growth, lower the learning rate")
    assert "batch" not in finding.remedy


@pytest.mark.parametrize("after", [1.0, np.nan])
def test_one_high_norm_is_still_a_batch_to_inspect(after: float) -> None:
    columns = spiked(400, [300], 27.0)
    columns["grad_l2_pre_clip"][301:] *= after
    columns["loss"][301:] *= after
    (finding,) = found(gradient_spike, columns)
    assert "Inspect the batch of step 300" in finding.remedy
