"""What is left of a log that has too many rows: one in so many steps, and all that stands out."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.thinning import leaps, telling_rows
from forensics.runlog.steps import Column, StepTable, all_present

COUNT = 20_000


def columns(**arrays: list[float] | np.ndarray) -> dict[str, Column]:
    found = {}
    for name, values in arrays.items():
        array = np.asarray(values)
        found[name] = Column(array, all_present(len(array)))
    return found


def long_log(most: int | None, rows: int = COUNT) -> tuple[Rows, StepTable]:
    """A loop that logs every step; what happens in it stands in the tests below."""
    log = RepairLog(most)
    gathered = Rows(log, size=0)
    noise = np.random.default_rng(0).normal(size=rows)
    for start in range(0, rows, 500):
        step = np.arange(start, start + 500)
        loss = 2.0 + 0.01 * noise[start : start + 500]
        loss[(step >= 5_001) & (step < 5_004)] = np.nan
        loss[step == 7_777] = 9.0
        scale = np.where(step < 3_001, 65536.0, 32768.0)
        skipped = step == 8_889
        gathered.extend({"step": step, "loss": loss, "scaler_scale": scale, "skipped": skipped})
    return gathered, gathered.table("it", LogFacts(interval=1))


def test_it_holds_few_rows_and_all_that_happened() -> None:
    _, whole = long_log(None)
    gathered, table = long_log(2_000)
    assert len(whole) == COUNT == len(gathered)
    assert len(table) < 2_000
    happened = [3_000, 3_001, 5_000, 5_001, 5_003, 5_004, 7_777, 8_888, 8_889, 8_890]
    assert set(happened) <= set(table.step.tolist())
    assert set(table.step.tolist()) >= {0, COUNT - 1}
    for name in ("loss", "scaler_scale", "skipped"):
        np.testing.assert_array_equal(table[name], whole[name][table.step])


def test_it_reads_as_if_every_kth_step_were_logged() -> None:
    _, table = long_log(2_000)
    stride = table.interval
    assert stride in (16, 32)
    covered = table["covered_steps"]
    assert covered.sum() >= COUNT - stride, "what the rows cover is the whole log"
    assert covered[table.step.tolist().index(5_003)] == 2
    (note,) = [repair for repair in table.repairs if repair.kind == "thinned-rows"]
    assert f"of {stride} steps one is kept" in note.message
    assert note.count == COUNT - len(table)


def test_a_log_of_few_rows_is_read_whole() -> None:
    _, table = long_log(COUNT)
    assert len(table) == COUNT
    assert not table.repairs
    assert "covered_steps" not in table


def test_rows_of_which_each_tells_are_kept() -> None:
    gathered = Rows(RepairLog(1_000))
    step = np.arange(8_000)
    gathered.extend({"step": step, "loss": np.where(step % 2, np.nan, 2.0)})
    gathered.extend({"step": step + 8_000, "loss": np.full(8_000, 2.0)})
    table = gathered.table("it", LogFacts())
    bad = table.step[np.isnan(table["loss"])]
    assert len(bad) > 8_000 / 64
    assert bad[-1] == 7_999


def test_ranks_and_parts_of_a_step_stay_together() -> None:
    step = np.repeat(np.arange(1_000), 3)
    loss = np.tile([2.0, 2.5, 3.0], 1_000)
    loss[1_501] = np.nan
    keep = telling_rows(columns(step=step, loss=loss), 100)
    assert keep.sum() == 3 * len(np.unique(step[keep]))
    assert {0, 500, 999} <= set(step[keep].tolist())


def test_a_counter_that_stands_still_is_thinned_as_well() -> None:
    gathered = Rows(RepairLog(10_000))
    step = np.concatenate((np.arange(3_000), np.full(60_000, 7)))
    gathered.extend({"step": step, "loss": np.full(len(step), 2.0)})
    table = gathered.table("it", LogFacts())
    assert table.step.tolist() == list(range(3_000))


def test_both_sides_of_a_restart_are_kept() -> None:
    step = np.concatenate((np.arange(700), np.arange(333, 900)))
    keep = telling_rows(columns(step=step, loss=np.full(len(step), 2.0)), 100)
    assert keep[[699, 700]].all()
    assert keep.sum() < 30


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_no_stretch_loses_its_last_cell_or_its_bad_one(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 400))
    stride = data.draw(st.integers(1, 60))
    kinds = st.lists(st.sampled_from([2.0, np.nan, np.inf, None]), min_size=size, max_size=size)
    cells = data.draw(kinds)
    step = np.cumsum(data.draw(st.lists(st.integers(-2, 5), min_size=size, max_size=size)))
    values = np.array([np.nan if cell is None else cell for cell in cells])
    present = np.array([cell is not None for cell in cells])
    table = {"step": Column(step, all_present(size)), "loss": Column(values, present)}
    keep = telling_rows(table, stride)
    bad = present & ~np.isfinite(values)
    for stretch in np.unique(step // stride):
        within = step // stride == stretch
        for among in (present, bad):
            assert not (within & among).any() or (within & among & keep).any()


def test_leaps_are_found_at_the_end_and_beside_what_is_bad() -> None:
    values = 2.0 + 0.01 * np.random.default_rng(1).normal(size=1_100)
    values[[100, 1_090]] = 3.0
    there = np.ones(1_100, dtype=bool)
    values[101], there[101] = np.nan, False
    assert np.flatnonzero(leaps(values, there)).tolist() == [100, 1_090]
    assert not leaps(np.full(300, 2.0), np.ones(300, dtype=bool)).any()
