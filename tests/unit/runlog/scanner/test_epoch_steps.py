"""Batches that are counted anew in each epoch, numbered through."""

from __future__ import annotations

from forensics.runlog.scanner.epoch_steps import EpochSteps


def steps(*seen: tuple[int, int]) -> list[int]:
    epochs = EpochSteps()
    return [epochs.step(epoch, batch) for epoch, batch in seen]


def test_an_epoch_begins_where_the_one_before_was_seen_to_end() -> None:
    assert steps((1, 50), (1, 90), (2, 50), (2, 90), (3, 50)) == [50, 90, 140, 180, 230]


def test_a_rank_that_is_still_at_the_epoch_before_does_no_harm() -> None:
    assert steps((1, 50), (1, 90), (2, 0), (1, 90), (2, 50)) == [50, 90, 90, 90, 140]


def test_a_restart_finds_an_epoch_where_it_was() -> None:
    assert steps((1, 90), (2, 90), (3, 50), (2, 50), (3, 10)) == [90, 180, 230, 140, 190]


def test_epochs_of_which_nothing_was_logged_are_as_long_as_the_last() -> None:
    assert steps((1, 90), (4, 10)) == [90, 280]


def test_batches_that_count_from_0_leave_room_for_the_last_one() -> None:
    epochs = EpochSteps(first=0)
    seen = [(1, 0), (1, 50), (2, 0), (2, 50), (3, 0)]
    assert [epochs.step(*at) for at in seen] == [0, 50, 51, 101, 102]
