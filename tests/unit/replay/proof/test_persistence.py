"""Does it act on? Known faults, and steps whose badness is made up."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forensics.diagnose.bisection_result import FaultKind, Growth, Origin, Persistence
from forensics.replay.proof.persistence import _guard, persistence
from forensics.replay.tracing.step_forensics import audit_step
from tests.unit.replay.faulty import before_step

TRANSIENT, PERSISTENT = Persistence.TRANSIENT, Persistence.PERSISTENT


@pytest.mark.parametrize(
    ("recipe", "step", "answer"),
    [
        ("sqrt-at-zero", 5, TRANSIENT),  # a bad gradient was applied; a guard would have kept it
        ("clip-norm-overflow", 5, TRANSIENT),  # nothing was damaged
        ("batch-norm-of-one", 5, TRANSIENT),  # the next batch is larger
        ("resume-without-scaler", 12, TRANSIENT),  # the scaler finds its scale again
        ("ffn-overflow-fp16", 5, TRANSIENT),  # skipped, and over
        ("adam-eps-fp16", 0, PERSISTENT),  # made in the optimizer, behind any guard
        ("second-moment-overflow", 5, PERSISTENT),  # a moment of Inf stays
        ("lr-nan", 5, PERSISTENT),  # applied with sound gradients
        ("spike-skipped-half", 6, PERSISTENT),  # raises in every step from here on
        ("scale-to-zero", 5, PERSISTENT),  # no loss scale helps
        ("learned-scale-blowup", 23, PERSISTENT),  # the weights themselves are too large
    ],
)
def test_known_faults(tmp_path: Path, recipe: str, step: int, answer: Persistence) -> None:
    with before_step(tmp_path, recipe, step, steps=step + 12) as (session, before):
        origin = audit_step(session, before=before)
        assert persistence(session, before, origin=origin) is answer


@pytest.mark.parametrize(
    ("recipe", "step", "answer"),
    [
        ("clip-before-unscale", 0, PERSISTENT),
        ("gradient-underflow-fp16", 0, PERSISTENT),
        ("recompute-other-mask", 0, PERSISTENT),
        ("fused-hidden-skip", 5, TRANSIENT),
    ],
)
def test_faults_of_what_was_applied(
    tmp_path: Path, recipe: str, step: int, answer: Persistence
) -> None:
    with before_step(tmp_path, recipe, step, steps=step + 6) as (session, before):
        origin = audit_step(session, before=before)
        assert origin is not None
        assert origin.kind is FaultKind.APPLIED
        assert persistence(session, before, origin=origin) is answer


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory):
    """A sound run of 40 steps: what is bad in it is made up."""
    with before_step(tmp_path_factory.mktemp("sound"), "healthy-mlp", 4, steps=40) as held:
        yield held


def _bad_at(*steps: int):
    return lambda replayed: replayed.step in steps


@pytest.mark.parametrize(
    ("bad", "answer"),
    [
        ((4,), TRANSIENT),
        ((4, 5, 6, 7), PERSISTENT),
        ((4, 6), TRANSIENT),  # one of five, and none of twenty more
        ((4, 6, 9, 12, 13, 15, 18, 21, 22), PERSISTENT),  # at the edge, a third of them
    ],
)
def test_most_of_the_next_steps_decide(healthy, bad: tuple[int, ...], answer: Persistence) -> None:
    session, before = healthy
    assert persistence(session, before, is_bad=_bad_at(*bad)) is answer


def test_after_a_growth_one_more_bad_step_is_enough(healthy) -> None:
    session, before = healthy
    growth = Growth(
        signal="loss", since_step=0, until_step=4, rate=1.1, first_value=1.0, last_value=2.0
    )
    assert persistence(session, before, is_bad=_bad_at(4, 7)) is TRANSIENT
    assert persistence(session, before, is_bad=_bad_at(4, 7), growth=growth) is PERSISTENT


def test_what_no_replay_reproduces_is_over(healthy) -> None:
    session, before = healthy
    found = persistence(session, before, is_bad=lambda step: True, reproduces=False)
    assert found is TRANSIENT


def test_a_schedule_that_ran_ahead_stays_ahead(healthy) -> None:
    session, before = healthy
    ahead = Origin(kind=FaultKind.APPLIED, phase="scheduler", operator="lr_scheduler.step")
    seam = Origin(kind=FaultKind.APPLIED, phase="optimizer", operator="resume")
    assert persistence(session, before, origin=ahead) is PERSISTENT
    assert persistence(session, before, origin=seam) is TRANSIENT


def test_the_update_of_a_bad_step_is_withheld(tmp_path: Path) -> None:
    with before_step(tmp_path, "sqrt-at-zero", 5, steps=8) as (session, before):
        session.restore(before)
        kept = [value.detach().clone() for value in session.model.parameters()]
        assert any(name.startswith("param:") for name in session.run_step().bad)
        persistence(session, before, further=1)
        moved = list(session.model.parameters())
    assert all(bool(value.isfinite().all()) for value in moved)
    assert any(not torch.equal(a, b) for a, b in zip(kept, moved, strict=True))  # by step 6


def test_an_optimizer_with_a_bad_gradient_does_not_step_under_the_guard(healthy) -> None:
    session, before = healthy
    session.restore(before)
    optimizer = session.training.optimizers[0]
    own = vars(optimizer).get("step")
    weight = next(session.model.parameters())
    kept = weight.detach().clone()
    with _guard(session.training):
        weight.grad = torch.full_like(weight, float("nan"))
        optimizer.step()
        assert torch.equal(weight, kept)
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert not torch.equal(weight, kept)
    assert vars(optimizer).get("step") is own


def test_data_that_end_leave_the_question_open(healthy, monkeypatch) -> None:
    session, before = healthy
    made = session.recipe.batch

    def batch(self, step):
        if step > 4:
            raise IndexError("no more data")
        return made(step)

    monkeypatch.setattr(type(session.recipe), "batch", batch)
    assert persistence(session, before, is_bad=_bad_at(4)) is Persistence.UNKNOWN
