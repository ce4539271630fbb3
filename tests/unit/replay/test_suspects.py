"""Again, and which samples: on recordings whose right answers are known."""

from pathlib import Path

import pytest

from forensics.replay.rerun.changes import Changes
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.suspects import again, guilty_samples, place_of, same_fault
from forensics.replay.tracing.step_forensics import examine_step
from tests.unit.replay.faulty import before_step


@pytest.fixture(scope="module")
def bad_sample(tmp_path_factory: pytest.TempPathFactory):
    """Feature 3 of sample 7 of step 3 is NaN, in the first of two micro-batches of 32."""
    home = tmp_path_factory.mktemp("bad-sample")
    data = {"samples": 32, "features": 16, "classes": 8, "noise": 2.0, "fault_step": 3}
    with before_step(home, "bad-sample", 3, steps=6, data=data, accumulation=2) as held:
        yield held


def test_a_bad_step_is_bad_again_to_the_bit(bad_sample) -> None:
    session, before = bad_sample
    found = again(session, before, 3)
    assert (found.reproduces, found.alike, found.replays) == (True, True, 3)


def test_a_sound_step_reproduces_nothing(bad_sample) -> None:
    session, before = bad_sample
    found = again(session, before, 2, is_bad=lambda step: "ema" in step.bad)
    assert not found.reproduces
    assert found.alike


def test_a_step_with_numbers_of_its_own_is_not_alike(bad_sample, monkeypatch) -> None:
    session, before = bad_sample
    kept, shifts = session.recipe.batch, iter((0.0, 1e-3))

    def batch(self, step):
        shift = next(shifts)
        return [(inputs + shift, labels + 0) for inputs, labels in kept(step)][1:]

    monkeypatch.setattr(type(session.recipe), "batch", batch)
    found = again(session, before, 2, is_bad=lambda step: True)
    assert found.reproduces
    assert not found.alike


def test_the_guilty_sample_is_found_by_its_index_over_micro_batches(bad_sample) -> None:
    session, before = bad_sample
    found = guilty_samples(session, before)
    assert found.samples == (7,)
    assert found.batch_size == 64
    assert found.replays <= 12
    assert found.note == ""


def test_the_step_is_sound_without_it_and_bad_with_it_alone(bad_sample) -> None:
    session, before = bad_sample
    session.restore(before)
    assert not session.run_step(changes=Changes(drop={3: (7,)})).bad
    session.restore(before)
    assert "loss" in session.run_step(changes=Changes(keep={3: (7,)})).bad


def test_a_fault_in_every_sample_blames_none(tmp_path: Path) -> None:
    with before_step(tmp_path, "empty-parameter", 0, steps=2) as (session, before):
        found = guilty_samples(session, before)
    assert found.samples == ()
    assert found.batch_size > 1
    assert "every part" in found.note


def test_a_batch_of_one_that_batchnorm_refuses_is_another_fault(tmp_path: Path) -> None:
    data = {"samples": 8, "size": 8, "classes": 6, "noise": 2.0, "fault_step": 2}
    with before_step(tmp_path, "batchnorm-poisoned", 2, steps=4, data=data) as (session, before):
        found = guilty_samples(session, before)
    assert found.samples == (0,)


def test_a_batch_of_one_holds_nothing_to_leave_out(tmp_path: Path) -> None:
    with before_step(tmp_path, "batch-norm-of-one", 5, steps=7) as (session, before):
        found = guilty_samples(session, before)
    assert (found.samples, found.batch_size) == ((), 1)
    assert "nothing to leave out" in found.note


def test_the_end_of_a_growth_blames_no_sample(bad_sample) -> None:
    session, before = bad_sample
    found = guilty_samples(session, before, grew=True)
    assert (found.samples, found.replays) == ((), 0)
    assert "growth" in found.note


def test_more_than_half_of_the_batch_is_not_a_few_bad_samples(bad_sample, monkeypatch) -> None:
    session, before = bad_sample
    whole = session.recipe.batch

    def batch(self, step):
        inputs, labels = whole(step)[1]
        inputs = inputs.clone()
        inputs[:20] = float("nan")
        return [(inputs, labels)]

    monkeypatch.setattr(type(session.recipe), "batch", batch)
    found = guilty_samples(session, before)
    assert found.samples == ()
    assert found.note.startswith("20 of 32 samples go bad by themselves")


def test_a_batch_that_cannot_be_taken_apart_is_not_testable(bad_sample, monkeypatch) -> None:
    session, before = bad_sample

    def select(self, batch, indices):
        raise TypeError("a graph has no samples")

    monkeypatch.setattr(type(session.recipe), "select", select)
    whole = session.recipe.batch
    monkeypatch.setattr(type(session.recipe), "batch", lambda self, step: whole(step)[:1])
    found = guilty_samples(session, before)
    assert found.samples == ()
    assert "a graph has no samples" in found.note


def test_a_loss_that_takes_whole_micro_batches_only(bad_sample, monkeypatch) -> None:
    session, before = bad_sample
    kept = session.training.loss

    def loss(model, batch):
        if len(batch[0]) != 32:
            raise ValueError("needs 32 samples")
        return kept(model, batch)

    monkeypatch.setattr(session.training, "loss", loss)
    found = guilty_samples(session, before)
    assert found.samples == tuple(range(32))
    assert "needs 32 samples" in found.note


def test_a_loss_that_takes_no_part_of_the_batch_is_not_testable(bad_sample, monkeypatch) -> None:
    session, before = bad_sample
    kept, whole = session.training.loss, session.recipe.batch
    monkeypatch.setattr(type(session.recipe), "batch", lambda self, step: whole(step)[:1])

    def strict(model, batch):
        if len(batch[0]) != 32:
            raise ValueError("needs all samples")
        return kept(model, batch)

    monkeypatch.setattr(session.training, "loss", strict)
    found = guilty_samples(session, before)
    assert found.samples == ()
    assert "not testable" in found.note
    assert "needs all samples" in found.note


def test_the_same_fault_of_what_was_applied_is_found_again(tmp_path: Path) -> None:
    with before_step(tmp_path, "clip-before-unscale", 0, steps=3) as (session, before):
        found = again(session, before, 2, audit=examine_step)
    assert found.reproduces


@pytest.mark.parametrize(
    ("bad", "error", "place"),
    [
        (("param:a", "loss"), None, "loss"),
        (("param:a", "grad:a"), None, "grad"),
        (("buffer:a", "exception"), ValueError("no"), "exception:ValueError"),
        (("optimizer:a.exp_avg",), None, "optimizer"),
        ((), None, ""),
    ],
)
def test_a_step_goes_bad_where_its_first_damage_is(bad, error, place) -> None:
    step = ReplayedStep(step=0, log=None, bad=bad, error=error)
    assert place_of(step) == place


def test_another_exception_is_another_fault() -> None:
    value = ReplayedStep(step=0, log=None, bad=("exception",), error=ValueError("a"))
    key = ReplayedStep(step=0, log=None, bad=("exception",), error=KeyError("a"))
    assert same_fault(value)(value)
    assert not same_fault(value)(key)
    assert not same_fault(value)(ReplayedStep(step=0, log=None))
