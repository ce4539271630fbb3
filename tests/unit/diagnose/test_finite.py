import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose.finite import FiniteSeries, KeptRows

MASKS = arrays(np.bool_, st.integers(0, 60))


@given(MASKS, st.data())
def test_kept_rows_are_indexed_like_the_array_of_their_numbers(
    mask: np.ndarray, data: st.DataObject
) -> None:
    rows, plain = KeptRows.of(mask), np.flatnonzero(mask)
    assert len(rows) == len(plain)
    assert rows.complete == bool(mask.all())
    np.testing.assert_array_equal(rows[np.arange(len(plain))], plain)
    low, high = data.draw(st.integers(-70, 70)), data.draw(st.integers(-70, 70))
    np.testing.assert_array_equal(rows[low:high], plain[low:high])
    for index in range(-len(plain), len(plain)):
        assert rows[index] == plain[index]
    with pytest.raises(IndexError):
        rows[len(plain)]


@given(MASKS)
def test_kept_rows_take_their_values_out_of_a_column(mask: np.ndarray) -> None:
    column = np.arange(len(mask)) * 10.0
    np.testing.assert_array_equal(KeptRows.of(mask).of_column(column), column[mask])


@given(arrays(np.float64, st.integers(0, 60)))
def test_a_finite_series_holds_the_finite_values_and_their_rows(values: np.ndarray) -> None:
    series = FiniteSeries.of(values)
    finite = np.isfinite(values)
    np.testing.assert_array_equal(series.values, values[finite])
    np.testing.assert_array_equal(series.rows[:], np.flatnonzero(finite))
    assert len(series) == finite.sum()


def test_a_series_without_gaps_is_not_copied() -> None:
    values = np.arange(5.0)
    assert FiniteSeries.of(values).values is values


@given(arrays(np.float64, st.integers(0, 60)))
def test_a_series_is_mapped_where_it_is_kept(values: np.ndarray) -> None:
    kept = np.isfinite(values) & (values > 0)
    series = FiniteSeries.mapped(values, kept, np.log)
    np.testing.assert_array_equal(series.values, np.log(values[kept]))
    np.testing.assert_array_equal(series.rows[:], np.flatnonzero(kept))
