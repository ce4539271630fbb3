import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_divergence import loss_divergence
from forensics.diagnose.wording import number
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, serious


def rising(
    rows: int, onset: int, amount: float, kind: str = "pretraining", seed: int = 0
) -> Columns:
    """The log of the loss rises in a line from the onset to the end, by ``amount``."""
    columns = healthy_columns(kind, seed, rows)
    share = np.clip((np.arange(rows) - onset) / (rows - onset), 0, 1)
    columns["loss"] *= np.exp(amount * share)
    return columns


@pytest.mark.parametrize(
    ("kind", "rows", "onset", "amount"),
    [
        ("pretraining", 200, 150, 0.5),
        ("pretraining", 2_000, 1_500, 0.5),
        ("fine_tuning", 2_000, 1_500, 0.5),
        ("floor", 20_000, 12_000, 0.5),
        ("small_batch", 20_000, 12_000, 1.0),
        ("pretraining", 20_000, 19_000, 0.7),
    ],
)
def test_fires_at_the_turn(kind: str, rows: int, onset: int, amount: float) -> None:
    (finding,) = found(loss_divergence, rising(rows, onset, amount, kind))
    assert finding.severity is Severity.ERROR
    assert abs(finding.first_step - onset) <= max(5, 0.05 * rows)
    assert finding.last_step == rows - 1


def test_the_losses_that_it_quotes_are_in_the_log() -> None:
    loss = np.concatenate([2.5 * 0.95 ** np.arange(30), 0.5 * 1.6 ** np.arange(30)])
    (finding,) = found(loss_divergence, {"step": np.arange(60), "loss": loss})
    quoted = finding.message.partition(" from ")[2].partition(":")[0].split()
    logged = {number(float(value)) for value in loss}
    assert {quoted[0], quoted[2]} <= logged


def test_fires_as_a_warning_at_a_small_but_steady_rise() -> None:
    (finding,) = found(loss_divergence, rising(4_000, 2_500, 0.2))
    assert finding.severity is Severity.WARNING


def test_fires_at_the_row_of_a_jump_it_never_comes_back_from() -> None:
    columns = healthy_columns("pretraining", 1, 20_000)
    columns["loss"][9_876:] = 10.8 + 0.05 * np.random.default_rng(0).normal(size=20_000 - 9_876)
    (finding,) = found(loss_divergence, columns)
    assert abs(finding.first_step - 9_876) <= 2


@pytest.mark.parametrize(
    ("rows", "rate", "start"), [(40, 0.3, 2), (100, 0.1, 20), (20_000, 0.05, 19_900)]
)
def test_fires_at_a_blow_up_however_short(rows: int, rate: float, start: int) -> None:
    columns = healthy_columns("pretraining", 0, rows)
    columns["loss"] *= np.exp(rate * np.clip(np.arange(rows) - start, 0, 500))
    (finding,) = found(loss_divergence, columns)
    assert finding.severity is Severity.ERROR
    assert abs(finding.first_step - start) <= 6


def test_fires_though_nan_lies_in_its_blocks_and_at_its_end() -> None:
    columns = rising(4_000, 2_000, 1.0)
    columns["loss"][::9] = np.nan
    columns["loss"][3_900:] = np.inf
    (finding,) = found(loss_divergence, columns)
    assert abs(finding.first_step - 2_000) <= 200


def test_silent_when_the_loss_comes_back() -> None:
    columns = healthy_columns("pretraining", 2, 8_000)
    after = np.arange(8_000) - 4_000
    columns["loss"] *= 1 + np.where(after >= 0, 2 * np.exp(-after / 700), 0)
    assert not serious(found(loss_divergence, columns))


def test_a_curriculum_is_no_alarm() -> None:
    for seed in range(5):
        assert not serious(found(loss_divergence, healthy_columns("curriculum", seed, 3_000)))


def test_silent_where_the_loss_wandered_as_far_before() -> None:
    at = np.arange(8_000)
    loss = 0.7 + 0.12 * np.sin(2 * np.pi * at / 3_200 + 2.5)
    loss += 0.03 * np.random.default_rng(0).normal(size=8_000)
    assert not found(loss_divergence, {"loss": loss})


def test_what_led_up_to_it_is_told() -> None:
    columns = rising(4_000, 3_000, 1.0)
    columns["grad_l2_pre_clip"][2_900:] *= 4
    columns["lr"][:] = 3e-4
    (finding,) = found(loss_divergence, columns)
    assert "gradient norm had grown" in finding.cause
    assert "calm at 0.0003" in finding.cause
    assert "Late divergence" in finding.cause


def test_a_jump_of_the_rate_is_named() -> None:
    columns = rising(4_000, 3_000, 1.5)
    columns["lr"] = np.where(np.arange(4_000) < 3_001, 1e-4, 3e-3)
    (finding,) = found(loss_divergence, columns)
    assert 3_001 <= finding.first_step <= 3_100
    assert "had jumped ×30 at step 3,001" in finding.cause


def value_loss(rise: np.ndarray, noise: float = 0.4) -> Columns:
    """The error of a value function: as the returns grow, so does it."""
    rng = np.random.default_rng(0)
    at = np.arange(len(rise))
    level = 0.05 + 0.1 * np.exp(-at / 150) + rise
    return {
        "loss": level * np.exp(noise * rng.normal(size=len(at))),
        "grad_l2_pre_clip": 1.5 * np.exp(0.5 * rng.normal(size=len(at))),
    }


def test_a_noisy_loss_that_climbs_slowly_and_settles_is_an_info() -> None:
    at = np.arange(10_000)
    columns = value_loss(0.4 * (1 - np.exp(-(at - 300).clip(0) / 2_500)))
    (finding,) = found(loss_divergence, columns)
    assert finding.severity is Severity.INFO
    assert "targets that grow" in finding.cause


@pytest.mark.parametrize(
    ("rise", "noise"),
    [
        (0.4 * (1 - np.exp(-(np.arange(10_000) - 300).clip(0) / 2_500)), 0.02),
        (0.4 * (1 - np.exp(-(np.arange(10_000) - 300).clip(0) / 200)), 0.4),
        (0.4 * (1 - np.exp(-(np.arange(10_000) - 6_000).clip(0) / 800)), 0.4),
        (0.4 * np.arange(10_000) / 5_000, 0.4),
    ],
    ids=["not noisy", "fast", "late", "goes on"],
)
def test_what_lacks_one_of_its_signs_is_a_divergence(rise: np.ndarray, noise: float) -> None:
    (finding,) = serious(found(loss_divergence, value_loss(rise, noise)))
    assert finding.severity is Severity.ERROR


@pytest.mark.parametrize("maximize", [True, False])
def test_an_optimizer_that_climbs_is_the_cause(maximize: bool) -> None:
    manifest = Manifest(optimizer={"name": "sgd", "maximize": maximize})
    (finding,) = found(loss_divergence, rising(2_000, 5, 2.0), manifest)
    assert ("maximize=True" in finding.cause) is maximize
    assert ("maximize=True" in finding.remedy) is maximize


def test_a_blow_up_is_dated_where_it_began_not_at_the_jump_that_ends_it() -> None:
    course = [6.3, 7.6, 2.0, 1.5, 1.0, 0.58, 2.1, 15.9, 66.3, 64.6, 1694.0, 4.3e8, 2.3e24]
    losses = np.array(course + [np.inf] + [np.nan] * 36)
    (finding,) = found(loss_divergence, {"step": np.arange(50), "loss": losses})
    assert finding.first_step == 7


def _thrown_out(after: np.ndarray) -> dict[str, np.ndarray]:
    """A loss that learns to 0.3 with noise, jumps at row 150, and then goes ``after``."""
    noise = np.random.default_rng(3).normal(0, 0.03, 400)
    loss = np.concatenate([1.3 * np.exp(-np.arange(150) / 30) + 0.3, after]) + noise
    return {"step": np.arange(400), "loss": loss}


def test_fires_at_a_jump_that_comes_back_only_part_of_the_way() -> None:
    after = 1.6 + np.append([500.0, 1e5, 40.0], 3 * np.exp(-np.arange(247) / 10))
    (finding,) = found(loss_divergence, _thrown_out(after))
    assert finding.severity is Severity.ERROR
    assert finding.first_step == 150
    assert "never came back" in finding.message
    assert "step 150" in finding.remedy
    assert "Inspect the batch" in finding.remedy


@pytest.mark.parametrize("end", [0.3, 0.45])
def test_silent_where_the_loss_comes_back_or_nearly(end: float) -> None:
    after = end + np.append([500.0, 1e5, 40.0], 3 * np.exp(-np.arange(247) / 10))
    assert serious(found(loss_divergence, _thrown_out(after))) == []


def test_silent_while_the_loss_is_still_on_its_way_down() -> None:
    after = 0.3 + 6 * np.exp(-np.arange(250) / 150)
    assert serious(found(loss_divergence, _thrown_out(after))) == []


@pytest.mark.parametrize("rows", [200, 260, 320, 400])
def test_silent_on_a_slow_recovery_under_noise_however_short_the_log(rows: int) -> None:
    since = np.arange(rows - 150)
    for seed in range(10):
        noise = np.random.default_rng(seed).normal(0, 0.15, rows)
        before = 1.3 * np.exp(-np.arange(150) / 30) + 0.4
        loss = np.concatenate([before, 0.4 + 6 / (1 + since / 10)]) + noise
        assert serious(found(loss_divergence, {"step": np.arange(rows), "loss": loss})) == []
