"""The step table in memory."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.steps import StepTable, all_present, text_column
from tests.unit.runlog.logs import assert_same

TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=6)


@st.composite
def tables(draw: st.DrawFn) -> StepTable:
    rows = draw(st.integers(0, 12))

    def column(cell: st.SearchStrategy[object]) -> list[object]:
        return draw(st.lists(cell, min_size=rows, max_size=rows))

    steps = st.integers(-(2**63), 2**63 - 1)
    arrays = {
        "step": np.array(draw(st.lists(steps, min_size=rows, max_size=rows, unique=True)), "int64"),
        "loss": np.array(column(st.floats()), "float64"),
        "skipped": np.array(column(st.booleans()), bool),
        "skip_reason": np.array(column(TEXTS), object),
        "my metric": np.array(column(st.floats(width=32)), "float32"),
        "my note": np.array(column(TEXTS), object),
    }
    masks = {name: np.array(column(st.booleans()), bool) for name in ("loss", "skipped")}
    return StepTable.from_arrays(arrays, masks)


@settings(deadline=None, max_examples=60)
@given(tables())
def test_pandas_gives_back_the_same_table(table: StepTable) -> None:
    frame = table.to_pandas(masks=True)
    assert_same(StepTable.from_pandas(frame), table)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(-5, 5), max_size=20))
def test_rows_come_out_in_order_and_the_last_of_each_step_wins(steps: list[int]) -> None:
    table = StepTable.from_arrays({"loss": np.arange(len(steps)) * 1.0, "step": steps})
    last = {step: float(row) for row, step in enumerate(steps)}
    assert table.step.tolist() == sorted(last)
    assert table["loss"].tolist() == [last[step] for step in sorted(last)]
    assert table.step.dtype == np.int64


def test_without_masks_absent_and_nan_look_alike_in_pandas() -> None:
    table = StepTable.from_arrays(
        {"loss": [np.nan, 1.0, 2.0]}, {"loss": np.array([True, False, True])}
    )
    assert table.to_pandas()["loss"].isna().tolist() == [True, True, False]
    assert table.to_pandas(masks=True)["loss.present"].tolist() == [True, False, True]


def test_a_frame_of_somebody_else_becomes_a_table() -> None:
    frame = pd.DataFrame(
        {
            "step": pd.array([2, 0, 1], dtype="Int64"),
            "loss": [2.0, np.nan, 1.0],
            "skipped": pd.array([True, None, False], dtype="boolean"),
            "note": ["b", None, "c"],
            "acc": pd.array([0.5, None, 0.25], dtype="Float64"),
            7: [1, 2, 3],
        }
    )
    table = StepTable.from_pandas(frame)
    assert table.step.tolist() == [0, 1, 2]
    assert np.isnan(table["loss"][0])
    assert table.present("loss").all()
    assert table["skipped"].tolist() == [False, False, True]
    assert table.present("skipped").tolist() == [False, True, True]
    assert table.columns["note"].texts().tolist() == ["", "c", "b"]
    assert table.present("acc").tolist() == [False, True, True]
    assert table["acc"].dtype == np.float64
    assert table["7"].tolist() == [2.0, 3.0, 1.0]


def test_absent_cells_hold_nan_and_false() -> None:
    gone = np.array([False, True])
    table = StepTable.from_arrays(
        {"loss": [1.0, 2.0], "skipped": [True, True], "skip_reason": ["x", "y"]},
        {"loss": gone, "skipped": gone, "skip_reason": gone},
    )
    assert np.isnan(table["loss"][0])
    assert table["skipped"].tolist() == [False, True]
    assert table.columns["skip_reason"].text_at(0) == ""
    assert not table.present("skip_reason")[0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"step": [0, 1], "loss": [1.0]},
        {"step": [0.5]},
        {"step": [np.nan]},
        {"step": [2.0**64]},
        {"step": [2**70]},
        {"step": [None]},
        {"loss": [[1.0]]},
        {"loss": ["high"]},
    ],
)
def test_arrays_that_make_no_table_are_refused(arrays: dict[str, object]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - numpy words some of them
        StepTable.from_arrays(arrays)


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="mask of loss"):
        StepTable.from_arrays({"loss": [1.0, 2.0]}, {"loss": np.array([True])})


def test_no_step_column_counts_the_rows_and_canonical_columns_come_first() -> None:
    table = StepTable.from_arrays({"zeta": [1.0], "scaler_scale": [1.0], "loss": [1.0]})
    assert list(table) == ["step", "loss", "scaler_scale", "zeta"]
    assert table.step.tolist() == [0]


def test_take_keeps_masks_texts_and_repairs() -> None:
    table = StepTable.from_arrays(
        {"loss": [1.0, 2.0, 3.0], "skip_reason": ["", "a", "b"]},
        {"loss": np.array([True, False, True])},
    )
    part = table.take(slice(1, None))
    assert part.present("loss").tolist() == [False, True]
    assert part.columns["skip_reason"].text_at(1) == "b"
    assert part.source_format == table.source_format


def test_presence_of_what_is_not_there() -> None:
    table = StepTable.from_arrays({"loss": [1.0], "lr": [1.0]}, {"lr": np.array([False])})
    assert not table.present("nope").any()
    assert not table.has("nope")
    assert not table.has("lr")
    assert table.has("loss")
    assert "lr" in table


def test_the_mask_of_a_full_column_takes_no_memory() -> None:
    assert all_present(10**9).strides == (0,)


def test_text_columns_code_the_empty_text_as_absent() -> None:
    column = text_column(["", "a", "a", ""])
    assert column.values.tolist() == [0, 1, 1, 0]
    assert column.present.tolist() == [False, True, True, False]
