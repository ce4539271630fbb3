"""What the ranks tell each other before the first collective."""

from __future__ import annotations

from datetime import timedelta

import pytest
from torch import distributed as dist

from forensics.record.ranks import agreement
from forensics.record.ranks.agreement import as_rank_zero_knows, disagreement
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
    assert as_rank(0, ask) == "of rank 0"
    assert as_rank(1, ask) == "of rank 0"


def test_rank_zero_waits_for_nobody_and_nobody_waits_for_ever_for_it(store, monkeypatch):
    assert as_rank(1, ask) == ""
    monkeypatch.setattr(agreement, "PATIENCE_S", 3600.0)  # whoever waits here never ends
    assert ask(World(0, 2)) == "of rank 0"


def test_a_second_question_is_not_answered_with_the_first_answer(store):
    assert ask(World(0, 2)) == "of rank 0"
    assert ask(World(1, 2)) == ""  # its own second question: rank 0 has asked it once


def test_one_process_answers_itself(monkeypatch):
    monkeypatch.setattr(agreement, "_store", lambda: pytest.fail("nobody is there to be told"))
    assert ask(World(0, 1)) == "of rank 0"


def test_rank_zero_is_told_who_has_made_none(tmp_path, store):
    never = "rank 1 has made no Recorder of this run"
    assert disagreement(World(0, 2), tmp_path, ["plan"]) == never


def test_a_rank_with_other_options_is_named(tmp_path, store):
    ours = agreement._made.copy()
    store.set(f"{agreement._next_key(tmp_path)}/1", "of another plan")
    agreement._made.clear()
    agreement._made.update(ours)
    verdict = disagreement(World(0, 2), tmp_path, ["plan"])
    assert verdict == "the Recorder of rank 1 has other parameters or options than rank 0's"
