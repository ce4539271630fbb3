"""Gathering rows into places: nothing that a reader must see gets lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.chart_grid import Grid

VALUES = st.one_of(
    st.floats(-1e6, 1e6), st.sampled_from([float("nan"), float("inf"), float("-inf"), 0.0])
)


@st.composite
def logs(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, int]:
    rows = draw(st.integers(1, 60))
    gaps = draw(arrays(np.int64, rows, elements=st.integers(1, 1000)))
    values = draw(arrays(np.float64, rows, elements=VALUES))
    return np.cumsum(gaps), values, draw(st.integers(1, 20))


@settings(deadline=None, max_examples=60)
@given(logs())
def test_each_place_holds_the_extremes_of_its_rows(log: tuple[np.ndarray, np.ndarray, int]) -> None:
    step, values, places = log
    finite = np.where(np.isfinite(values), values, np.nan)
    grid = Grid.of(step, places)
    assert 1 <= len(grid) <= places or len(grid) == len(step)
    low, high, middle = grid.low(finite), grid.high(finite), grid.middle(finite)
    for place, (a, b) in enumerate(zip(grid.starts, grid.ends, strict=True)):
        own = finite[a:b][~np.isnan(finite[a:b])]
        assert b > a
        if len(own) == 0:
            assert np.isnan([low[place], high[place]]).all()
        else:
            assert (low[place], high[place]) == (own.min(), own.max())
            assert np.isnan(middle[place]) or own.min() <= middle[place] <= own.max()
    assert grid.starts[0] == 0
    assert (grid.step == step[grid.starts]).all()


@settings(deadline=None, max_examples=60)
@given(logs(), st.sets(st.integers(0, 59)))
def test_rows_kept_apart_have_a_place_each_and_the_others_lose_nothing(
    log: tuple[np.ndarray, np.ndarray, int], apart: set[int]
) -> None:
    step, values, places = log
    kept = np.array(sorted(row for row in apart if row < len(step)), dtype=np.int64)
    grid, plain = Grid.of(step, places, kept), Grid.of(step, places)
    alone = grid.starts[grid.ends - grid.starts == 1]
    assert np.isin(kept, alone).all()
    assert np.isin(plain.starts, grid.starts).all()
    assert len(grid) <= len(plain) + 2 * len(kept)
    finite = np.where(np.isfinite(values), values, np.nan)
    assert np.array_equal(
        grid.low(finite)[np.isin(grid.starts, kept)], finite[kept], equal_nan=True
    )


@settings(deadline=None, max_examples=60)
@given(logs())
def test_spans_hold_every_bad_row_and_begin_and_end_with_one(
    log: tuple[np.ndarray, np.ndarray, int],
) -> None:
    step, values, places = log
    bad = ~np.isfinite(values)
    spans = Grid.of(step, places).spans(bad, values)
    assert sum(span.count for span in spans) == bad.sum()
    inside = np.zeros(len(step), dtype=bool)
    for span in spans:
        inside |= (step >= span.first_step) & (step <= span.last_step)
        assert bad[step == span.first_step].all()
        assert bad[step == span.last_step].all()
        assert np.array_equal(values[step == span.first_step], [span.value], equal_nan=True)
    assert inside[bad].all()


def test_few_rows_are_places_of_their_own() -> None:
    grid = Grid.of(np.array([3, 5, 9]), 3)
    values = np.array([2.0, np.nan, 1.0])
    for found in (grid.low(values), grid.high(values), grid.middle(values)):
        assert np.array_equal(found, values, equal_nan=True)
    assert grid.step.tolist() == [3, 5, 9]


def test_places_are_equally_wide_in_steps_not_in_rows() -> None:
    step = np.concatenate([np.arange(1000), [9999]])
    grid = Grid.of(step, 10)
    assert grid.step.tolist() == [0, 9999]


def test_one_spike_and_one_nan_in_a_million_rows_are_kept() -> None:
    values = np.random.default_rng(0).normal(size=1_000_000)
    values[700_001] = 1e9
    grid = Grid.of(np.arange(1_000_000), 1200)
    assert grid.high(values).max() == 1e9
    bad = np.zeros(1_000_000, dtype=bool)
    bad[123_456] = True
    assert [(s.first_step, s.last_step) for s in grid.spans(bad, values)] == [(123_456, 123_456)]


def test_an_empty_log_has_no_places() -> None:
    grid = Grid.of(np.array([], dtype=np.int64), 5)
    nothing = np.array([])
    assert len(grid) == len(grid.low(nothing)) == len(grid.middle(nothing)) == 0
    assert grid.spans(nothing.astype(bool), nothing) == ()


def test_events_are_counted_by_place() -> None:
    grid = Grid.of(np.arange(100), 10)
    first, count = grid.gathered(np.array([1, 5, 55, 99]), np.array([1, 2, 4, 8]))
    assert first.tolist() == [0, 2, 3]
    assert count.tolist() == [3, 4, 8]


@pytest.mark.parametrize("last", [2**62, 2**63 - 1])
def test_steps_as_large_as_they_can_be(last: int) -> None:
    step = np.array([0, 1, 2, last], dtype=np.int64)
    grid = Grid.of(step, 2)
    assert grid.low(np.array([1.0, 2.0, 3.0, 4.0])).tolist() == [1.0, 4.0]
