"""rank-divergence: one rank's own values go bad first, or its reduced gradient differs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.rank_divergence import rank_divergence
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.snapshot_runs import found, signals_of

ROWS = 300


def own_log(**columns: object) -> dict[str, object]:
    rng = np.random.default_rng(0)
    return {
        "step": np.arange(ROWS),
        "loss": 2 + 0.1 * rng.normal(size=ROWS),
        "grad_l2_pre_clip": 1 + 0.1 * rng.random(ROWS),
        "skipped": np.zeros(ROWS),
        **columns,
    }


def rank_log(rank: int, **columns: object) -> dict[str, object]:
    """A rank's own loss and local norm, unlike those of any other rank."""
    rng = np.random.default_rng(rank)
    return {
        "step": np.arange(ROWS),
        "loss": 2 + 0.1 * rng.normal(size=ROWS),
        "grad_l2_pre_clip": 2 + 0.1 * rng.random(ROWS),
        **columns,
    }


def with_value(log: dict[str, object], name: str, rows: slice, value: float) -> dict[str, object]:
    changed = np.array(log[name], dtype=float)
    changed[rows] = value
    return {**log, name: changed}


def tables(*logs: dict[str, object]) -> list[StepTable]:
    return [StepTable.from_arrays(log) for log in logs]


def test_says_where_that_rank_was_in_its_data_where_its_log_does() -> None:
    own = own_log(data_position=np.arange(ROWS))
    log = with_value(rank_log(1), "loss", slice(120, 121), np.nan)
    (silent,) = found(rank_divergence, signals_of(columns=own, ranks=tables(log)))
    assert "position" not in silent.remedy
    log["data_position"] = 2 * np.arange(ROWS)
    (finding,) = found(rank_divergence, signals_of(columns=own, ranks=tables(log)))
    assert finding.remedy.startswith(
        "Look at the samples that rank 1 had at step 120 (data position 240); if they are sound"
    )


def test_fires_on_the_rank_whose_loss_goes_bad_alone() -> None:
    own = with_value(own_log(), "grad_l2_pre_clip", slice(120, 121), np.nan)
    sick = with_value(rank_log(2), "loss", slice(120, 121), np.nan)
    signals = signals_of(columns=own, ranks=tables(rank_log(1), sick))
    (finding,) = found(rank_divergence, signals)
    assert finding.severity is Severity.ERROR
    assert finding.subject == "rank 2"
    assert (finding.first_step, finding.last_step) == (120, 120)
    assert {e.signal for e in finding.evidence} == {"loss of rank 2", "loss of rank 0"}


def test_fires_on_a_local_norm_without_a_scaler() -> None:
    sick = with_value(rank_log(1), "grad_l2_pre_clip", slice(50, 52), np.inf)
    (finding,) = found(rank_divergence, signals_of(columns=own_log(), ranks=tables(sick)))
    assert finding.first_step == 50
    assert "local gradient norm" in finding.message


def test_fires_on_rank_zero_itself() -> None:
    own = with_value(own_log(), "loss", slice(70, 71), np.nan)
    (finding,) = found(rank_divergence, signals_of(columns=own, ranks=tables(rank_log(1))))
    assert finding.subject == "rank 0"


def test_fires_on_reduced_norms_that_differ() -> None:
    own = own_log()
    other = rank_log(1, grad_l2_pre_clip=own["grad_l2_pre_clip"])
    changed = np.array(other["grad_l2_pre_clip"], dtype=float)
    changed[200:] *= 1.001
    other["grad_l2_pre_clip"] = changed
    (finding,) = found(rank_divergence, signals_of(columns=own, ranks=tables(other)))
    assert (finding.first_step, finding.last_step) == (200, 299)
    assert "reduced" in finding.message


def test_fires_on_reduced_norms_that_never_agree_where_local_ones_are_logged() -> None:
    other = rank_log(1, grad_l2_local=np.full(ROWS, 3.0))
    (finding,) = found(rank_divergence, signals_of(columns=own_log(), ranks=tables(other)))
    assert finding.first_step == 0


def test_silent_when_ranks_agree_or_have_their_own_norms() -> None:
    own = own_log()
    same = rank_log(2, grad_l2_pre_clip=np.asarray(own["grad_l2_pre_clip"]) * (1 + 1e-7))
    assert not found(rank_divergence, signals_of(columns=own, ranks=tables(rank_log(1), same)))


def test_silent_when_all_ranks_go_bad_together() -> None:
    own = with_value(own_log(), "loss", slice(100, ROWS), np.nan)
    other = with_value(rank_log(1), "loss", slice(100, ROWS), np.nan)
    assert not found(rank_divergence, signals_of(columns=own, ranks=tables(other)))


def test_silent_on_an_overflow_that_the_scaler_skips() -> None:
    scale = np.full(ROWS, 1024.0)
    scale[151:] = 512.0
    own = own_log(scaler_scale=scale)
    own = with_value(own, "grad_l2_pre_clip", slice(150, 151), np.inf)
    own = with_value(own, "skipped", slice(150, 151), 1)
    other = with_value(rank_log(1), "grad_l2_pre_clip", slice(150, 151), np.inf)
    assert not found(rank_divergence, signals_of(columns=own, ranks=tables(other)))


def test_silent_on_ranks_without_a_log_or_a_common_step() -> None:
    empty = StepTable.from_arrays({})
    elsewhere = StepTable.from_arrays({"step": np.arange(5000, 5010), "loss": np.full(10, np.nan)})
    assert not found(rank_divergence, signals_of(columns=own_log(), ranks=[empty, elsewhere]))


def test_skipped_with_one_rank() -> None:
    assert "one rank" in rank_divergence.why_skipped(signals_of(columns=own_log()))


CELL = st.sampled_from([0.0, 1.0, 1 + 1e-9, 2.0, np.nan, np.inf, -np.inf, 1e300])


@settings(deadline=None, max_examples=60)
@given(st.data(), st.integers(1, 3))
def test_any_rank_logs_are_read_without_an_exception(data: st.DataObject, ranks: int) -> None:
    def log() -> dict[str, object]:
        rows = data.draw(st.integers(1, 20))
        cells = st.lists(CELL, min_size=rows, max_size=rows)
        start = data.draw(st.integers(0, 5))
        return {
            "step": np.arange(start, start + rows),
            "loss": data.draw(cells),
            "grad_l2_pre_clip": data.draw(cells),
        }

    own = log()
    signals = signals_of(columns=own, ranks=tables(*(log() for _ in range(ranks))))
    for finding in found(rank_divergence, signals):
        assert signals.step[0] <= finding.first_step <= finding.last_step <= signals.step[-1]


@pytest.mark.parametrize("rows", [0, 1])
def test_silent_on_a_log_of_almost_nothing(rows: int) -> None:
    own = {"step": np.arange(rows), "loss": np.ones(rows)}
    assert not found(rank_divergence, signals_of(columns=own, ranks=tables(rank_log(1))))
