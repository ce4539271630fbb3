"""The fast path: what it takes it reads as the slow one does, and what is odd it refuses."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import csv

from forensics.runlog.csv_reader import table as table_module
from forensics.runlog.csv_reader.cells import ARROW_ABSENT
from forensics.runlog.csv_reader.fast import parse_fast
from forensics.runlog.csv_reader.header import Layout, layout_of
from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import StepTable
from tests.unit.runlog.logs import assert_same, kinds, log, read, row

LAYOUT: Layout = layout_of(CANONICAL_NAMES, ",", RepairLog())
NUMBERS = st.one_of(
    st.floats().map(repr), st.sampled_from(["", "NaN", "Infinity", "1e400", "+1", " 2.5 "])
)
CELLS = st.tuples(
    NUMBERS, NUMBERS, st.sampled_from(["0", "1", "True", "false", ""]),
    st.sampled_from(["", "nonfinite_loss", '"a,b"', '"say ""x"""', "NA", "None"]), NUMBERS,
)  # fmt: skip


@pytest.mark.parametrize(
    "line", [row(0), row(0, "nan"), row(0, ""), row(0, "1", '1,"a,b",2'), row(-5)]
)
def test_clean_rows_are_taken(line: str) -> None:
    (columns,) = parse_fast(f"{line}\n".encode(), LAYOUT) or [{}]
    assert len(columns["loss"].values) == 1


def test_a_block_is_parsed_in_one_piece() -> None:
    lines = "".join(f"{row(step)}\n" for step in range(60_000))
    assert len(lines) > 1 << 20  # what pyarrow takes at once if nothing is said
    (columns,) = parse_fast(lines.encode(), LAYOUT) or [{}]
    assert columns["step"].values.tolist() == list(range(60_000))


@pytest.mark.parametrize(
    "line",
    [
        "0,0.1", row(0) + ",1", row("x"), row(""), row("0.0"), row(2**63), row(0, "tensor(nan)"),
        row(0, "1", "maybe,,1"), row(0, "1\0"), row(0, "1", '1,"open,1'), row(0, "1", "1,a\rb,1"),
        ",".join(CANONICAL_NAMES),
    ],
)  # fmt: skip
def test_anything_odd_is_refused(line: str) -> None:
    assert parse_fast(f"{row(0)}\n{line}\n".encode(), LAYOUT) is None


def test_a_quote_that_swallows_a_line_end_is_refused() -> None:
    lines = [row(0, "1", '1,"torn'), row(1), row(2, "1", '1,b",1')]
    swallowed = csv.read_csv(
        io.BytesIO("\n".join(lines).encode() + b"\n"),
        read_options=csv.ReadOptions(column_names=[*CANONICAL_NAMES, "more"]),
        parse_options=csv.ParseOptions(invalid_row_handler=lambda _: "skip"),
    )
    assert swallowed.num_rows < 3  # pyarrow itself says nothing
    assert parse_fast("\n".join(lines).encode() + b"\n", LAYOUT) is None


@settings(deadline=None, max_examples=50)
@given(st.lists(CELLS, min_size=1, max_size=6))
def test_both_paths_agree(
    tmp_path_factory: pytest.TempPathFactory, cells: list[tuple[str, ...]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    text = log(
        *(f"{step},{c[0]},1.5,{c[1]},0.5,{c[2]},{c[3]},{c[4]}" for step, c in enumerate(cells))
    )
    fast = read(folder, text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "parse_fast", lambda *_: None)
        slow = read(folder, text)
    assert kinds(fast) == kinds(slow)
    assert set(kinds(fast)) <= {"missing-cells"}
    assert_same(slow, fast)


def test_a_stretch_that_is_refused_costs_its_neighbours_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [row(step, step / 7) for step in range(30_000)]
    lines[15_000] = row(15_000, "tensor(nan)")
    mended = []
    slow = table_module.Mender.mend

    def counted(self: table_module.Mender, block: bytes, line: int) -> object:
        mended.append(block.count(b"\n"))
        return slow(self, block, line)

    monkeypatch.setattr(table_module.Mender, "mend", counted)
    table = read(tmp_path, log(*lines))
    assert len(table) == 30_000
    assert np.flatnonzero(np.isnan(table["loss"])).tolist() == [15_000]
    assert table.repairs[0].line == 15_002
    assert sum(mended) < 10_000


def test_many_blocks_give_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        row(s, s / 3, f"{int(s % 50 == 0)},{'why' * (s % 50 == 0)},{2.0 ** (s % 9)}")
        for s in range(999)
    ]
    whole = read(tmp_path, log(*lines))
    monkeypatch.setattr("forensics.runlog.csv_reader.source.BLOCK", 500)
    assert_same(read(tmp_path, log(*lines)), whole)
    assert whole["loss"][500] == 500 / 3
    assert whole.columns["skip_reason"].categories == ("", "why")


def test_pyarrow_still_tells_a_missing_cell_from_nan_only_when_told_to() -> None:
    data = b"nan,1\nNaN,1\n,1\n-nan,1\ninf,1\n"
    names = csv.ReadOptions(column_names=["a", "b"])
    types = {"a": pa.float64()}
    ours = csv.ConvertOptions(column_types=types, null_values=list(ARROW_ABSENT))
    column = csv.read_csv(io.BytesIO(data), names, convert_options=ours)["a"].to_pylist()
    assert [value is None for value in column] == [False, False, True, False, False]
    assert str(column[0]) == str(column[1]) == "nan"
    default = csv.ConvertOptions(column_types=types)
    column = csv.read_csv(io.BytesIO(data), names, convert_options=default)["a"].to_pylist()
    assert column[:3] == [None, None, None]


def test_columns_without_gaps_have_a_mask_that_takes_no_memory(tmp_path: Path) -> None:
    table: StepTable = read(tmp_path, log(row(0), row(1)))
    assert table.present("loss").strides == (0,)
