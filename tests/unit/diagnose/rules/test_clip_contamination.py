import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.clip_contamination import clip_contamination
from tests.unit.diagnose.healthy import Columns, found, healthy_columns, signals_of


def bad_at(rows: list[int], before: float, after: float) -> Columns:
    columns = healthy_columns("pretraining", 0, 2_000)
    columns["grad_l2_pre_clip"][rows] = before
    columns["grad_l2_post_clip"][rows] = after
    return columns


def test_fires_when_one_nan_became_all() -> None:
    (finding,) = found(clip_contamination, bad_at([700], np.nan, np.nan))
    assert finding.severity is Severity.ERROR
    assert (finding.first_step, finding.last_step) == (700, 700)
    assert "NaN after: every gradient is NaN" in finding.message


def test_fires_when_one_inf_made_all_others_zero() -> None:
    (finding,) = found(clip_contamination, bad_at([700, 703], np.inf, 0.0))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (700, 703)
    assert "0 after: every other gradient is 0" in finding.message


def test_silent_when_the_step_was_skipped() -> None:
    columns = bad_at([700], np.inf, np.nan)
    columns["skipped"][700] = True
    assert not found(clip_contamination, columns)


def test_silent_when_nothing_was_written_after_the_clip() -> None:
    columns = bad_at([700], np.inf, np.nan)
    signals = signals_of(columns)
    present = np.ones(2_000, dtype=bool)
    present[700] = False
    column = signals.table.columns["grad_l2_post_clip"]
    object.__setattr__(column, "present", present)
    assert not list(clip_contamination.find(signals, clip_contamination.defaults))


def test_silent_on_overflows_of_a_scaler_in_a_log_without_skips() -> None:
    columns = healthy_columns("half_precision", 1, 8_000)
    del columns["skipped"]
    columns["grad_l2_post_clip"] = np.where(
        np.isfinite(columns["grad_l2_pre_clip"]), columns["grad_l2_post_clip"], np.nan
    )
    assert not found(clip_contamination, columns)
