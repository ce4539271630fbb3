"""Runs of two ranks under ``fully_shard``, bisected by two ranks and by one process."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectionResult, FaultKind
from forensics.render.bisect_text import render_bisect_text
from forensics.replay.bisect import bisect_run
from tests.unit.replay.ranks.bisecting import FURTHER, SHARDED, recipe_of
from tests.unit.replay.ranks.faulty_ranks import BAD_SAMPLE, BAD_STEP, SAMPLES
from tests.unit.replay.ranks.test_real_ranks import as_words, by_all_ranks, told

ORIGINS = {
    "nan-batch": (FaultKind.NAN, "input", "input", (1,)),
    "wears-out": (FaultKind.NAN, "forward", "aten.sqrt", (0, 1)),
}


@pytest.fixture(scope="module")
def emulated(runs: Path) -> dict[str, BisectionResult]:
    """The same by one process, where the state of all ranks is gathered into the plain model."""
    found = {}
    for fault in SHARDED:
        run = runs / f"sharded-{fault}"
        kept = (run / "bisect.json").read_bytes()
        found[fault] = bisect_run(run, recipe=recipe_of(fault), further_steps=FURTHER)
        (run / "bisect.json").write_bytes(kept)
    return found


@pytest.mark.parametrize("fault", SHARDED)
def test_both_ways_give_the_same_answer(
    runs: Path, emulated: dict[str, BisectionResult], fault: str
) -> None:
    real, one = by_all_ranks(runs, f"sharded-{fault}"), emulated[fault]
    assert as_words(real) == as_words(one).replace(one.next_command, real.next_command)
    assert (real.reduction, one.reduction) == ("real", "emulated")


@pytest.mark.parametrize("fault", SHARDED)
def test_step_operator_and_ranks_are_named(
    emulated: dict[str, BisectionResult], fault: str
) -> None:
    result = emulated[fault]
    kind, phase, operator, ranks = ORIGINS[fault]
    assert result.origin is not None
    found = (result.origin.kind, result.origin.phase, result.origin.operator)
    assert found == (kind, phase, operator)
    assert (result.first_bad_step, result.bad_ranks) == (BAD_STEP, ranks)
    samples = (BAD_SAMPLE,) if fault == "nan-batch" else ()
    assert (result.samples, result.batch_size) == (samples, 2 * SAMPLES)


@pytest.mark.parametrize("fault", SHARDED)
def test_it_starts_from_the_state_of_all_ranks_and_says_how_faithful_it_is(
    emulated: dict[str, BisectionResult], fault: str
) -> None:
    """Dropout, accumulation, moments and buffers: each row is the recorded one but for rounding."""
    result = emulated[fault]
    assert (result.replayed_from, result.departure) == (3, None)
    assert result.faithful_until == BAD_STEP
    assert result.tolerance == 1e-3
    text = " ".join(render_bisect_text(result).split())
    assert "trained with sharded parameters (fully_shard), replayed with whole ones" in text


def test_a_bad_state_of_all_ranks_is_the_other_end(emulated: dict[str, BisectionResult]) -> None:
    states = {c.step: c.verdict for c in emulated["wears-out"].checkpoints}
    assert (states[3], states[6]) == ("good", "bad")


def test_a_recipe_that_wraps_its_model_is_refused_with_a_line(runs: Path) -> None:
    """By all ranks nobody waits for a word that is never said."""
    assert [told(runs, "sharded", rank)["codes"]["wrapped"] for rank in (0, 1)] == [0, 0]
    result = by_all_ranks(runs, "sharded-nan-batch-again")
    assert result.origin is None
    (note,) = [note for note in result.notes if note.startswith("No replay")]
    assert note == (
        "No replay, so no operator: the recipe's model is built with DistributedDataParallel, and "
        "a replay of several ranks reduces by itself; let the recipe build the plain model, and "
        "shard or wrap it in the training script."
    )
