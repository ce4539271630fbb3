import numpy as np
import pytest

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.stuck_log import stuck_log
from forensics.runlog.manifest import Manifest
from tests.unit.diagnose.healthy import Columns, found, healthy_columns


def stuck(rows: int, first: int, count: int, kind: str = "pretraining") -> Columns:
    columns = healthy_columns(kind, 0, rows)
    for name in ("loss", "grad_l2_pre_clip"):
        columns[name][first : first + count] = columns[name][first]
    return columns


@pytest.mark.parametrize(
    ("rows", "first", "count"),
    [(100, 40, 3), (2_000, 1_500, 500), (2_000, 0, 10), (50_000, 20_000, 7)],
)
def test_fires_at_rows_that_repeat(rows: int, first: int, count: int) -> None:
    (finding,) = found(stuck_log, stuck(rows, first, count))
    assert finding.severity is Severity.WARNING
    assert (finding.first_step, finding.last_step) == (first, first + count - 1)


def test_stretches_close_together_are_one_episode() -> None:
    columns = stuck(2_000, 500, 20)
    for name in ("loss", "grad_l2_pre_clip"):
        columns[name][550:580] = columns[name][550]
    (finding,) = found(stuck_log, columns)
    assert (finding.first_step, finding.last_step) == (500, 579)
    assert "50 rows" in finding.message


def test_silent_at_two_equal_rows_and_where_one_column_moves() -> None:
    assert not found(stuck_log, stuck(1_000, 500, 2))
    columns = stuck(1_000, 500, 100)
    columns["grad_l2_pre_clip"][500:600] *= np.linspace(1, 1.1, 100)
    assert not found(stuck_log, columns)


def test_silent_where_few_digits_are_printed() -> None:
    columns = stuck(1_000, 500, 100)
    columns["loss"] = np.round(columns["loss"], 2)
    assert not found(stuck_log, columns)


def test_silent_on_a_fit_to_the_last_bit_on_skips_and_at_a_rate_of_zero() -> None:
    assert not found(stuck_log, healthy_columns("full_batch", 0, 5_000))
    columns = stuck(1_000, 500, 100)
    columns["skipped"][501:600] = True
    assert not found(stuck_log, columns)
    columns = stuck(1_000, 500, 100)
    columns["lr"][500:600] = 0.0
    assert not found(stuck_log, columns)


def test_silent_where_a_fit_fell_to_the_last_bit_and_not_where_it_stopped_halfway() -> None:
    columns = stuck(60, 16, 44)
    fall = 10.0 ** -np.minimum(np.arange(60), 16.0)
    columns["loss"] = columns["loss"][0] * fall
    columns["grad_l2_pre_clip"] = columns["grad_l2_pre_clip"][0] * np.sqrt(fall)
    assert not found(stuck_log, columns)
    columns["grad_l2_pre_clip"] = columns["grad_l2_pre_clip"][0] * np.maximum(fall, 0.5)
    assert found(stuck_log, columns)


def test_silent_where_lbfgs_has_converged_and_not_where_it_has_not() -> None:
    columns = stuck(30, 2, 28)
    columns["grad_l2_pre_clip"][1:] = 1e-5 * columns["grad_l2_pre_clip"][0]
    assert found(stuck_log, columns)
    lbfgs = Manifest(optimizer={"name": "lbfgs"})
    assert not found(stuck_log, columns, lbfgs)
    assert found(stuck_log, stuck(30, 2, 28), lbfgs)
