"""Parts of a file that stand for all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forensics.runlog.csv_reader.repair_log import RepairLog
from forensics.runlog.csv_reader.source import read_chunks
from forensics.runlog.csv_reader.spans import opened, reading_only, size_of
from forensics.runlog.run import load_run

CUTS = st.lists(st.integers(0, 300), min_size=2, max_size=6).map(sorted)


@settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=300), cuts=CUTS)
def test_what_is_read_is_the_parts_in_their_order(
    data: bytes, cuts: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    with reading_only(path, spans):
        with opened(path) as file:
            assert file.read() == b"".join(data[a:b] for a, b in spans)
        assert size_of(path) == sum(b - a for a, b in spans)
    with opened(path) as file:
        assert file.read() == data
    assert size_of(path) == len(data)


def test_a_reader_of_logs_sees_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = [f"{i},{3 - i / 100}\n" for i in range(100)]
    path.write_text("step,loss\n" + "".join(rows))
    head = len("step,loss\n")
    start = head + len("".join(rows[:60]))
    with reading_only(path, [(0, head), (start, path.stat().st_size)]):
        assert load_run(path).steps.step.tolist() == list(range(60, 100))
    assert len(load_run(path).steps) == 100


def test_other_files_are_read_as_they_are(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("first\n")
    two.write_text("second\n")
    with reading_only(one, [(0, 1)]):
        assert b"".join(read_chunks(two, RepairLog())) == b"second\n"


def test_it_ends_with_an_error_too(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("all of it")
    with pytest.raises(ZeroDivisionError), reading_only(path, [(0, 1)]):
        raise ZeroDivisionError
    assert size_of(path) == 9


def test_a_file_that_was_cut_meanwhile_ends_where_it_ends(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("0123456789")
    with reading_only(path, [(0, 4), (6, 10)]), opened(path) as file:
        path.write_text("012")
        assert file.read() == b"012"


def test_what_is_not_there_has_no_bytes(tmp_path: Path) -> None:
    assert size_of(tmp_path / "nothing") == 0
