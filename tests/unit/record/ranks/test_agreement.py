"""What the ranks tell each other before the first collective."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from torch import distributed as dist

from forensics.record.ranks import agreement
from forensics.record.ranks.agreement import agreement as agree
from forensics.record.ranks.agreement import as_rank_zero_knows, no_longer_known
from forensics.record.ranks.world import World


@pytest.fixture
def store(monkeypatch):
    met = dist.HashStore()
    met.set_timeout(timedelta(seconds=5))
    monkeypatch.setattr(agreement, "_store", lambda: met)
    monkeypatch.setattr(agreement, "PATIENCE_S", 0.2)
    return met


def as_rank(rank, run):
    """What a rank does, with a count of its own, as if it were another process."""
    ours = agreement._made.copy()
    found = run(World(rank, 2))
    agreement._made.clear()
    agreement._made.update(ours)
    return found


def ask(world):
    return as_rank_zero_knows("folder", lambda: f"of rank {world.rank}", world)


def test_what_rank_zero_knows_is_known_on_all(store):
    assert ask(World(0, 2)) == "of rank 0"
    assert ask(World(1, 2)) == "of rank 0"


def test_rank_zero_waits_for_nobody_and_nobody_waits_for_ever_for_it(store, monkeypatch):
    assert ask(World(1, 2)) == ""
    monkeypatch.setattr(agreement, "PATIENCE_S", 3600.0)  # whoever waits here never ends
    assert ask(World(0, 2)) == "of rank 0"


def test_what_rank_zero_told_before_to_nobody_is_no_answer(store):
    assert ask(World(0, 2)) == "of rank 0"
    no_longer_known("folder", World(1, 2))  # not for this rank to say
    assert ask(World(1, 2)) == "of rank 0"
    no_longer_known("folder", World(0, 2))
    assert ask(World(1, 2)) == ""


def test_one_process_answers_itself(monkeypatch):
    monkeypatch.setattr(agreement, "_store", lambda: pytest.fail("nobody is there to be told"))
    assert ask(World(0, 1)) == "of rank 0"


def test_rank_zero_is_told_who_has_made_none(tmp_path, store):
    never = "rank 1 has made no Recorder of this run"
    assert agree(World(0, 2), tmp_path, ["a.weight"], {})[0] == never


def test_the_others_are_told_that_rank_zero_has_made_none(tmp_path, store):
    for rank in (1, 0):  # rank 0 comes too late, and keeps to what rank 1 goes by
        told = as_rank(rank, lambda world: agree(world, tmp_path, ["a.weight"], {}))
        assert told[0] == agreement.NO_LEADER


def key_of(tmp_path):
    """Under which the next recorder of this process leaves word."""
    ours = agreement._made.copy()
    key = agreement._next_key(tmp_path)
    agreement._made.clear()
    agreement._made.update(ours)
    return key


def test_a_rank_with_other_parameters_is_named(tmp_path, store):
    store.set(f"{key_of(tmp_path)}/1", f"{agreement._digest('another')} {{}}")
    verdict, _ = agree(World(0, 2), tmp_path, ["a.weight"], {})
    assert verdict == "the Recorder of rank 1 has other parameters than rank 0's"


def test_with_other_options_all_do_as_rank_zero_does(tmp_path, store):
    words = [{"snapshot_every": 100, "extras": ["param_l2"]}, {"snapshot_every": 0, "extras": []}]
    digest, key = agreement._digest(repr(["a.weight"])), key_of(tmp_path)
    store.set(f"{key}/1", f"{digest} {json.dumps(words[1])}")
    assert as_rank(0, lambda world: agree(world, tmp_path, ["a.weight"], words[0])) == (
        "",
        words[0],
    )
    assert as_rank(1, lambda world: agree(world, tmp_path, ["a.weight"], words[1])) == (
        "",
        words[0],
    )
