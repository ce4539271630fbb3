"""Loops as people write them: sound ones leave no trace, wrong orders are told as such."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.loop_order import _FAULTS
from forensics.record import loop_notes
from forensics.record.recorder import Recorder
from forensics.runlog.manifest import read_manifest
from forensics.runlog.run import load_run
from tests.unit.record import own_loops as loops


def recorded(loop, path, **options):
    """The run of a loop; what it says would be an error, as warnings are here."""
    loop(partial(Recorder, path, **options))
    return load_run(path)


def fired(run):
    return {f.rule: f for f in diagnose(run).findings}


@pytest.mark.parametrize("loop", [*loops.SOUND, loops.guarded], ids=lambda loop: loop.__name__)
class TestSoundLoops:
    def test_leave_no_note_and_one_row_a_step(self, loop, tmp_path):
        run = recorded(loop, tmp_path / "run")
        meant = {loops.guarded: "unstepped", loops.gan: "in_turn"}.get(loop, "")
        assert set(run.manifest.loop) <= {f"{meant}_steps", f"first_{meant}"}
        assert run.manifest.missing == ()
        assert run.steps.step.tolist() == list(range(loops.STEPS))
        assert not run.steps["grads_scaled"].any()
        assert run.steps["skipped"].sum() == (3 if loop is loops.guarded else 0)
        assert (run.steps["grad_l2_pre_clip"] > 0).all()
        assert run.steps.present("loss").all()

    def test_are_not_accused(self, loop, tmp_path):
        rules = fired(recorded(loop, tmp_path / "run"))
        assert "loop-order" not in rules
        assert "clip-before-unscale" not in rules
        assert "repeated-update" not in rules
        assert "clipping-ineffective" not in rules


WRONG = (
    (loops.clips_after_the_step, "late_clip", loops.STEPS, Severity.ERROR, "Clip between backward"),
    (loops.bypasses_the_scaler, "bypassed", loops.STEPS, Severity.ERROR, "scaler.step(optimizer)"),
    (loops.measures_after_the_step, "late_gradients", loops.STEPS, Severity.WARNING, "unscale_"),
    (loops.ends_each_micro_batch, "unstepped", 3 * loops.STEPS, Severity.WARNING, "once an opt"),
    (loops.measures_each_micro_batch, "remeasured", loops.STEPS, Severity.INFO, "Call it once"),
    (loops.forgets_the_end_now_and_then, "unended", 4, Severity.INFO, "end_step()"),
    (loops.measures_now_and_then, "unmeasured", loops.STEPS // 2, Severity.INFO, "before every"),
)


@pytest.mark.parametrize(
    ("loop", "kind", "count", "severity", "remedy"), WRONG, ids=[case[1] for case in WRONG]
)
def test_a_wrong_order_is_counted_and_told(loop, kind, count, severity, remedy, tmp_path):
    run = recorded(loop, tmp_path / "run")
    assert run.manifest.loop[f"{kind}_steps"] == count
    assert run.manifest.loop[f"first_{kind}"] <= 1
    finding = fired(run)["loop-order"]
    assert finding.severity is severity
    assert remedy in finding.remedy


def test_a_late_clip_and_a_bypass_are_the_root(tmp_path):
    for loop in (loops.clips_after_the_step, loops.bypasses_the_scaler):
        diagnosis = diagnose(recorded(loop, tmp_path / loop.__name__))
        assert diagnosis.findings[diagnosis.verdict.root].rule == "loop-order", loop.__name__
        assert (
            diagnosis.verdict.next_command == "forensics rules loop-order"
        )  # no tensor tells more


def test_a_clip_before_unscale_is_marked_row_by_row(tmp_path):
    run = recorded(loops.clips_before_unscale, tmp_path / "run")
    assert run.steps["grads_scaled"].all()
    assert not run.manifest.loop
    assert "clip-before-unscale" in fired(run)


def test_a_step_that_is_taken_twice_is_the_other_rules(tmp_path):
    rules = fired(recorded(loops.steps_twice, tmp_path / "run"))
    assert "repeated-update" in rules
    assert "loop-order" not in rules


@pytest.mark.parametrize(
    ("loop", "kind", "error"),
    [
        (loops.never_updates, "unupdated", RuntimeError),
        (loops.updates_twice, "updated_twice", AssertionError),
    ],
)
def test_the_scalers_own_refusal_is_traced_to_the_order(loop, kind, error, tmp_path):
    with pytest.raises(error):
        loop(partial(Recorder, tmp_path / "run"))
    run = load_run(tmp_path / "run")
    assert run.manifest.loop == {f"{kind}_steps": 1, f"first_{kind}": 0}
    finding = fired(run)["loop-order"]
    assert finding.severity is Severity.ERROR
    assert "scaler.update() once" in finding.remedy


def test_an_error_of_the_loops_own_is_no_wrong_order(tmp_path):
    def loop(make):
        with make(loops.net(), loops.sgd(loops.net())):
            raise AssertionError("my own")

    with pytest.raises(AssertionError):
        loop(partial(Recorder, tmp_path / "run"))
    assert read_manifest(tmp_path / "run").loop == {}


class TestGan:
    def test_each_optimizers_own_gradients_count(self, tmp_path):
        """The generator's backward spoils the critic's gradients: they are not measured again."""
        run = recorded(loops.gan_without_scaler, tmp_path / "plain")
        scaled = recorded(loops.gan, tmp_path / "scaled")
        plain, other = run.steps["grad_l2_pre_clip"], scaled.steps["grad_l2_pre_clip"]
        assert other == pytest.approx(plain, rel=1e-3)
        assert (scaled.steps["grad_l2_post_clip"] <= math.sqrt(2) * 0.1 * (1 + 1e-5)).all()

    def test_gradients_returns_the_norm_of_the_optimizer_that_is_next(self, tmp_path):
        critic, maker = loops.net(), loops.net()
        optimizers = [loops.sgd(critic), loops.sgd(maker)]
        model = torch.nn.ModuleList([critic, maker])
        with Recorder(tmp_path / "run", model, optimizers) as recorder:
            for i in range(2):
                for own, optimizer in zip(model, optimizers, strict=True):
                    optimizer.zero_grad()
                    loops.loss_of(own, i).backward()
                    expected = torch.nn.utils.get_total_norm([p.grad for p in own.parameters()])
                    assert recorder.gradients() == pytest.approx(expected.item(), rel=1e-5)
                    optimizer.step()
                recorder.end_step(1.0)


def test_every_kind_that_is_counted_is_told_and_documented():
    told = {*_FAULTS, "reapplied", "in_turn", "one_loss"}
    assert set(loop_notes.KINDS) == told
    page = (Path(__file__).parents[3] / "docs" / "run-format.md").read_text(encoding="utf-8")
    for kind, meaning in loop_notes.KINDS.items():
        assert f"| `{kind}` | " in page, meaning


def test_notes_are_on_disk_while_the_run_goes_on(tmp_path):
    model = loops.net()
    optimizer = loops.sgd(model)
    recorder = Recorder(tmp_path / "run", model, optimizer)
    loops.loss_of(model, 0).backward()
    optimizer.step()
    recorder.gradients(1.0)
    recorder.end_step()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["loop"] == {
        "late_gradients_steps": 1,
        "first_late_gradients": 0,
    }
    recorder.close()


def test_an_optimizer_that_steps_now_and_then_is_no_fault(tmp_path):
    parts = torch.nn.ModuleList([loops.net(), loops.net()])
    often, seldom = (loops.sgd(part) for part in parts)
    with Recorder(tmp_path / "run", parts, [often, seldom]) as recorder:
        first = []
        for i in range(6):
            for part, optimizer in zip(parts, (often, seldom)[: 1 + i % 2], strict=False):
                optimizer.zero_grad()
                loss = loops.loss_of(part, i)
                if optimizer is often:
                    first.append(loss.item())
                elif i == 5:
                    loss = loss * math.nan
                loss.backward()
                recorder.gradients(loss, optimizers=optimizer)
                optimizer.step()
            recorder.end_step()
    run = load_run(tmp_path / "run")
    assert not run.steps["skipped"].any()
    assert run.manifest.loop == {"in_turn_steps": 5, "first_in_turn": 1}
    assert run.steps["loss"] == pytest.approx([*first[:5], math.nan], nan_ok=True)
