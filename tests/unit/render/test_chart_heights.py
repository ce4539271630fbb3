"""Heights and ticks of every layout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.chart_axis import Axis, Layout
from forensics.render.chart_heights import Heights

AXES = [Axis(Layout.LINEAR), Axis(Layout.LOG), Axis(Layout.LOG2), Axis(Layout.SYMLOG, 0.5)]


@pytest.mark.parametrize("axis", AXES, ids=lambda axis: axis.layout)
@settings(deadline=None, max_examples=40)
@given(pair=st.tuples(*[st.floats(1e-9, 1e9)] * 2))
def test_larger_values_are_higher_and_ticks_lie_within(
    axis: Axis, pair: tuple[float, float]
) -> None:
    heights = Heights(axis)
    low, high = sorted(heights.of(np.array(pair)).tolist())
    assert (heights.of(pair[0]) <= heights.of(pair[1])) == (pair[0] <= pair[1]) or low == high
    ticks = heights.ticks(low, high)
    places = [height for height, _ in ticks]
    assert places == sorted(places)
    slack = 1e-9 * max(abs(low), abs(high), 1)
    assert all(low - slack <= place <= high + slack for place in places)
    assert len({text for _, text in ticks}) == len(ticks) or high - low < slack
    assert len(ticks) <= 13


@pytest.mark.parametrize("layout", [Layout.LOG, Layout.LOG2])
def test_what_has_no_place_is_nan(layout: Layout) -> None:
    heights = Heights(Axis(layout)).of(np.array([0.0, -1.0, np.nan, np.inf]))
    assert np.isnan(heights).all()


@pytest.mark.parametrize(
    ("axis", "span", "texts"),
    [
        (Axis(Layout.LINEAR), (0.0, 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (Axis(Layout.LINEAR), (1.9, 2.1), ["1.9", "1.95", "2", "2.05", "2.1"]),
        (Axis(Layout.LOG), (-6.0, 6.0), ["1e-6", "0.001", "1", "1,000", "1e6"]),
        (Axis(Layout.LOG), (-348.0, 348.0), ["1e-300", "1e-150", "1", "1e150", "1e300"]),
        (Axis(Layout.LOG), (0.0, 1.0), ["1", "2", "5", "10"]),
        (Axis(Layout.LOG), (-1.0, 1.0), ["0.1", "0.3", "1", "3", "10"]),
        (Axis(Layout.LOG), (0.1, 0.12), ["1.26", "1.28", "1.3"]),
        (Axis(Layout.LOG2), (0.0, 16.0), ["2^0", "2^4", "2^8", "2^12", "2^16"]),
    ],
)
def test_ticks_are_round_numbers(axis: Axis, span: tuple[float, float], texts: list[str]) -> None:
    assert [text for _, text in Heights(axis).ticks(*span)] == texts


def test_both_signs_have_ticks_on_a_symmetric_axis() -> None:
    heights = Heights(Axis(Layout.SYMLOG, 1.0))
    low, high = heights.of(np.array([-1e6, 1e6])).tolist()
    texts = [text for _, text in heights.ticks(low, high)]
    assert texts[0].startswith("-")
    assert "0" in texts
    assert len(texts) == 5
