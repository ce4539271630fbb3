import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.clipping_ineffective import clipping_ineffective
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, signals_of
from tests.unit.diagnose.rules.test_clipping_every_step import clipped

MEASURED = Manifest(max_norm=1.0, post_clip="measured")


def unclipped(rows: int, share: float, seed: int = 0) -> Columns:
    """A clip at 1 that does nothing in a share of the steps."""
    columns = clipped(rows, 1.5, seed=seed)
    lost = np.random.default_rng(seed).random(rows) < share
    columns["grad_l2_post_clip"][lost] = columns["grad_l2_pre_clip"][lost]
    return columns


@pytest.mark.parametrize("rows", [60, 2_000, 50_000])
def test_fires_as_an_error_when_the_clip_does_nothing(rows: int) -> None:
    (finding,) = found(clipping_ineffective, unclipped(rows, 1.0), MEASURED)
    assert finding.severity is Severity.ERROR
    assert finding.first_step <= 3
    assert "unchanged" in finding.message
    assert "other tensors" in finding.cause


def test_fires_as_a_warning_when_some_steps_are_not_clipped() -> None:
    (finding,) = found(clipping_ineffective, unclipped(2_000, 0.2), MEASURED)
    assert finding.severity is Severity.WARNING


def test_fires_when_only_some_parameters_are_clipped() -> None:
    columns = clipped(1_000, 5.0)
    columns["grad_l2_post_clip"] = 0.6 * columns["grad_l2_pre_clip"]
    (finding,) = found(clipping_ineffective, columns, MEASURED)
    assert "still above the threshold of 1" in finding.message
    assert "Only some" in finding.cause


def test_fires_when_the_norm_grows_in_the_clip() -> None:
    columns = clipped(1_000, 0.4)
    columns["grad_l2_post_clip"] = 1.5 * columns["grad_l2_pre_clip"]
    (finding,) = found(clipping_ineffective, columns)
    assert "above the norm before it" in finding.message


def test_silent_on_every_clip_that_works() -> None:
    for kind in ("pretraining", "fine_tuning", "half_precision", "rounded", "tails_t3_wide"):
        assert not found(clipping_ineffective, healthy_columns(kind, 0, 2_000), MEASURED)
        assert not found(clipping_ineffective, healthy_columns(kind, 0, 2_000))


def test_silent_on_rounding_to_half_precision() -> None:
    columns = clipped(2_000, 4.0)
    noise = 1 + 0.006 * np.random.default_rng(0).normal(size=2_000).clip(-1.5, 1.5)
    columns["grad_l2_post_clip"] *= noise
    assert not found(clipping_ineffective, columns, MEASURED)


def test_derived_norms_cannot_show_it_and_the_rule_says_so() -> None:
    signals = signals_of(unclipped(500, 1.0), Manifest(max_norm=1.0, post_clip="derived"))
    assert "measured after the clip" in clipping_ineffective.why_skipped(signals)


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_silent_where_the_optimizer_was_called_more_than_once(calls: int) -> None:
    columns = clipped(1_000, 1.5)
    columns["grad_l2_post_clip"] = columns["grad_l2_post_clip"] * np.sqrt(calls)
    assert not found(clipping_ineffective, columns, MEASURED)
