"""A loss that is switched off, told from one that arrives at 0."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.zero_loss import switched_off
from tests.unit.diagnose.step_logs import NAN, calm, run_of, with_values


def test_names_the_row_whatever_the_gaps_in_the_log() -> None:
    columns = calm(200)
    columns["loss"][120:] = 0.0
    assert switched_off(run_of(columns)) == 120
    written = np.arange(200) % 4 == 0
    columns["loss"] = np.where(written, columns["loss"], NAN)
    assert switched_off(run_of(columns, masks={"loss": written})) == 120


@pytest.mark.parametrize(
    "loss",
    [
        np.zeros(200),
        np.full(200, 2.0),
        np.maximum(0.0, 2.0 - np.arange(200) / 70),
        np.round(0.5 * np.exp(-np.arange(200) / 10), 2),
        with_values(np.linspace(2, 1, 200), slice(195, None), 0.0) * (np.arange(200) != 190),
        with_values(with_values(np.linspace(2, 1, 200), slice(150, None), 0.0), 149, np.nan),
    ],
    ids=["always", "never", "straight", "printed", "mixed", "after a NaN"],
)
def test_none_where_it_was_going_there_or_nothing_tells(loss: np.ndarray) -> None:
    assert switched_off(run_of(calm(200, loss=loss))) is None


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from([0.0, 1.0, -2.0, 1e-9, NAN, np.inf]), max_size=60))
def test_any_losses(values: list[float]) -> None:
    row = switched_off(run_of(calm(len(values), loss=np.array(values, dtype=float))))
    if row is not None:
        assert row >= 10
        assert all(value == 0 for value in values[row:])
        assert all(np.isfinite(value) and value != 0 for value in values[row - 10 : row])
