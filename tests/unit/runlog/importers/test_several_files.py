"""Files of one run put together: overlaps, gaps, wrong order, other formats."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import InputError, UsageError
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_joined
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.line_logs import megatron
from tests.unit.runlog.importers.samples import SAMPLES

TRACE = 'Traceback (most recent call last):\n  File "x"\nRuntimeError: gone\n'


def loss_at(step: int) -> float:
    return 1 + 3 * math.exp(-step / 100)


def as_lines(first: int, last: int) -> str:
    steps = range(first, last + 1)
    return "".join(megatron(s, loss=f"{loss_at(s):.6E}", total=500) for s in steps)


def as_json(first: int, last: int) -> str:
    return "".join(f'{{"step": {s}, "loss": {loss_at(s)}}}\n' for s in range(first, last + 1))


def as_csv(first: int, last: int) -> str:
    return "step,loss\n" + "".join(f"{s},{loss_at(s)}\n" for s in range(first, last + 1))


WRITERS = [as_lines, as_json, as_csv]


def join(folder: Path, *texts: str, ages: tuple[int, ...] = ()) -> StepTable:
    """The table of some texts, each in a file of its own, so many seconds old."""
    paths = [folder / f"part{i}.log" for i in range(len(texts))]
    for i, (path, text) in enumerate(zip(paths, texts, strict=True)):
        path.write_text(text)
        age = ages[i] if ages else len(texts) - i
        os.utime(path, (1e9 - age, 1e9 - age))
    return load_joined(paths).steps


def facts_of(table: StepTable) -> LogFacts:
    assert table.facts is not None
    return table.facts


def is_whole(table: StepTable, last: int) -> bool:
    steps = np.arange(1, last + 1)
    expected = [loss_at(int(s)) for s in steps]
    return bool((table.step == steps).all() and np.allclose(table["loss"], expected, rtol=1e-5))


@pytest.mark.parametrize("text", WRITERS)
def test_parts_that_follow_each_other(text, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    table = join(tmp_path, text(1, 100), text(101, 150), text(151, 200))
    assert is_whole(table, 200)
    assert not table.earlier


@pytest.mark.parametrize("text", WRITERS)
def test_of_an_overlap_the_later_file_is_kept(text, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    old = text(1, 100).replace("1 + 3", "")
    table = join(tmp_path, old, text(80, 150))
    assert is_whole(table, 150)
    assert [int(t.step[0]) for t in table.earlier] == [80]


@pytest.mark.parametrize("text", WRITERS)
def test_a_gap_is_left_and_invents_nothing(text, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    table = join(tmp_path, text(1, 100), text(131, 150))
    assert table.step.tolist() == [*range(1, 101), *range(131, 151)]


@pytest.mark.parametrize("text", WRITERS)
@pytest.mark.parametrize("start", [101, 80])
def test_a_wrong_order_is_put_right_by_the_times_of_the_files(  # type: ignore[no-untyped-def]
    text, start: int, tmp_path: Path
) -> None:
    table = join(tmp_path, text(start, 150), text(1, 100), ages=(1, 50))
    assert is_whole(table, 150)
    note = "put in the order of their steps and times: part1.log, part0.log"
    assert facts_of(table).notes[0] == note


def test_a_run_that_was_begun_anew_stays_the_last(tmp_path: Path) -> None:
    table = join(tmp_path, as_json(10, 150), as_json(1, 30))
    assert table.step.tolist() == list(range(1, 31))
    assert sum(map(len, table.earlier)) == 141


@pytest.mark.parametrize("packed", [False, True])
def test_files_of_different_formats_are_each_read_as_what_they_are(
    packed: bool, tmp_path: Path
) -> None:
    """The second one must not be passed over in silence."""
    one, two, three = (tmp_path / name for name in ("a.log", "b.jsonl", "c.csv"))
    one.write_text(as_lines(1, 100))
    two.write_text(as_json(101, 150).replace(str(loss_at(140)), "NaN"))
    text = as_csv(151, 200) + TRACE
    three.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    table = load_joined([one, two, three]).steps
    assert table.step.tolist() == list(range(1, 201))
    assert math.isnan(table["loss"][139])
    facts = facts_of(table)
    assert facts.notes[0] == "read a.log as megatron-lm, b.jsonl as jsonl, c.csv as csv"
    assert facts.ended == "RuntimeError: gone"
    assert facts.ended_line == 1 + 50 + 3


def test_a_file_with_the_last_words_alone_is_a_part(tmp_path: Path) -> None:
    table = join(tmp_path, as_lines(1, 100), TRACE)
    assert is_whole(table, 100)
    assert facts_of(table).ended == "RuntimeError: gone"


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"part1\.log: has no record of training as megatron-lm"):
        join(tmp_path, as_lines(1, 100), "Nothing was trained here.\n")


def test_epochs_and_steps_are_no_one_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"part1\.log: counts epochs, and \S+ counts steps"):
        join(tmp_path, as_lines(1, 100), SAMPLES["keras-csv"])


@pytest.mark.parametrize("twice", ["same", "link", "stdin"])
def test_a_file_that_is_named_twice_is_refused(twice: str, tmp_path: Path) -> None:
    path, link = tmp_path / "a.log", tmp_path / "b.log"
    path.write_text(as_json(1, 30))
    link.symlink_to(path)
    names: dict[str, list[Path | str]] = {
        "same": [path, path],
        "link": [path, link],
        "stdin": ["-", "-"],
    }
    with pytest.raises(UsageError, match="is named twice"):
        load_joined(names[twice])


def test_a_directory_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(as_json(1, 30))
    with pytest.raises(InputError, match="is a directory; --join takes the log files themselves"):
        load_joined([tmp_path / "a.log", tmp_path])
    with pytest.raises(InputError, match="no such file or directory"):
        load_joined([tmp_path / "a.log", tmp_path / "b.log"])


def test_a_named_format_is_that_of_all(tmp_path: Path) -> None:
    paths = [tmp_path / "a.log", tmp_path / "b.log"]
    paths[0].write_text(as_json(1, 30))
    paths[1].write_text(as_lines(31, 60))
    table = load_joined(paths, Reading(format_in="jsonl")).steps
    assert table.step.tolist() == list(range(1, 31))
