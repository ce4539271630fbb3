"""What a trainer waits for beside the reduction is marked as a wait."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

from forensics.record.disk_guard import DiskGuard
from forensics.record.ranks.rank_record import RankRecord
from forensics.record.ranks.world import World
from forensics.record.recorder import Recorder
from forensics.record.run_columns import columns_of
from forensics.record.trainers import collectives
from forensics.record.trainers.collectives import mark_waits
from forensics.runlog.rank_files import Stage, mark_path, read_mark


class Owner:
    """Has a collective, and notes where this rank's mark stands in it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.seen: list[Stage] = []

    def gather(self, value: int) -> int:
        """All ranks' values."""
        mark = read_mark(mark_path(self.run_dir, 1))
        assert mark is not None
        self.seen.append(mark.stage)
        if value < 0:
            raise RuntimeError("Connection closed by peer")
        return 2 * value


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RankRecord:
    """Rank 1 of two; it has the one method of a ``Recorder`` that is called."""
    monkeypatch.setattr(collectives, "current_world", lambda: World(1, 2))
    model = nn.Linear(2, 1)
    named = list(model.named_parameters())
    record = RankRecord(
        tmp_path, World(1, 2), model, named, columns_of(1), DiskGuard(lambda line: None)
    )
    monkeypatch.setattr(record, "reducing", record.waiting)
    return record


def stage(run_dir: Path) -> Stage:
    mark = read_mark(mark_path(run_dir, 1))
    assert mark is not None
    return mark.stage


def test_a_collective_is_a_wait_and_the_stage_before_goes_on(
    tmp_path: Path, recorder: RankRecord
) -> None:
    owner = Owner(tmp_path)
    leave = mark_waits(owner, ("gather", "no_such"), cast("Recorder", recorder))
    assert owner.gather(3) == 6
    assert (owner.seen, stage(tmp_path)) == ([Stage.REDUCTION], Stage.OWN)
    leave()
    assert owner.gather(3) == 6
    assert owner.seen[1:] == [Stage.OWN]
    assert vars(owner).keys() == {"run_dir", "seen"}


def test_where_it_raises_the_rank_waited_to_the_end(tmp_path: Path, recorder: RankRecord) -> None:
    owner = Owner(tmp_path)
    mark_waits(owner, ("gather",), cast("Recorder", recorder))
    with pytest.raises(RuntimeError, match="closed"):
        owner.gather(-1)
    assert stage(tmp_path) is Stage.REDUCTION


def test_a_method_that_was_replaced_before_comes_back(tmp_path: Path, recorder: RankRecord) -> None:
    owner = Owner(tmp_path)
    own = owner.gather = lambda value: 7  # type: ignore[method-assign]
    leave = mark_waits(owner, ("gather",), cast("Recorder", recorder))
    assert owner.gather(3) == 7
    leave()
    assert owner.gather is own


def test_one_process_waits_for_nobody(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    owner = Owner(tmp_path)
    with Recorder(tmp_path / "run", model, optimizer) as recorder:
        with recorder.reducing():
            pass
        mark_waits(owner, ("gather",), recorder)
        assert "gather" not in vars(owner)
