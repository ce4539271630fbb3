import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules.nonfinite_validation import nonfinite_validation
from tests.unit.diagnose.rules.test_overfitting import validated

FALLING = np.array([5.0, 3.0, 2.0])


def judged(validation: list[float]) -> list[Finding]:
    signals = validated(FALLING, np.array(validation))
    return list(nonfinite_validation.find(signals, nonfinite_validation.defaults))


def test_fires_as_an_error_when_it_becomes_nonfinite_for_good() -> None:
    (finding,) = judged([3.0, 2.5, np.nan, np.nan, np.nan])
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (299, 499)
    assert "BatchNorm" in finding.cause
    assert "training loss is finite" in finding.message


def test_fires_as_a_warning_when_it_never_was_finite() -> None:
    (finding,) = judged([np.inf] * 5)
    assert finding.severity is Severity.WARNING
    assert "metric" in finding.cause


def test_single_ones_are_told_each() -> None:
    findings = judged([3.0, np.nan, 2.5, 2.4, np.inf, 2.3])
    assert [f.first_step for f in findings] == [199, 499]
    assert all(f.severity is Severity.WARNING for f in findings)


def test_silent_when_training_is_nonfinite_too() -> None:
    signals = validated(np.array([5.0, 3.0]), np.array([3.0, np.nan, np.nan]))
    signals.loss[150:] = np.nan
    assert not list(nonfinite_validation.find(signals, nonfinite_validation.defaults))


def test_silent_when_all_are_finite() -> None:
    assert not judged([3.0, 2.5, 2.4])
