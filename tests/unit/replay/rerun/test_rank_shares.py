"""What of several ranks is told to a person: the rank, and its samples by its own count."""

from __future__ import annotations

import pytest

from forensics.replay.rerun.rank_shares import RankShares


@pytest.mark.parametrize(
    ("samples", "bad", "told"),
    [
        ((6,), (1,), ((2,), 4)),
        ((2, 6), (0, 1), ((2,), 4)),  # one batch for both, as under tensor parallelism
        ((), (0, 1), ((), 4)),
    ],
)
def test_samples_are_counted_in_the_bad_ranks_own_batch(
    samples: tuple[int, ...], bad: tuple[int, ...], told: tuple[tuple[int, ...], int]
) -> None:
    shares = RankShares(3, samples=(4, 4, 4))
    found = shares.told({"samples": samples, "bad_ranks": bad, "batch_size": 12})
    assert (found["samples"], found["batch_size"]) == told
    assert found["rank"] == bad[0]
    assert "samples_note" not in found


@pytest.mark.parametrize(
    ("samples", "bad", "sizes"),
    [
        ((2, 5), (0, 1), (4, 4, 4)),  # others on each rank
        ((6,), (0, 1), (4, 4, 4)),  # of one of two bad ranks
        ((2, 10), (0,), (4, 4, 4)),  # of a rank that is not bad by itself, too
        ((2, 6), (0, 1), (4, 3, 4)),  # batches of two sizes are not one
    ],
)
def test_samples_that_differ_are_counted_over_all_ranks(
    samples: tuple[int, ...], bad: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    found = RankShares(3, samples=sizes).told({"samples": samples, "bad_ranks": bad})
    assert found["samples"] == samples
    assert found["samples_note"] == "counted over the batches of all ranks in a row"
