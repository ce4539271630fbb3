"""What a snapshot of a bad step says where weights were updated before it could be taken."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from forensics.record.recorder import Recorder
from forensics.runlog.run import Run, load_run

BAD, STEPS = 6, 12
softplus = nn.functional.softplus


def recorded(loop, path: Path) -> Run:
    torch.manual_seed(0)
    loop(path)
    return load_run(path)


def two_optimizers(path: Path) -> None:
    """The critic meets a NaN and steps; the generator's gradients are measured only then."""
    model = nn.ModuleDict({"maker": nn.Linear(4, 8), "critic": nn.Linear(8, 1)})
    maker, critic = model["maker"], model["critic"]
    steps = [torch.optim.Adam(part.parameters(), 1e-3) for part in (critic, maker)]
    with Recorder(path, model, steps) as recorder:
        for step in range(STEPS):
            real = torch.randn(8, 8)
            if step == BAD:
                real[3] = torch.nan
            steps[0].zero_grad()
            loss = (softplus(-critic(real)) + softplus(critic(maker(torch.randn(8, 4))))).mean()
            loss.backward()
            recorder.gradients(loss)
            steps[0].step()
            steps[1].zero_grad()
            loss = softplus(-critic(maker(torch.randn(8, 4)))).mean()
            loss.backward()
            recorder.gradients(loss)
            steps[1].step()
            recorder.end_step()


def closure(path: Path) -> None:
    """LBFGS evaluates again after the first bad gradient has gone into the weights."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    with Recorder(path, model, optimizer) as recorder:
        for step in range(STEPS):
            inputs = torch.randn(8, 4)
            targets = inputs.sum(1, keepdim=True)
            if step == BAD:
                targets[3] = torch.nan

            def again(inputs=inputs, targets=targets):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(inputs), targets)
                loss.backward()
                recorder.gradients(loss)
                return loss

            optimizer.step(again)
            recorder.end_step()


def unmeasured(path: Path) -> None:
    """No gradient is ever measured: the first look at the weights is after the update."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with Recorder(path, model, optimizer) as recorder:
        for step in range(STEPS):
            inputs = torch.randn(8, 4)
            targets = inputs.sum(1, keepdim=True) * (torch.nan if step == BAD else 1.0)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            recorder.end_step(loss)


@pytest.mark.parametrize("loop", [two_optimizers, closure, unmeasured], ids=lambda f: f.__name__)
def test_weights_that_a_step_made_bad_were_not_bad_before_it(loop, tmp_path: Path) -> None:
    run = recorded(loop, tmp_path / "run")
    matrix = run.params.matrix("value_nonfinite")
    bad = {int(s): row for s, row in zip(matrix.steps, matrix.values, strict=True)}
    assert not (bad[BAD] > 0).any()
    assert (bad[BAD + 1] > 0).any()
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root]
    assert (root.rule, root.first_step) == ("nonfinite-loss", BAD)


def test_what_was_read_off_a_gradient_is_of_when_it_was_measured(tmp_path: Path) -> None:
    """The generator's backward pass adds to the critic's gradients after they were used."""
    run = recorded(two_optimizers, tmp_path / "run")
    norm, largest = (run.params.matrix(what) for what in ("grad_l2", "grad_absmax"))
    bias = norm.names.index("critic.bias")
    assert largest.values[0, bias] == pytest.approx(norm.values[0, bias], rel=1e-6)
