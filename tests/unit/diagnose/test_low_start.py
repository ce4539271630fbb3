"""A loss that fills up and is then learned is no divergence; one that blows up is."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loss_divergence import loss_divergence
from tests.unit.diagnose.step_logs import calm, run_of

ROWS = 400
RNG = np.random.default_rng(5)


def worst(loss: np.ndarray) -> Severity | None:
    signals = run_of(calm(ROWS, loss=loss + 0.01 * RNG.normal(size=ROWS)))
    found = list(loss_divergence.find(signals, loss_divergence.defaults))
    return max((finding.severity for finding in found), default=None)


def hump(start: float, peak: float, end: float, climb: int) -> np.ndarray:
    """A smooth climb from the first row, then a fall that slows down."""
    rise = start + (peak - start) * np.minimum(np.arange(ROWS) / climb, 1.0)
    after = np.maximum(np.arange(ROWS) - climb, 0) / (ROWS - climb)
    return rise + (end - peak) * (1 - np.exp(-4 * after))


def test_a_detector_that_finds_its_first_objects() -> None:
    assert worst(hump(0.1, 1.5, 1.0, climb=90)) == Severity.INFO


@pytest.mark.parametrize(
    "loss",
    [
        hump(0.1, 1.5, 1.45, climb=90),  # stays up
        np.concatenate((np.full(40, 0.1), hump(0.1, 1.5, 1.45, climb=5)[:360])),
        np.concatenate((np.full(200, 0.1), hump(0.1, 1.5, 1.0, climb=90)[:200])),  # later
    ],
    ids=["stays", "sudden", "later"],
)
def test_what_diverges_is_an_error(loss: np.ndarray) -> None:
    assert worst(loss) == Severity.ERROR


def in_warm_up(loss: np.ndarray, **columns: np.ndarray) -> Severity | None:
    """The worst of a log that ends while the rate still rises; no norm unless one is given."""
    lr = np.linspace(1e-6, 1e-3, len(loss))
    log = calm(len(loss), loss=loss, lr=lr) | columns
    if "grad_l2_pre_clip" not in columns:
        log = {name: log[name] for name in ("step", "lr", "loss")}
    found = list(loss_divergence.find(run_of(log), loss_divergence.defaults))
    return max((finding.severity for finding in found), default=None)


@pytest.mark.parametrize("rows", [14, 20, 40, 80, 160])
def test_a_detector_that_is_watched_while_it_warms_up_is_no_alarm(rows: int) -> None:
    loss = hump(0.1, 1.5, 1.0, climb=90)[:rows] + 0.003 * RNG.normal(size=rows)
    assert in_warm_up(loss) in (None, Severity.INFO)


def test_a_blow_up_in_the_warm_up_is_an_error() -> None:
    rows = np.arange(60)
    loss = 0.1 * np.exp(np.maximum(rows - 30, 0) * 0.3)
    assert in_warm_up(loss) == Severity.ERROR
    norm = np.exp(np.maximum(rows - 30, 0) * 0.1)
    assert in_warm_up(loss[:45], grad_l2_pre_clip=norm[:45]) == Severity.ERROR
