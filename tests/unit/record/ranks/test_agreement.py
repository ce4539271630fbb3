"""What the ranks tell each other before the first collective."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from torch import distributed as dist
from torch import nn

from forensics.record.ranks import agreement
from forensics.record.ranks.agreement import disagreement, leave_to_rank_zero
from forensics.record.ranks.world import World


class Sharded(nn.Module):
    """Has what looks like a DTensor among its parameters."""

    def parameters(self, recurse=True):
        class Spread(torch.Tensor):
            device_mesh = None

        return iter([torch.ones(2).as_subclass(Spread)])


@pytest.fixture
def store(monkeypatch):
    met = dist.HashStore()
    met.set_timeout(timedelta(seconds=5))
    monkeypatch.setattr(agreement, "_store", lambda: met)
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.2)
    return met


def as_rank_one(monkeypatch, run_dir, model, times=1):
    """What rank 1 does, with a count of its own, as if it were another process."""
    ours = agreement._made.copy()
    monkeypatch.setattr(agreement, "current_world", lambda: World(1, 2))
    for _ in range(times):
        leave_to_rank_zero(run_dir, model)
    agreement._made.clear()
    agreement._made.update(ours)


def test_rank_zero_is_told_at_once_that_it_records_alone(tmp_path, store, monkeypatch):
    monkeypatch.setattr(agreement, "PATIENCE_S", 3600.0)  # whoever waits here never ends
    as_rank_one(monkeypatch, tmp_path, Sharded(), times=2)
    alone = "rank 1 makes no Recorder under this trainer"
    assert disagreement(World(0, 2), tmp_path, ["plan"]) == alone
    assert disagreement(World(0, 2), tmp_path, ["plan"]) == alone  # and in the second run there


def test_where_nothing_is_sharded_no_word_is_left_that_a_later_run_would_find(
    tmp_path, store, monkeypatch
):
    as_rank_one(monkeypatch, tmp_path, nn.Linear(2, 2))
    never = "rank 1 has made no Recorder of this run"
    assert disagreement(World(0, 2), tmp_path, ["plan"]) == never


def test_a_rank_with_other_options_is_named(tmp_path, store):
    ours = agreement._made.copy()
    store.set(f"{agreement._next_key(tmp_path)}/1", "of another plan")
    agreement._made.clear()
    agreement._made.update(ours)
    verdict = disagreement(World(0, 2), tmp_path, ["plan"])
    assert verdict == "the Recorder of rank 1 has other parameters or options than rank 0's"


def test_one_process_leaves_no_word(tmp_path, monkeypatch):
    monkeypatch.setattr(agreement, "_store", lambda: pytest.fail("nobody is there to be told"))
    leave_to_rank_zero(tmp_path, Sharded())
