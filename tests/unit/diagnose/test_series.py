import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.series import (
    block_medians,
    episodes,
    runs_of,
    spread_out,
)


@given(arrays(np.bool_, st.integers(0, 50)))
def test_runs_cover_exactly_the_true_rows(mask: np.ndarray) -> None:
    covered = np.zeros(len(mask), dtype=bool)
    starts, ends = runs_of(mask)
    for start, end in zip(starts, ends, strict=True):
        assert not covered[max(0, start - 1) : end + 1].any()
        covered[start : end + 1] = True
    assert (covered == mask).all()


def test_episodes_break_only_after_more_than_the_gap() -> None:
    rows = np.array([3, 5, 15, 26])
    assert episodes(rows, gap=10) == [(3, 15), (26, 26)]
    assert episodes(rows[:0], gap=10) == []


def test_block_medians_leave_out_what_is_not_finite() -> None:
    values = np.array([1.0, np.nan, 1.0, 3.0, np.inf, 3.0])
    np.testing.assert_array_equal(block_medians(values, 2), [1.0, 3.0])
    assert len(block_medians(np.full(5, np.nan), 4)) == 0
    assert len(block_medians(np.arange(3.0), 40)) == 3


@given(st.integers(1, 500), st.integers(2, 20))
def test_spread_out_keeps_both_ends(count: int, most: int) -> None:
    rows = np.arange(count)
    picked = spread_out(rows, most)
    assert len(picked) <= max(most, 1)
    assert picked[0] == 0
    assert picked[-1] == count - 1
