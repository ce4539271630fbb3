"""Changes tried by replay: what each comes to on a fault whose cure is known."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from forensics.replay.proof.what_if import last_step, what_if, what_if_applied, what_if_from
from forensics.replay.tracing.step_forensics import examine_step
from tests.unit.replay.faulty import before_step


def _by_change(table):
    return {trial.change: trial for trial in table}


@pytest.fixture(scope="module")
def overflow(tmp_path_factory: pytest.TempPathFactory):
    """A product in fp16 overflows in step 5 of 12, whatever the loss scale."""
    home = tmp_path_factory.mktemp("overflow")
    with before_step(home, "ffn-overflow-fp16", 5, steps=12) as held:
        yield held


def test_an_fp16_overflow_is_gone_in_bf16_and_is_not_the_scaler(overflow) -> None:
    session, before = overflow
    table = _by_change(what_if(session, before, further_steps=4))
    for change in ("fp32", "bf16"):
        assert table[change].finite is True
        assert (table[change].from_step, table[change].until_step) == (5, 9)
    scale = table["loss scale 1"]
    assert (scale.finite, scale.first_bad_step, scale.note) == (False, 5, "not the scaler")
    assert "fp64" not in table  # fp32 has said it


def test_without_guilty_samples_the_whole_batch_is_left_out(overflow) -> None:
    session, before = overflow
    trial = _by_change(what_if(session, before, further_steps=4))["without the batch"]
    assert (trial.from_step, trial.until_step, trial.finite) == (6, 9, True)


def test_a_trial_ends_where_the_recorded_run_does(overflow) -> None:
    session, _ = overflow
    assert last_step(session, 5, 50) == 11
    assert last_step(session, 11, 50) == 11


def test_the_cost_is_announced_before_anything_is_tried(overflow) -> None:
    session, before = overflow
    told: list[str] = []
    what_if(session, before, further_steps=1, announce=told.append)
    assert len(told) == 1
    assert told[0].startswith("5 changes to try: up to 10 steps, about ")


def test_every_trial_begins_at_the_same_state(overflow) -> None:
    session, before = overflow
    what_if(session, before, further_steps=2)
    session.restore(before)
    weights = [p.dtype for p in session.model.parameters()]
    assert weights == [torch.float32] * len(weights)
    assert "loss" in session.run_step().bad


def test_a_bad_sample_is_mathematics_and_the_data(tmp_path: Path) -> None:
    data = {"samples": 8, "features": 16, "classes": 8, "noise": 2.0, "fault_step": 3}
    with before_step(tmp_path, "bad-sample", 3, steps=6, data=data) as (session, before):
        table = _by_change(what_if(session, before, samples=(7,), further_steps=2))
    assert set(table) == {"fp64", "without the guilty samples"}
    assert table["fp64"].finite is False
    assert "mathematics" in table["fp64"].note
    assert table["without the guilty samples"].finite is True
    assert table["without the guilty samples"].until_step == 5


def test_what_cannot_be_changed_says_why(tmp_path: Path) -> None:
    with before_step(tmp_path, "adam-eps-fp16", 0, steps=3) as (session, before):
        table = _by_change(what_if(session, before, further_steps=1))
    assert table["bf16"].finite is None
    assert "parameters themselves" in table["bf16"].note
    assert table["fp32"].finite is True  # weights and data are widened, which fp64 adds nothing to
    assert "fp64" not in table


def test_a_loop_that_sets_the_loss_scale_itself_is_not_believed(tmp_path: Path) -> None:
    with before_step(tmp_path, "resume-without-scaler", 12, steps=14) as (session, before):
        trial = _by_change(what_if(session, before, further_steps=1))["loss scale 1"]
    assert trial.finite is None
    assert "sets the loss scale itself" in trial.note


def test_half_the_rate_puts_a_divergence_off(tmp_path: Path) -> None:
    with before_step(tmp_path, "learned-scale-blowup", 23, steps=40) as (session, before):
        del before
        told: list[str] = []
        table = what_if_from(session, 5, 23, further_steps=16, announce=told.append)
    half = table[0]
    assert half.change == "half the learning rate"
    assert half.from_step == 4  # the newest saved state at or before the root
    assert half.first_bad_step is None or half.first_bad_step > 23
    assert len(told) == 1


def test_a_run_that_clips_is_not_told_to(tmp_path: Path) -> None:
    with before_step(tmp_path, "fp16-overflow", 9, steps=12) as (session, _):
        changes = [trial.change for trial in what_if_from(session, 8, 9, further_steps=1)]
    assert not [change for change in changes if change.startswith("clip")]


def test_skips_of_a_scaler_at_work_are_no_fault(tmp_path: Path) -> None:
    """Started far too high, the scale is searched for in the steps after the made-up bad one."""
    settings = {"steps": 12, "precision": "fp16"}
    with before_step(tmp_path, "healthy-fp16", 0, **settings) as (session, before):
        recorded = [session.recorded(step)["skipped"] for step in range(3)]
        found = what_if(
            session,
            before,
            samples=(0,),
            further_steps=3,
            is_bad=lambda step: step.step > 0 and bool(step.bad),
        )
    assert any(recorded)  # the scaler does skip here
    assert _by_change(found)["without the guilty samples"].finite is True


def test_data_that_cannot_be_had_are_a_reason(overflow, monkeypatch) -> None:
    session, before = overflow

    def gone(self, step):
        if step > 5:
            raise OSError("the disk is gone")
        return made(step)

    made = session.recipe.batch
    monkeypatch.setattr(type(session.recipe), "batch", gone)
    table = _by_change(what_if(session, before, further_steps=3))
    assert table["without the batch"].finite is None
    assert "the disk is gone" in table["without the batch"].note
    assert table["fp32"].until_step == 5


def test_gradients_that_underflow_are_there_in_bf16(tmp_path: Path) -> None:
    with before_step(tmp_path, "gradient-underflow-fp16", 0, steps=6) as (session, before):
        origin = examine_step(session)
        assert origin is not None
        table = _by_change(what_if_applied(session, before, origin, further_steps=2))
    assert table["bf16"].finite is True
    assert (table["bf16"].from_step, table["bf16"].until_step) == (0, 2)
    assert table["fp32"].finite is True


def test_where_the_origin_names_the_cure_nothing_is_tried(tmp_path: Path) -> None:
    with before_step(tmp_path, "clip-before-unscale", 0, steps=3) as (session, before):
        origin = examine_step(session)
        assert origin is not None
        assert what_if_applied(session, before, origin) == ()


def test_a_state_that_leads_elsewhere_proves_nothing(tmp_path: Path) -> None:
    """The saved state of step 6 lacks how far the scaler is: from there nothing raises."""
    with before_step(tmp_path, "spike-skipped-half", 6, steps=8) as (session, _):
        half = what_if_from(session, 6, 6, further_steps=1)[0]
        assert half.from_step < 6  # an earlier state leads to it
        assert half.finite is False
        never = what_if_from(session, 6, 6, further_steps=1, is_bad=lambda step: False)[0]
    assert never.finite is None
    assert "does not go bad unchanged" in never.note


def test_a_clip_is_set_to_the_norms_of_the_calm_before(tmp_path: Path) -> None:
    with before_step(tmp_path, "learned-scale-blowup", 23, steps=26) as (session, _):
        norms = [session.recorded(step)["grad_l2_pre_clip"] for step in range(5)]
        trial = what_if_from(session, 0, 23, further_steps=1)[1]
    limit = float(trial.change.removeprefix("clip at "))
    assert min(norms) <= limit <= max(norms) * 1.05


def test_a_clip_from_a_huge_first_norm_on_is_the_customary_one(tmp_path: Path) -> None:
    """Step 0 alone comes before the bad one, and its norm is the fault already."""
    with before_step(tmp_path, "learned-scale-blowup", 2, steps=4) as (session, _):
        session.run.steps["grad_l2_pre_clip"][:] = 35_311.0
        changes = [trial.change for trial in what_if_from(session, 0, 1, further_steps=1)]
    assert changes[-1] == "clip at 1"


def test_an_exception_is_no_matter_of_precision(tmp_path: Path) -> None:
    with before_step(tmp_path, "batch-norm-of-one", 5, steps=8) as (session, before):
        changes = [trial.change for trial in what_if(session, before, further_steps=1)]
    assert changes == ["without the batch"]


def test_a_step_that_rounds_by_itself_is_not_called_mathematics(tmp_path: Path) -> None:
    with before_step(tmp_path, "gumbel-rounding", 8, steps=11) as (session, before):
        trial = _by_change(what_if(session, before, further_steps=1))["fp64"]
    assert trial.finite is False
    assert trial.note == "the step itself rounds to fp16"
