import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forensics.diagnose import blocks
from forensics.diagnose.blocks import first_where, mapped, mask_where, moved, rows_where
from forensics.diagnose.engine import diagnose
from forensics.render.json_report import render_json
from tests.corpus.scoring import make


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks so small that short series have edges; 128 is what the spike detector needs."""
    monkeypatch.setattr(blocks, "BLOCK", 128)


@given(st.integers(0, 70_000), st.integers(0, 100))
def test_blocks_cover_every_row_once(stop: int, start: int) -> None:
    rows = [row for at in blocks.blocks(stop, start) for row in (at.start, at.stop)]
    assert rows[:1] == ([start] if start < stop else [])
    assert rows[-1:] == ([stop] if start < stop else [])
    assert rows[1:-1:2] == rows[2::2]


@pytest.mark.usefixtures("small")
def test_a_test_in_blocks_finds_what_one_over_everything_finds() -> None:
    values = np.random.default_rng(0).normal(size=1000)
    high = np.flatnonzero(values > 1)
    np.testing.assert_array_equal(rows_where(1000, lambda at: values[at] > 1), high)
    np.testing.assert_array_equal(
        rows_where(1000, lambda at: values[at] > 1, 300), high[high > 299]
    )
    np.testing.assert_array_equal(first_where(1000, lambda at: values[at] > 1, 20), high[:20])
    np.testing.assert_array_equal(mask_where(1000, lambda at: values[at] > 1), values > 1)
    np.testing.assert_array_equal(mapped(np.exp, values), np.exp(values))
    rises = rows_where(999, lambda at: values[moved(at, 1)] > values[at])
    np.testing.assert_array_equal(rises, np.flatnonzero(np.diff(values) > 0))


def test_no_block_is_asked_once_enough_is_found() -> None:
    asked = []

    def every(at: slice) -> np.ndarray:
        asked.append(at)
        return np.ones(at.stop - at.start, dtype=bool)

    assert first_where(10 * blocks.BLOCK, every, 3).tolist() == [0, 1, 2]
    assert len(asked) == 1


@pytest.mark.parametrize(
    "case",
    [
        "fp16-sawtooth-bursty",
        "clip-before-unscale-inferred-adam",
        "lr-zero-midway",
        "loss-spikes-repeated",
        "clipped-more-and-more",
    ],
)
def test_what_is_found_does_not_depend_on_the_size_of_blocks(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(case, 0).run
    whole = render_json([diagnose(run)])
    monkeypatch.setattr(blocks, "BLOCK", 128)
    assert render_json([diagnose(run)]) == whole


@given(arrays(np.float64, st.integers(0, 300)))
def test_mapped_keeps_the_shape(values: np.ndarray) -> None:
    assert mapped(np.abs, values).shape == values.shape
