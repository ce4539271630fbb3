"""The step of a printed record, from bars that lag behind it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.importers.hf_bar_steps import Found, dated
from tests.unit.runlog.importers.logs import column, read


def steps_of(found: list[Found], interval: int = 0) -> list[int]:
    return [record["step"] for record in dated(found, found, interval)]


def trained(done: int, after: int | None) -> Found:
    return Found(done, after, {"loss": 1.0})


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 50), st.integers(2, 40), st.integers(0, 20), st.integers(0, 2**16))
def test_any_lag_below_the_interval_is_undone(
    every: int, rows: int, before: int, seed: int
) -> None:
    lag = Random(seed)
    true = [every * (before + i + 1) for i in range(rows)]
    found = [trained(step - lag.randrange(min(every, 12)), step) for step in true]
    assert steps_of(found) == true


def test_a_bar_that_comes_only_with_the_next_record_does_not_move_it() -> None:
    found = [trained(step, step + 10) for step in range(10, 400, 10)]
    assert steps_of(found) == list(range(10, 400, 10))


def test_the_first_step_is_logged_by_itself() -> None:
    found = [trained(1, 1), *(trained(step - step % 3, step) for step in range(10, 200, 10))]
    assert steps_of(found) == [1, *range(10, 200, 10)]


@pytest.mark.parametrize("before", [0, 4])
def test_no_record_is_at_step_0(before: int) -> None:
    """Between the bars 0/60 and 10/60 lies the record of step 10, not of step 0."""
    bars = [(before, 10), (14, 20), (28, 30), (30, 40), (43, 50), (59, 60)]
    assert steps_of([trained(done, after) for done, after in bars]) == list(range(10, 61, 10))


def test_a_lone_record_before_the_bar_moves_is_where_it_is_drawn_next() -> None:
    assert steps_of([trained(0, 10)]) == [10]
    assert steps_of([trained(0, None)]) == [1]
    assert steps_of([trained(0, 1), *(trained(step, step) for step in range(10, 60, 10))])[0] == 1


def test_a_lost_record_leaves_its_gap() -> None:
    true = [step for step in range(5, 100, 5) if step not in (35, 40)]
    assert steps_of([trained(step - 1, step) for step in true]) == true


def test_an_evaluation_is_not_before_the_record_of_its_step() -> None:
    found = [trained(9, 10), trained(19, 20), Found(19, 20, {"eval_loss": 2.0}), trained(30, 30)]
    assert steps_of(found) == [10, 20, 20, 30]


def test_uneven_records_keep_what_the_bar_shows() -> None:
    true = [3, 4, 11, 29, 31, 60, 61, 77]
    assert steps_of([trained(step, step) for step in true]) == true


def test_a_log_redrawn_ten_times_a_second(tmp_path: Path) -> None:
    bar = "\r{:3d}%|#     | {}/80 [00:01<00:02, 17.88it/s]"
    text, drawn = "", 0
    for step in range(1, 81):
        if step % 4 == 1:
            drawn = step
            text += bar.format(step, step)
        if step % 5 == 0:
            text += f"\r       \r{{'loss': '{4 - step / 40}', 'epoch': '{step / 32:.4g}'}}\n"
            text += bar.format(step, step)
    assert drawn == 77
    table = read(tmp_path, text)
    assert table.step.tolist() == list(range(5, 81, 5))
    assert table.interval == 5
    assert column(table, "loss")[-1] == 2.0
