import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import InputError
from forensics.runlog.csv_reader.ahead import worked_ahead
from forensics.runlog.steps_csv import read_steps


@pytest.mark.parametrize("count", [0, 1, 2, 3, 20])
def test_blocks_come_in_order_with_their_results(count: int) -> None:
    given = [b"%d" % i for i in range(count)]
    assert list(worked_ahead(iter(given), int)) == [(block, int(block)) for block in given]


def test_a_single_block_costs_no_thread() -> None:
    [(_, thread)] = worked_ahead(iter([b""]), lambda block: threading.current_thread())
    assert thread is threading.current_thread()


def test_as_many_blocks_as_there_are_threads_are_worked_on_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("forensics.runlog.csv_reader.ahead.AHEAD", 4)
    all_of_them = threading.Barrier(4)
    worked = list(worked_ahead(iter([b""] * 8), lambda _: all_of_them.wait(timeout=30)))
    assert sorted(place for _, place in worked) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_error_of_the_work_or_of_the_file_is_raised() -> None:
    def torn() -> Iterator[bytes]:
        yield from (b"1", b"2", b"3")
        raise InputError("is torn")

    with pytest.raises(ValueError, match="invalid literal"):
        list(worked_ahead(iter([b"1", b"x", b"3"]), int))
    with pytest.raises(InputError, match="is torn"):
        list(worked_ahead(torn(), int))


def test_blocks_parsed_before_a_new_header_is_met_are_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forensics.runlog.csv_reader.source.BLOCK", 400)
    first = "".join(f"{s},2.5,1e-3\n" for s in range(200))
    second = "".join(f"{s},1e-3,2.5\n" for s in range(200, 400))
    path = tmp_path / "steps.csv"
    path.write_text(f"step,loss,lr\n{first}step,lr,loss\n{second}")
    table = read_steps(path)
    np.testing.assert_array_equal(table.step, np.arange(400))
    assert set(table["loss"].tolist()) == {2.5}
    assert set(table["lr"].tolist()) == {1e-3}
