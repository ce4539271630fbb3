import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.learning_rate_fault import learning_rate_fault
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, serious, warmup_cosine


def run_with(lr: np.ndarray, seed: int = 0) -> Columns:
    return {**healthy_columns("pretraining", seed, len(lr)), "lr": lr}


def test_fires_at_a_rate_that_is_not_a_number() -> None:
    lr = warmup_cosine(1_000)
    lr[700:] = np.nan
    (finding,) = found(learning_rate_fault, run_with(lr))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.last_step) == (700, 999)


def test_fires_at_a_negative_rate() -> None:
    lr = np.linspace(1e-3, -1e-4, 1_000)
    (finding,) = found(learning_rate_fault, run_with(lr))
    assert finding.severity is Severity.ERROR
    assert finding.first_step == int(np.flatnonzero(lr < 0)[0])


@pytest.mark.parametrize(("first", "end"), [(0, 1_000), (600, 1_000), (300, 400)])
def test_fires_at_a_rate_of_zero_for_long(first: int, end: int) -> None:
    lr = np.full(1_000, 1e-4)
    lr[first:end] = 0.0
    columns = run_with(lr)
    columns["loss"] = np.full(1_000, 2.0)
    (finding,) = serious(found(learning_rate_fault, columns))
    assert (finding.first_step, finding.last_step) == (first, end - 1)


def test_silent_at_zero_where_another_group_has_a_rate() -> None:
    columns = run_with(np.zeros(500))
    assert found(learning_rate_fault, {**columns, "loss": np.full(500, 2.0)})
    columns["lr_1"] = np.full(500, 1e-3)
    assert not found(learning_rate_fault, columns)


def test_silent_at_zero_in_the_first_and_the_last_step() -> None:
    lr = np.concatenate((np.linspace(0, 1e-3, 100), np.linspace(1e-3, 0, 900)))
    assert not found(learning_rate_fault, run_with(lr))


def test_silent_where_a_small_rate_is_printed_as_zero() -> None:
    lr = np.round(np.linspace(5e-4, 1e-9, 1_000), 4)
    assert (lr[-90:] == 0).all()
    assert not found(learning_rate_fault, run_with(lr))
    assert not found(learning_rate_fault, run_with(np.zeros(1_000))), "the loss falls, so it trains"


def test_fires_where_a_linear_decay_in_round_numbers_has_ended() -> None:
    lr = np.round(np.maximum(1e-3 * (1 - np.arange(1_200) / 500), 0), 6)
    (finding,) = serious(found(learning_rate_fault, run_with(lr)))
    assert (finding.first_step, finding.last_step) == (500, 1_199)
    cosine = np.round(5e-4 * (1 + np.cos(np.pi * np.arange(1_200) / 1_200)), 4)
    halving = np.round(1e-3 * 0.5 ** (np.arange(1_200) / 2), 6)
    assert (cosine == 0).sum() > 20
    assert not found(learning_rate_fault, run_with(cosine))
    assert not found(learning_rate_fault, run_with(halving))


@pytest.mark.parametrize(
    ("rows", "at", "factor"), [(500, 250, 30), (20_000, 12_345, 10), (20_000, 300, 100)]
)
def test_fires_at_a_jump(rows: int, at: int, factor: float) -> None:
    lr = warmup_cosine(rows)
    if at < rows // 20:
        lr[:] = 1e-4
    lr[at:] *= factor
    columns = run_with(lr)
    columns["loss"][at + 1 :] = 10.8
    (finding,) = found(learning_rate_fault, columns)
    assert finding.severity is Severity.ERROR
    assert finding.first_step == at
    assert "the loss rose to 10.8 within 100 rows" in finding.message


def test_a_jump_without_harm_is_a_warning_or_an_info() -> None:
    lr = warmup_cosine(5_000)
    lr[3_000:] *= 50
    assert found(learning_rate_fault, run_with(lr))[0].severity is Severity.WARNING
    constant = np.where(np.arange(5_000) < 500, 1e-4, 1e-3)  # a warm-up at a constant rate
    assert found(learning_rate_fault, run_with(constant))[0].severity is Severity.INFO


def test_one_wild_cell_is_no_jump() -> None:
    lr = np.full(1_000, 1e-4)
    lr[500] = 7.0
    assert not found(learning_rate_fault, run_with(lr))


@pytest.mark.parametrize("kind", ["restarts", "vision", "fine_tuning", "every_tenth_step"])
def test_silent_on_sound_schedules(kind: str) -> None:
    for seed in range(3):
        assert not found(learning_rate_fault, healthy_columns(kind, seed, 3_000))


def moving_on_skips(rows: int, every: int, wrong: bool) -> Columns:
    columns = healthy_columns("pretraining", 0, rows)
    skipped = np.zeros(rows, dtype=bool)
    skipped[every::every] = True
    taken = np.arange(rows) if wrong else np.cumsum(np.append(0, ~skipped[:-1]))
    columns["lr"] = 1e-3 * (1 - taken / (2.0 * rows))
    return {**columns, "skipped": skipped}


def test_fires_when_the_schedule_moves_on_skipped_steps() -> None:
    (finding,) = found(learning_rate_fault, moving_on_skips(2_000, 40, wrong=True))
    assert finding.severity is Severity.WARNING
    assert finding.first_step == 40
    assert "49 steps ahead" in finding.message
    (rare,) = found(learning_rate_fault, moving_on_skips(5_000, 900, wrong=True))
    assert rare.severity is Severity.INFO
    assert not found(learning_rate_fault, moving_on_skips(2_000, 40, wrong=False))


def test_fires_when_the_schedule_that_run_json_names_never_moves() -> None:
    manifest = Manifest(schedule={"name": "cosine", "warmup_steps": 50})
    columns = run_with(np.full(1_000, 1e-3))
    (finding,) = found(learning_rate_fault, columns, manifest)
    assert "scheduler.step()" in finding.cause
    assert not found(learning_rate_fault, columns, Manifest(schedule={"name": "constant"}))
    assert not found(learning_rate_fault, columns)


@pytest.mark.parametrize(
    ("rate", "severity", "what"),
    [(np.nan, Severity.CRITICAL, "NaN"), (-1e-3, Severity.ERROR, "negative")],
)
def test_fires_at_the_rate_of_a_later_group(rate: float, severity: Severity, what: str) -> None:
    columns = run_with(warmup_cosine(1_000))
    columns["lr_1"] = np.where(np.arange(1_000) < 600, 1e-3, rate)
    (finding,) = found(learning_rate_fault, columns)
    assert finding.severity is severity
    assert (finding.first_step, finding.last_step) == (600, 999)
    assert "of group 1" in finding.message
    assert finding.evidence[0].values[:2] == (1e-3, 1e-3)  # its own rate, just before
    assert what in finding.message
