"""The marks of ranks: where each is, kept through any kill."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.runlog.manifest import Manifest, write_manifest
from forensics.runlog.rank_files import (
    MarkWriter,
    RankMark,
    Stage,
    as_known,
    mark_path,
    read_mark,
)
from forensics.runlog.run import load_run


def read(path: Path) -> RankMark:
    found = read_mark(path)
    assert found is not None
    return found


def test_a_mark_says_step_and_stage_while_its_writer_is_open(tmp_path: Path) -> None:
    path = tmp_path / "rank-00007.now"
    writer = MarkWriter(path)
    for step, stage in ((41, Stage.REDUCED), (42, Stage.OWN), (42, Stage.REDUCTION)):
        writer.put(step, stage)
        found = read(path)
        assert (found.rank, found.step, found.stage, found.ended) == (7, step, stage, "")
    writer.end("finished")


def test_stages_are_ordered_as_in_a_step() -> None:
    places = [
        RankMark(0, 3, Stage.REDUCED).place,
        RankMark(0, 4, Stage.OWN).place,
        RankMark(0, 4, Stage.REDUCTION).place,
        RankMark(0, 4, Stage.REDUCED).place,
    ]
    assert places == sorted(places)
    assert len(set(places)) == 4


def test_what_is_noted_is_written_with_the_next_word_and_with_the_last(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.now"
    writer = MarkWriter(path)
    writer.put(3, Stage.OWN)
    writer.note(3, Stage.REDUCTION)
    before = read_mark(path)
    writer.end("exception", "closed")
    after = read_mark(path)
    assert before is not None
    assert after is not None
    assert (before.stage, after.stage, after.ended) == (Stage.OWN, Stage.REDUCTION, "exception")


def test_the_pulse_tells_how_long_a_rank_has_been_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.now"
    writer = MarkWriter(path, pulse_s=0.02)
    writer.put(5, Stage.REDUCTION)
    assert read(path).there_s < 0.1
    deadline = time.monotonic() + 5
    while read(path).there_s < 0.1 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert read(path).there_s >= 0.1
    assert read(path).place == (5, Stage.REDUCTION.order)
    writer.end("exception", "x")
    after = read(path)
    time.sleep(0.1)
    assert read(path) == after


@pytest.mark.parametrize("message", ["ValueError: bad data", "é\n\"\\'" * 400, "🏖" * 500])
def test_an_end_keeps_the_place_and_fits_whatever_was_raised(tmp_path: Path, message: str) -> None:
    path = tmp_path / "rank-00001.now"
    writer = MarkWriter(path)
    writer.put(123_456_789, Stage.REDUCTION)
    writer.end("exception", message)
    writer.end("finished")
    writer.put(1, Stage.OWN)
    found = read(path)
    assert (found.step, found.ended) == (123_456_789, "exception")
    assert found.message
    assert path.stat().st_size == 512


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=600))
def test_no_damage_is_more_than_a_missing_mark(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.mktemp("mark") / "rank-00001.now"
    path.write_bytes(data)
    found = read_mark(path)
    assert found is None or found.step >= 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"step": -1, "stage": "own", "unix_s": 0}',
        '{"step": 1, "stage": "lunch", "unix_s": 0}',
        '{"step": 1, "stage": "own", "unix_s": NaN}',
        '{"step": 1, "stage": "own", "unix_s": 0, "heard_s": 1e999}',
    ],
)
def test_a_mark_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rank-00001.now"
    path.write_text(text)
    assert read_mark(path) is None


def test_a_run_has_the_marks_and_the_log_of_rank_zero(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(world_size=3))
    (tmp_path / "steps.csv").write_text("step,loss\n0,1.0\n")
    (tmp_path / "ranks").mkdir()
    for rank in (0, 2):
        writer = MarkWriter(mark_path(tmp_path, rank))
        writer.put(4, Stage.OWN)
        writer.end("finished")
    (tmp_path / "ranks" / "rank-00001.now").write_text("torn")
    (tmp_path / "ranks" / "rank-00000.csv").write_text("step,loss,grad_l2_local\n0,1.5,2.5\n")
    run = load_run(tmp_path)
    assert [mark.rank for mark in run.rank_marks] == [0, 2]
    assert run.rank_zero is not None
    assert run.rank_zero["grad_l2_local"].tolist() == [2.5]
    assert run.ranks == ()


OWN, REDUCTION, REDUCED = Stage


@pytest.mark.parametrize(
    ("marks", "rows", "known"),
    [
        # Its row says that a rank has ended the step; the next one it has not written of yet.
        (((3, REDUCTION), (4, REDUCTION)), {0: 3, 1: 3}, ((4, OWN), (4, REDUCTION))),
        (((3, REDUCTION), (3, REDUCTION)), {0: 3, 1: 2}, ((4, OWN), (3, REDUCED))),
        (((3, OWN), (3, OWN)), {0: 4}, ((5, OWN), (3, OWN))),
        # Whoever is through the reduction says that all have gone in.
        (((3, REDUCTION), (3, REDUCED)), {}, ((3, REDUCED), (3, REDUCED))),
        (((3, REDUCTION), (4, OWN)), {0: 2, 1: 3}, ((3, REDUCED), (4, OWN))),
        # Of those that wait together nobody is through, and nothing is known of an own part.
        (((3, REDUCTION), (3, REDUCTION)), {0: 2, 1: 2}, ((3, REDUCTION), (3, REDUCTION))),
        (((3, OWN), (3, REDUCTION)), {0: 2, 1: 2}, ((3, OWN), (3, REDUCTION))),
    ],
)
def test_rows_and_the_other_ranks_tell_what_a_mark_does_not_yet(
    marks: tuple[tuple[int, Stage], ...],
    rows: dict[int, int],
    known: tuple[tuple[int, Stage], ...],
) -> None:
    read = [RankMark(rank, *place, 10.0, 10.001) for rank, place in enumerate(marks)]
    assert [(m.step, m.stage) for m in as_known(read, rows)] == list(known)
    assert all(mark.there_s < 0.01 for mark in as_known(read, rows))


def test_what_a_rank_has_confirmed_or_ended_at_stays() -> None:
    pulsed = RankMark(0, 3, REDUCTION, 10.0, 75.0)
    raised = RankMark(1, 3, REDUCTION, 10.0, 10.0, "exception", "ValueError: x")
    others = (RankMark(2, 4, REDUCTION, 11.0, 75.0),)
    assert as_known((pulsed, raised, *others), {1: 3, 2: 3}) == (pulsed, raised, *others)


def test_a_run_has_its_marks_as_they_are_known(tmp_path: Path) -> None:
    write_manifest(tmp_path, Manifest(world_size=2))
    (tmp_path / "steps.csv").write_text("step,loss\n6,1.0\n")
    (tmp_path / "ranks").mkdir()
    writers = [MarkWriter(mark_path(tmp_path, rank)) for rank in (0, 1)]
    for rank, writer in enumerate(writers):
        writer.put(6 + rank, Stage.REDUCTION)
        (tmp_path / "ranks" / f"rank-0000{rank}.csv").write_text("step,loss\n5,1.5\n6,1.5\n")
    assert [mark.place for mark in load_run(tmp_path).rank_marks] == [
        (7, OWN.order),
        (7, REDUCTION.order),
    ]
    for writer in writers:
        writer.end("finished")
