import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_spike import loss_spike
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, serious


def spiked(rows: int, at: list[int], factor: float, seed: int = 0) -> Columns:
    columns = healthy_columns("pretraining", seed, rows)
    columns["loss"][at] *= factor
    return columns


@pytest.mark.parametrize(
    ("rows", "at", "factor"),
    [(60, 30, 2.0), (200, 150, 1.5), (2000, 40, 1.6), (2000, 1985, 1.4), (50_000, 31_234, 1.3)],
)
def test_fires_at_a_spike_as_an_info_when_it_recovers(rows: int, at: int, factor: float) -> None:
    (finding,) = found(loss_spike, spiked(rows, [at], factor))
    assert finding.severity is Severity.INFO
    assert finding.first_step == at


@pytest.mark.parametrize("growth", [1.6, 4.0])
def test_silent_on_growth_by_one_factor_a_step(growth: float) -> None:
    """A smooth exponential jumps nowhere: it is the divergence that is told."""
    loss = np.concatenate([2.5 * 0.95 ** np.arange(30), 0.5 * growth ** np.arange(30)])
    assert found(loss_spike, {"step": np.arange(60), "loss": loss}) == []


def test_fires_as_a_warning_at_a_loss_no_sound_sample_has() -> None:
    (finding,) = found(loss_spike, spiked(20, [9], 1e16))
    assert finding.severity is Severity.WARNING
    assert finding.first_step == 9


def test_an_early_decay_hides_nothing() -> None:
    columns = healthy_columns("pretraining", 0, 300)
    columns["loss"] = 2 + 9 * np.exp(-np.arange(300) / 25) + 0.01 * np.cos(np.arange(300))
    columns["loss"][60] += 1.5
    assert [f.first_step for f in found(loss_spike, columns)] == [60]


def test_fires_though_nan_and_inf_lie_in_its_window() -> None:
    columns = spiked(2000, [1000], 1.6)
    columns["loss"][930:990:9] = np.nan
    columns["loss"][996] = np.inf
    assert [f.first_step for f in found(loss_spike, columns)] == [1000]


@pytest.mark.parametrize(("rows", "at"), [(2000, 1200), (2000, 1900), (20_000, 19_000)])
def test_fires_as_a_warning_when_it_does_not_recover(rows: int, at: int) -> None:
    columns = healthy_columns("pretraining", 1, rows)
    columns["loss"][at:] *= 2.5
    (finding,) = serious(found(loss_spike, columns))
    assert finding.first_step == at
    assert "does not recover" in finding.message or "log ends" not in finding.message


def test_a_slow_recovery_is_told_as_one() -> None:
    columns = healthy_columns("pretraining", 2, 3000)
    after = np.arange(3000) - 1500
    columns["loss"] *= 1 + np.where(after >= 0, np.exp(-after / 40), 0)
    (finding,) = found(loss_spike, columns)
    assert finding.severity is Severity.INFO
    assert finding.first_step in (1499, 1500, 1501)
    assert "recovered" in finding.message


def test_fires_as_a_warning_on_a_crowd_of_spikes_told_as_one() -> None:
    at = [4000, 4130, 4290, 4500, 4755, 4902]
    (finding,) = found(loss_spike, spiked(20_000, at, 1.8))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (4000, 4902)
    assert "6 times" in finding.message


def test_a_level_shift_is_one_info() -> None:
    columns = healthy_columns("pretraining", 3, 4000)
    columns["loss"][2500:] += 0.5
    (finding,) = found(loss_spike, columns)
    assert finding.severity is Severity.INFO
    assert finding.first_step == 2500
    assert "shifted" in finding.message


def test_a_spiking_norm_speaks_against_a_level_shift() -> None:
    columns = healthy_columns("pretraining", 3, 4000)
    columns["loss"][2500:] *= 1.5
    assert not serious(found(loss_spike, columns))
    columns["grad_l2_pre_clip"][2500] *= 50
    assert [f.first_step for f in serious(found(loss_spike, columns))] == [2500]


def test_silent_below_five_percent_and_a_tenth() -> None:
    columns = healthy_columns("pretraining", 4, 2000)
    columns["loss"] = 2.0 + 1e-4 * np.sin(np.arange(2000.0))
    columns["loss"][1000] = 2.09
    columns["loss"][1500] = 2.05
    assert not found(loss_spike, columns)


def test_silent_about_hard_samples_where_the_rest_is_known_by_heart() -> None:
    assert not serious(found(loss_spike, healthy_columns("learned_but_for_a_few", 0, 5000)))


def test_a_small_loss_is_judged_by_its_own_size() -> None:
    columns = healthy_columns("pretraining", 5, 2000)
    columns["loss"] *= 1e-4
    columns["loss"][1200] *= 3
    assert [f.first_step for f in found(loss_spike, columns)] == [1200]


def test_the_norm_that_led_is_named() -> None:
    columns = spiked(2000, [905], 2.0)
    columns["grad_l2_pre_clip"][900] *= 50
    assert "5 steps earlier" in found(loss_spike, columns)[0].cause
    columns = spiked(2000, [900], 2.0)
    columns["lr"][:] = 3e-4
    assert "calm at 0.0003" in found(loss_spike, columns)[0].cause
    assert "skip it" in found(loss_spike, columns)[0].remedy


def test_a_spike_whose_step_was_skipped_is_no_update_that_went_too_far() -> None:
    columns = spiked(400, [200], 1e4)
    del columns["grad_l2_pre_clip"]
    columns["skipped"] = np.zeros(400, dtype=bool)
    assert "went too far" in found(loss_spike, columns)[0].cause
    columns["skipped"][200] = True
    assert "no update came of it" in found(loss_spike, columns)[0].cause


def test_negative_losses_are_judged_too() -> None:
    columns = healthy_columns("negative", 0, 3000)
    columns["loss"][2000] = 40.0
    assert 2000 in [f.first_step for f in found(loss_spike, columns)]


def test_a_loss_that_drifts_across_zero_is_no_spike() -> None:
    columns = healthy_columns("pretraining", 0, 6000)
    rng = np.random.default_rng(0)
    drift = np.sin(np.arange(6000) / 400) + np.cumsum(rng.normal(0, 0.01, 6000))
    columns["loss"] = drift + rng.normal(0, 0.2, 6000)
    assert serious(found(loss_spike, columns)) == []
    columns["loss"][4000:] += 9
    assert [f.first_step for f in serious(found(loss_spike, columns))] == [4000]


@pytest.mark.parametrize(("learns", "expected"), [(True, 0), (False, 1)])
def test_hard_data_all_along_are_a_mixture_only_where_the_run_learns(
    learns: bool, expected: int
) -> None:
    rng = np.random.default_rng(1)
    columns = healthy_columns("pretraining", 1, 6000)
    fall = 3 * np.exp(-np.arange(6000) / 1500) if learns else 0.0
    columns["loss"] = (2 + fall) * np.exp(rng.normal(0, 0.03, 6000))
    columns["loss"][rng.random(6000) < 0.06] *= 2.2
    assert len(serious(found(loss_spike, columns))) == expected


def test_silent_where_the_noise_itself_grows() -> None:
    """Losses start alike, as outputs do, and differ from batch to batch once there is learning."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        learned = np.minimum(1.0, np.arange(600) / 150)
        loss = (
            2.3 * np.exp(-1.5 * learned) * np.exp((0.005 + 0.25 * learned) * rng.normal(size=600))
        )
        assert not found(loss_spike, {"loss": loss})


def test_the_aftermath_is_measured_no_later_than_the_log_ends() -> None:
    columns = healthy_columns("pretraining", 0, 1_000)
    columns["loss"][940:] *= 3.0
    columns["loss"][940] *= 2.0
    (finding,) = serious(found(loss_spike, columns))
    assert "does not recover: it is" in finding.message
    assert finding.message.endswith("29 to 59 rows later")


def _thrown_out(end: float) -> Columns:
    """A loss that jumps at 200, is highest at 206, falls at 207, and ends at a level."""
    columns = {"step": np.arange(400), "loss": 0.4 + 0.03 * np.cos(np.arange(400.0))}
    columns["loss"][200:207] = [500, 1e7, 4e6, 8e3, 7e5, 3e4, 2.5e8]
    columns["loss"][207:] += end - 0.4
    return columns


def test_a_spike_is_dated_to_its_first_step_whatever_its_peak() -> None:
    (finding,) = found(loss_spike, _thrown_out(0.4))
    assert finding.first_step == 200
    assert "jumped to 500 at step 200" in finding.message
    assert "up to 2.5e8" in finding.message
    assert "recovered within 1 step" in finding.message
    assert "batch of step 200" in finding.remedy


def test_a_level_far_above_that_before_is_no_recovery_however_high_the_peak() -> None:
    (finding,) = found(loss_spike, _thrown_out(1.6))
    assert "recovered" not in finding.message
    assert "did not come back: it is 1.6" in finding.message


def test_spikes_out_of_all_bounds_that_come_again_are_first_the_learning_rates() -> None:
    columns = healthy_columns("pretraining", 0, 600)
    columns["loss"][[150, 300, 480]] *= [1e6, 1e9, 1e12]
    columns["lr"] = np.full(600, 8.0)
    told = serious(found(loss_spike, columns))
    assert [finding.first_step for finding in told] == [150, 300, 480]
    assert "learning rate that is too high is the first suspect" in told[0].cause
    assert "learning rate several times lower" in told[0].remedy


def test_one_such_spike_is_still_a_batch() -> None:
    (finding,) = found(loss_spike, spiked(600, [300], 1e9))
    assert "Inspect the batch of step 300" in finding.remedy


def test_a_norm_that_grows_all_along_is_no_batch() -> None:
    columns = spiked(600, [300], 2.0)
    noise = np.exp(0.1 * np.random.default_rng(0).normal(size=600))
    columns["grad_l2_pre_clip"] = np.linspace(3, 120, 600) * noise
    (finding,) = found(loss_spike, columns)
    assert "grows all along" in finding.cause
    assert "zero_grad() is missing" in finding.cause
    assert "zero_grad()" in finding.remedy


def plunging(rows: int = 2000, at: int = 900, depth: float = -1e9) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    loss = 2 + 0.05 * rng.normal(size=rows)
    loss[at] = depth
    return {"loss": loss, "grad_l2_pre_clip": 1 + 0.1 * np.abs(rng.normal(size=rows))}


def test_one_loss_of_minus_a_billion_is_a_warning_that_blames_no_update() -> None:
    (finding,) = found(loss_spike, plunging())
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (900, 900)
    assert "fell to -1e9 at step 900, from 2" in finding.message
    assert "was back 1 step later" in finding.message
    assert "norm was calm there" in finding.cause


def test_several_plunges_are_one_finding_and_a_norm_beside_them_is_named() -> None:
    columns = plunging()
    columns["loss"][[300, 1200]] = -1e6
    columns["grad_l2_pre_clip"][900] = 400.0
    (finding,) = found(loss_spike, columns)
    assert (finding.first_step, finding.last_step) == (300, 1200)
    assert "3 times so far below 0" in finding.message
    assert "its median" in finding.cause


@pytest.mark.parametrize("depth", [-5.0, -900.0])
def test_silent_on_losses_that_may_be_negative(depth: float) -> None:
    assert not serious(found(loss_spike, plunging(depth=depth)))


def test_a_spike_that_is_still_a_hundred_times_too_high_has_not_recovered() -> None:
    """A tenth of the way in log space is no recovery: 100,002, then 259 for a while."""
    columns = plunging(depth=100_000.0)
    columns["loss"][901:950] = 250.0
    (finding,) = found(loss_spike, columns)
    assert "recovered within 50 steps" in finding.message
