"""A loop without an optimizer is recorded as one that steps, with no learning rate of its own."""

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from forensics.errors import UsageError
from forensics.record.recorder import Recorder
from forensics.runlog.run import load_run


def train(out, *, note: bool = False, hop: int = -1, **options):
    """Steps of ``p -= lr * p.grad`` after a clip at 0.5; in step ``hop`` nothing goes backward."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    norms = []
    with Recorder(out, model, None, max_norm=0.5, **options) as recorder:
        for step in range(4):
            model.zero_grad()
            if step != hop:
                loss = model(torch.randn(4, 2) + 2).square().mean()
                loss.backward()
                recorder.gradients(loss)
                norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.5)))
                for parameter in model.parameters():
                    parameter.data.add_(parameter.grad, alpha=-0.1)
            if note:
                recorder.note(lr=0.1)
            recorder.end_step()
    return load_run(out), norms


def test_its_rows_are_those_of_steps(tmp_path):
    run, norms = train(tmp_path)
    assert run.steps["grad_l2_pre_clip"] == pytest.approx(norms)
    assert max(norms) > 0.5
    assert run.steps["grad_l2_post_clip"] == pytest.approx([min(n, 0.5) for n in norms], rel=1e-4)
    assert not run.steps["skipped"].any()
    assert not run.steps.present("lr").any()
    assert (run.manifest.loop, run.manifest.optimizer, run.manifest.missing) == ({}, {}, ())
    assert [p.name for p in run.manifest.parameters] == ["weight", "bias"]


def test_the_loop_may_note_its_rate(tmp_path):
    run, _ = train(tmp_path, note=True)
    assert run.steps["lr"].tolist() == [0.1] * 4


def test_a_step_without_gradients_is_skipped(tmp_path):
    run, _ = train(tmp_path, hop=2)
    assert run.steps["skipped"].tolist() == [0, 0, 1, 0]


def test_hooks_on_all_optimizers_hear_nothing_of_it(tmp_path):
    heard = []
    handle = register_optimizer_step_post_hook(lambda *call: heard.append(call))
    try:
        train(tmp_path)
    finally:
        handle.remove()
    assert heard == []


def test_its_state_is_saved_and_put_back(tmp_path):
    train(tmp_path, checkpoint_every=2)
    model = nn.Linear(2, 1)
    with Recorder(tmp_path, model, None, checkpoint_every=2, resume=True) as recorder:
        assert recorder.resume() == 4
    torch.manual_seed(0)
    assert not torch.equal(model.weight, nn.Linear(2, 1).weight)


def test_a_model_that_is_frozen_is_refused(tmp_path):
    with pytest.raises(UsageError, match="requires a gradient"):
        Recorder(tmp_path, nn.Linear(2, 1).requires_grad_(False), None)
