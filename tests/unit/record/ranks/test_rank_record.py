"""The mark of a rank as it goes through a step: what is written at once, and what rows tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forensics.record.clipping import grad_norms
from forensics.record.disk_guard import DiskGuard
from forensics.record.ranks.rank_record import RankRecord
from forensics.record.ranks.world import World
from forensics.runlog.manifest import Ended
from forensics.runlog.rank_files import (
    RankMark,
    Stage,
    as_known,
    mark_path,
    rank_log_path,
    read_mark,
)
from forensics.runlog.steps_csv import read_steps


class Rank:
    """One of two ranks, and what is on the disk of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model = folder, nn.Linear(2, 1)
        self.guard = DiskGuard(lambda line: None)
        named = list(self.model.named_parameters())
        world = World(1, 2)
        self.record = RankRecord(folder, world, self.model, named, ("step", "loss"), self.guard)

    @property
    def mark(self) -> RankMark:
        found = read_mark(mark_path(self.folder, 1))
        assert found is not None
        return found

    def known(self, *others: RankMark) -> tuple[int, Stage]:
        log = rank_log_path(self.folder, 1)
        rows = {1: int(read_steps(log).step[-1])} if log.exists() else {}
        found = as_known((self.mark, *others), rows)[0]
        return found.step, found.stage

    def measured(self) -> None:
        self.model(torch.ones(1, 2)).sum().backward()
        self.record.reduced(grad_norms(self.model.named_parameters()))

    def row(self, step: int) -> None:
        row: dict[str, Any] = {"step": step, "loss": 1.0, "scaler_scale": 1.0, "skipped": False}
        self.record.write(row)


@pytest.fixture
def rank(tmp_path: Path) -> Any:
    made = Rank(tmp_path)
    yield made
    made.record.close(Ended("finished", 0))


def test_each_stage_is_known_though_only_the_reduction_is_written(rank: Rank) -> None:
    assert rank.known() == (0, Stage.OWN)
    for step in range(3):
        rank.record.reducing()
        assert (rank.mark.step, rank.mark.stage) == (step, Stage.REDUCTION)
        written = rank.mark
        rank.measured()
        further = RankMark(0, step + 1, Stage.REDUCTION)
        assert rank.known(further) == (step, Stage.REDUCED)
        rank.row(step)
        assert rank.mark == written
        assert rank.known(further) == (step + 1, Stage.OWN)


def test_where_no_reduction_was_written_what_comes_after_it_is(rank: Rank) -> None:
    rank.measured()
    assert (rank.mark.step, rank.mark.stage) == (0, Stage.REDUCED)


def test_where_no_row_tells_the_end_of_a_step_the_mark_does(
    rank: Rank, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    rank.row(0)
    monkeypatch.setattr("forensics.runlog.step_writer.StepWriter.write", full)
    rank.record.reducing()
    rank.measured()
    rank.row(1)
    assert (rank.mark.step, rank.mark.stage) == (2, Stage.OWN)
    assert any("No space left" in clause for clause in rank.guard.missing)


def test_a_mark_of_another_run_stays_until_rank_zero_has_taken_the_folder(rank: Rank) -> None:
    """A script that is started again by mistake, after the night, is refused by rank 0."""
    rank.record.reducing()
    rank.record.close(Ended("exception", 0, "ValueError: no such shard"))
    again = Rank(rank.folder)
    again.record.reducing()
    assert again.mark.message == "ValueError: no such shard"
    again.measured()
    assert (again.mark.ended, again.mark.step) == ("", 0)
    again.record.close(Ended("finished", 0))
