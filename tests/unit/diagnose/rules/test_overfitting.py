from pathlib import Path

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.overfitting import overfitting
from forensics.diagnose.signals import Signals
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable


def validated(train: np.ndarray, validation: np.ndarray, every: int = 100) -> Signals:
    """A run whose validation loss is written every so many steps."""
    rows = len(validation) * every
    column = np.full(rows, np.nan)
    column[every - 1 :: every] = validation
    present = np.zeros(rows, dtype=bool)
    present[every - 1 :: every] = True
    loss = np.interp(np.arange(rows), np.linspace(0, rows - 1, len(train)), train)
    loss *= np.exp(0.02 * np.random.default_rng(0).normal(size=rows))
    table = StepTable.from_arrays({"loss": loss, "val_loss": column}, {"val_loss": present})
    return Signals(Run(path=Path("run"), steps=table))


def judged(signals: Signals) -> list:
    with np.errstate(all="ignore"):
        return list(overfitting.find(signals, overfitting.defaults))


def curve(points: int, best: int, rise: float, noise: float, seed: int = 0) -> np.ndarray:
    at = np.arange(points)
    course = 2 + np.exp(-at / 4) + rise * 2 * np.maximum(0, at - best) / (points - best)
    return course * np.exp(noise * np.random.default_rng(seed).normal(size=points))


def test_fires_from_the_best_validation_on() -> None:
    (finding,) = judged(validated(np.array([5.0, 3.0, 1.7]), curve(30, 12, 0.4, 0.003)))
    assert finding.severity is Severity.WARNING
    assert abs(finding.first_step - 1_299) <= 300
    assert f"{finding.first_step:,}" in finding.remedy


def test_a_small_rise_is_an_info() -> None:
    (finding,) = judged(validated(np.array([5.0, 3.0, 1.7]), curve(40, 20, 0.06, 0.001)))
    assert finding.severity is Severity.INFO


def test_fires_though_some_validations_are_nan() -> None:
    values = curve(30, 12, 0.4, 0.003)
    values[[5, 14, 20]] = np.nan
    assert len(judged(validated(np.array([5.0, 3.0, 1.7]), values))) == 1


def test_silent_on_validation_noise() -> None:
    for seed in range(20):
        values = curve(50, 49, 0.0, 0.02, seed)
        assert not judged(validated(np.array([5.0, 3.0, 1.7]), values))


def test_silent_when_training_gets_worse_too() -> None:
    assert not judged(validated(np.array([5.0, 2.0, 4.0]), curve(30, 12, 0.4, 0.003)))


def test_silent_on_four_validations() -> None:
    assert not judged(validated(np.array([5.0, 1.0]), np.array([2.0, 3.0, 4.0, 5.0])))


def test_fires_through_the_noise_where_the_training_loss_halves() -> None:
    by_heart, learned = np.array([5.0, 3.0, 1.0, 0.5, 0.3, 0.2]), np.array([5.0, 3.0, 2.9])
    course = np.concatenate((np.linspace(3.0, 1.0, 12), np.linspace(1.0, 1.8, 8), np.full(40, 1.8)))
    through, plain = 0, 0
    for seed in range(12):
        validation = course * np.exp(0.12 * np.random.default_rng(seed).normal(size=60))
        found = judged(validated(by_heart, validation))
        assert all(900 <= finding.first_step <= 1_700 for finding in found)
        assert all(finding.severity is Severity.WARNING for finding in found)
        through += len(found)
        plain += len(judged(validated(learned, validation)))
    assert through >= 8
    assert plain <= through / 2


def test_silent_at_noise_that_wanders_and_comes_back() -> None:
    by_heart = np.array([5.0, 3.0, 1.0, 0.5, 0.3, 0.2])
    for seed in range(20):
        rng = np.random.default_rng(seed)
        wander = np.zeros(60)
        for i in range(1, 60):
            wander[i] = 0.3 * wander[i - 1] + 0.95 * rng.normal()
        assert not judged(validated(by_heart, curve(60, 59, 0.0, 0.0) * np.exp(0.05 * wander)))


def test_of_equal_best_validations_the_last_counts() -> None:
    values = np.round(curve(30, 12, 0.4, 0.0), 2)
    values[[10, 11, 12]] = values[:13].min()
    (finding,) = judged(validated(np.array([5.0, 3.0, 1.7]), values))
    assert finding.first_step == 1_299
