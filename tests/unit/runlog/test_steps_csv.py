"""Reading step logs: what was written comes back, and nothing else ever happens than a table."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forensics.errors import ExitCode, InputError
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import StepWriter, read_steps
from tests.unit.runlog.logs import HEADER, assert_same, kinds, log, read, row

EXTRA = ("time_s", "norm_overflow", "lr_1", "my metric", "my note")
FLOATS = st.one_of(
    st.floats(),
    st.sampled_from([float("nan"), float("inf"), -float("inf"), -0.0, 5e-324, 1e308, 0.1 + 0.2]),
)
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=8)


def cell_of(name: str) -> st.SearchStrategy[object]:
    if name in ("skipped", "norm_overflow"):
        return st.booleans()
    if name == "skip_reason":
        return WORDS
    if name == "my note":
        return st.just("a note,").map(str)
    return FLOATS


@st.composite
def rows(draw: st.DrawFn) -> list[dict[str, object]]:
    steps = draw(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8, unique=True))
    found = []
    for step in sorted(steps):
        cells: dict[str, object] = {"step": step, "lr": 0.1}
        for name in (*CANONICAL_NAMES[2:], *EXTRA):
            if draw(st.booleans()):
                cells[name] = draw(cell_of(name))
        found.append(cells)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@settings(deadline=None, max_examples=50)
@given(rows())
def test_every_bit_written_comes_back(folder: Path, written: list[dict[str, object]]) -> None:
    path = folder / "steps.csv"
    with StepWriter(path, (*CANONICAL_NAMES, *EXTRA)) as writer:
        for cells in written:
            writer.write(cells)
    table = read_steps(path)
    assert_same(table, table_of(written))
    assert set(kinds(table)) <= {"negative-steps", "missing-cells"}


def table_of(written: list[dict[str, object]]) -> StepTable:
    """The table that these rows must come back as."""
    arrays: dict[str, object] = {}
    masks = {}
    for name in (*CANONICAL_NAMES, *EXTRA):
        cells = [cells.get(name) for cells in written]
        masks[name] = np.array([cell is not None for cell in cells])
        filler: object = "" if name in ("skip_reason", "my note") else 0
        kind = object if filler == "" else None
        if name == "my note" and not masks[name].any():
            filler, kind = 0.0, None  # nothing tells that an empty column is one of texts
        arrays[name] = np.array([filler if cell is None else cell for cell in cells], dtype=kind)
    return StepTable.from_arrays(arrays, masks)


UNDER_HEADER = HEADER.encode() + b"\n"


@settings(deadline=None, max_examples=200)
@given(
    st.one_of(
        st.binary(max_size=300), st.binary(max_size=200).map(lambda b: HEADER.encode() + b"\n" + b)
    )
)
@example(b"step,loss\n" + b"9" * 400 + b",1\n")
@example(b"step;loss\n1;1.234.567,8\n")
@example(b'step,loss\n0,"' + b"x" * 200_000 + b'"\n')
@example(b"\x1f\x8b\x08\x00")
@example(b"\xff\xfes\x00")
@example(b"loss\n\n\n")
@example(b"loss\r\r1\r")
@example(b"step,loss\n0,1\n\0\0")
@example(HEADER.encode() + b"\n\0,,\n")
def test_any_bytes_give_a_table_or_an_input_error(folder: Path, data: bytes) -> None:
    error: InputError | None = None
    try:
        table = read(folder, data, "any.csv")
    except InputError as raised:
        error = raised
    if error is not None:
        assert error.exit_code is ExitCode.USAGE
        assert error.line().isprintable()
        return
    assert len(table) > 0
    assert (np.diff(table.step.astype(object)) > 0).all()
    assert all(repair.message.isprintable() for repair in table.repairs)


FRAGMENTS = [
    "\n\n", HEADER, "step,loss,new", "\0", "\r", '"', "\n", ",", ";", "nan", "tensor(nan)", "1e400",
    "-", row(0), row(1, "NaN"), row(1, "inf"), row(5, "x"), "0.5,", "Traceback", "\ufeff", "7",
    "12.0,", row(2) + "\n", row(3) + "\n", row(2**63) + "\n", "\x1b[31m", "é",
]  # fmt: skip


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from(FRAGMENTS), max_size=12))
def test_any_torn_and_glued_log_gives_a_table_or_an_input_error(
    folder: Path, fragments: list[str]
) -> None:
    try:
        table = read(folder, HEADER + "\n" + "".join(fragments), "mix.csv")
    except InputError:
        return
    assert (np.diff(table.step.astype(object)) > 0).all()
    assert {len(column.values) for column in table.columns.values()} == {len(table)}


def test_cutting_a_log_anywhere_gives_its_first_rows(folder: Path) -> None:
    whole = log(row(0), row(1, "nan", "1,nonfinite_loss,32768.0"), row(2, "inf", '1,"a,b",655.36'))
    full = read(folder, whole)
    for size in range(len(HEADER), len(whole)):
        cut = whole[:size]
        rows_left = max(cut.count("\n") - 1, 0)
        if rows_left == 0:
            with pytest.raises(InputError):
                read(folder, cut)
            continue
        table = read(folder, cut)
        assert_same(full.take(slice(rows_left)), table)
        assert kinds(table) == (["torn-last-line"] if not cut.endswith("\n") else [])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"\n \n", "is empty"),
        (HEADER.encode() + b"\n", "no rows"),
        (HEADER.encode(), "no rows"),
        (b"step,loss\n0,\n1,\n", "no rows with values"),
        (log("0,0.1").encode()[:-1], "no row that can be read"),
        (bytes(range(256)) * 8, "binary"),
        (b"PK\x03\x04" + bytes(50), "zip archive"),
        (b"PAR1" + bytes(50), "Parquet"),
        (b'{"loss": 1}\n', "JSON"),
        (b"Hello world\nthis is text\n", "no column of a training log"),
        (b"name,age\nbob,3\n", "no column of a training log"),
        (b"0,0.1,1\n1,0.1,1\n", "no header"),
        (b"step,loss\nfoo,bar\n", "no row that can be read"),
        (gzip.compress(log(row(0)).encode(), mtime=0)[:12], "decompressed|empty"),
        (b"\x1f\x8b" + b"x" * 50, "decompressed"),
        (b",".join(b"c%d" % i for i in range(5000)) + b"\n1\n", "5,000 columns"),
        (b"x" * (1 << 21) + b"\n1\n", "first line too long|more than"),
        (b"x" * (5 << 20), "more than 2 MiB"),
    ],
)
def test_what_is_no_log_gets_one_clear_line(tmp_path: Path, data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read(tmp_path, data)
    assert caught.value.line().startswith(str(tmp_path / "steps.csv"))


def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forensics.runlog.csv_reader.source._BOMB_SIZE", 1 << 20)
    data = gzip.compress(b"step,loss\n" + b"0,1\n" * (1 << 20), 9)
    assert len(data) < 20_000
    with pytest.raises(InputError, match="beyond reason"):
        read(tmp_path, data)


def test_a_missing_file_and_a_directory_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_steps(tmp_path / "nope.csv")
    with pytest.raises(InputError, match="directory"):
        read_steps(tmp_path)


def test_a_log_that_is_being_written_gives_its_whole_rows(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    with StepWriter(path, CANONICAL_NAMES) as writer:
        writer.write({"step": 0, "loss": 1.0})
        with path.open("ab", buffering=0) as other:
            other.write(b"1,0.1,1.")
        table = read_steps(path)
    assert table.step.tolist() == [0]
    assert kinds(table) == ["torn-last-line"]


def test_compressed_logs_are_read_whatever_their_name(tmp_path: Path) -> None:
    text = log(*(row(i, repr(i / 7)) for i in range(2000)))
    plain = read(tmp_path, text)
    packed = gzip.compress(text.encode())
    assert_same(read(tmp_path, packed), plain)
    half = text.index("\n", len(text) // 2) + 1
    members = gzip.compress(text[:half].encode()) + gzip.compress(text[half:].encode())
    assert_same(read(tmp_path, members), plain)
    torn = read(tmp_path, packed[: len(packed) // 2])
    assert "torn-gzip" in kinds(torn)
    assert_same(plain, torn, rows=len(torn))
    assert 0 < len(torn) < len(plain)


def test_our_own_log_is_named_so(tmp_path: Path) -> None:
    assert read(tmp_path, log(row(0))).source_format == "forensics"
    assert read(tmp_path, "step,loss\n0,1\n").source_format == "csv"


def test_cells_left_empty_among_others_are_told_and_are_not_nan(tmp_path: Path) -> None:
    no_rate = row(4).replace(row(4).split(",")[1], "", 1)
    table = read(tmp_path, log(row(0), row(1, loss=""), row(2, loss="nan"), row(3, ""), no_rate))
    assert table.present("loss").tolist() == [True, False, True, False, True]
    assert [r.message for r in table.repairs] == ["3 empty cells in lr and loss, taken as absent"]
    assert not any(r.lossy for r in table.repairs)
