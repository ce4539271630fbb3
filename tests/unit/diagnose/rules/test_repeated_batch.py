import numpy as np

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity, Status
from forensics.diagnose.rules.repeated_batch import repeated_batch
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, signals_of


def memorised(rows: int = 600, noise: float = 0.0) -> Columns:
    """A batch that is learned by heart: 2.33 falling to a thousandth of it."""
    rng = np.random.default_rng(0)
    loss = (2.33 * np.exp(-np.arange(rows) / 60) + 1e-3) * np.exp(noise * rng.normal(size=rows))
    return {"loss": loss, "grad_l2_pre_clip": 0.2 * loss + 1e-4}


def test_fires_as_an_info_on_a_fall_without_noise() -> None:
    (finding,) = found(repeated_batch, memorised())
    assert finding.severity is Severity.INFO
    assert "from 2.33 to 0.0233 in 280 steps, and went down in 100 % of them" in finding.message


def test_the_verdict_leaves_open_what_was_learned() -> None:
    verdict = diagnose(signals_of(memorised()).run).verdict
    assert verdict.status is Status.HEALTHY
    assert any("each step saw the same data" in text for text in verdict.undecided)


def test_silent_on_other_batches() -> None:
    assert not found(repeated_batch, memorised(noise=0.02))
    assert not found(repeated_batch, healthy_columns("pretraining", 0, 2000))


def test_silent_before_it_is_known_by_heart() -> None:
    assert not found(repeated_batch, memorised(rows=250))


def test_silent_where_rows_stand_for_many_steps() -> None:
    means = {"step": 50 * np.arange(1, 601), "covered_steps": np.full(600, 50)}
    assert not found(repeated_batch, {**memorised(), **means})
