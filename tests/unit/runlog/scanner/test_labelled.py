"""Records whose cells name themselves: the learned pattern reads what cell by cell would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.scanner import labelled
from forensics.runlog.scanner.labelled import LabelledRecords, Layout
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.steps import StepTable

COLUMNS = {"loss": "loss", "grad norm": "grad_l2_pre_clip", "scale": "scaler_scale"}
LAYOUT = Layout(
    start=rb"step (?P<step>\d+) *(?=\|)",
    gap=rb"\| *",
    key=rb"[a-z][a-z ]*?",
    equals=rb": *",
    value=rb"[^|\n]*",
    column=COLUMNS.get,
    mark=b"step",
)


def table_of(text: bytes, **beside: object) -> StepTable:
    rows = Rows(RepairLog())
    LabelledRecords(LAYOUT, rows).read(text, **beside)  # type: ignore[arg-type]
    return rows.table("it", LogFacts(interval=1), must_tell=False)


def same_tables(one: StepTable, two: StepTable) -> None:
    names = {name for name in (*one, *two) if one.has(name) or two.has(name)}
    for name in names:
        np.testing.assert_array_equal(one.present(name), two.present(name))
        there = one.present(name)
        np.testing.assert_array_equal(one[name][there], two[name][there])


CELL = st.sampled_from(
    ["loss: 2.5", "loss: nan", "loss: 1,234.5", "loss: -", "grad norm: 0.75", "scale: 65536.0",
     "scale: 8 of 9", "eta: 1:02:03", "mfu: 3%", "grad norm: 1e-3 x"]
)  # fmt: skip
RECORD = st.lists(CELL, max_size=5, unique_by=lambda cell: cell.split(":")[0])


@settings(deadline=None, max_examples=150)
@given(st.lists(RECORD, min_size=1, max_size=30), st.booleans())
def test_together_and_one_by_one_are_the_same(records: list[list[str]], glued: bool) -> None:
    lines = [f"step {n} | " + " | ".join(cells) + " |" for n, cells in enumerate(records)]
    text = (" " if glued else "\n").join(lines).encode() + b"\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "_WORTHWHILE", 0)
        together = table_of(text)
        patch.setattr(labelled, "_WORTHWHILE", 1 << 30)
        same_tables(together, table_of(text))
    assert together.step.tolist() == list(range(len(records)))


def test_a_number_is_never_cut_short() -> None:
    """A cell of a new name behind a number must not make it give back digits."""
    text = b"".join(b"step %d | loss: 123.456 |\n" % n for n in range(40))
    text += b"step 40 | loss: 123.456 | new: 1 |\n" + b"step 41 | new: 1 | loss: 123.456 |\n"
    assert table_of(text)["loss"].tolist() == [123.456] * 42


def test_cells_beside_a_record_go_before_its_own() -> None:
    text = b"".join(b"step %d | loss: 2.5 | scale: 8.0 | mfu: 3%% |\n" % n for n in range(40))
    table = table_of(text, beside={3: {"skipped_steps": 2, "scaler_scale": 4.0, "loss": None}})
    assert table["skipped_steps"][3] == 2
    assert table.present("skipped_steps").sum() == 1
    assert table["scaler_scale"][2:5].tolist() == [8.0, 4.0, 8.0]
    assert table.present("loss").sum() == 39


def test_names_without_end_are_given_up_and_still_read() -> None:
    text = "".join(
        f"step {n} | loss: 2.5 | {'abcdefghij'[n % 10]}{'abcdefghij'[n // 10 % 10]}x: 1 |\n"
        for n in range(90)
    )
    assert table_of(text.encode())["loss"].tolist() == [2.5] * 90


def test_a_name_may_have_letters_that_no_pattern_could_name_a_group_by() -> None:
    layout = replace(LAYOUT, key=rb"[^|:\n]+?", column=lambda name: name)
    rows = Rows(RepairLog())
    text = "".join(f"step {n} | loss: 2.5 | größe: {n}.5 | 3d: 7\n" for n in range(40))
    LabelledRecords(layout, rows).read(text.encode())
    table = rows.table("it", LogFacts(interval=1), must_tell=False)
    assert table["größe"].tolist() == [n + 0.5 for n in range(40)]
    assert set(table["3d"].tolist()) == {7.0}
