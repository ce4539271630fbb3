"""``AcceleratedRecorder`` with the real ``accelerate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forensics import load_run

pytest.importorskip("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of every kind and release

MICRO_BATCHES = 8


def batches() -> list[tuple[torch.Tensor, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    inputs = [torch.randn(4, 8, generator=draw) for _ in range(MICRO_BATCHES)]
    return [(x, x.sum(1, keepdim=True)) for x in inputs]


def trained(run_dir: Path | None, **recorder_options: Any) -> list[float]:
    """Train a net under an accelerator, recorded where a directory is given; its last weights."""
    from accelerate import Accelerator

    from forensics.record.trainers.accelerate import AcceleratedRecorder

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.05))
    recorder = None
    if run_dir is not None:
        recorder = AcceleratedRecorder(
            run_dir, accelerator, model, optimizer, max_norm=0.5, **recorder_options
        )
    for inputs, targets in batches():
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        if recorder is not None:
            recorder.end_step()
    if recorder is not None:
        recorder.close()
        assert "backward" not in vars(accelerator)
    return torch.cat([p.detach().flatten() for p in net.parameters()]).tolist()


def test_a_row_is_an_optimizer_step_and_its_loss_the_mean(tmp_path: Path) -> None:
    trained(tmp_path / "run")
    run = load_run(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2, 3]
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    first = [float(nn.functional.mse_loss(net(x), y)) for x, y in batches()[:2]]
    assert run.steps["loss"][0] == pytest.approx(sum(first) / 2)
    assert min(run.steps["grad_l2_pre_clip"]) > 0.5
    assert run.steps["grad_l2_post_clip"] == pytest.approx([0.5] * 4, rel=1e-4)
    assert run.manifest.accumulation == 2
    assert run.manifest.ended.how == "finished"


def test_a_loop_may_count_its_micro_batches_itself(tmp_path: Path) -> None:
    """As the examples of accelerate and transformers do: no ``accumulate``, a modulo instead."""
    from accelerate import Accelerator

    from forensics.record.trainers.accelerate import AcceleratedRecorder

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    net = nn.Linear(8, 1)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.05))
    recorder = AcceleratedRecorder(tmp_path / "run", accelerator, model, optimizer)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)  # wraps the prepared one's step
    losses = []
    for i, (inputs, targets) in enumerate(batches()):
        loss = nn.functional.mse_loss(model(inputs), targets) / 2
        losses.append(loss.item())
        accelerator.backward(loss)
        if i % 2 == 1:
            accelerator.unscale_gradients()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        recorder.end_step()
        if i == 3:
            accelerator.save_state(str(tmp_path / "state"))
    recorder.close()
    run = load_run(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2, 3]
    assert not run.steps["skipped"].any()
    assert run.steps["lr"] == pytest.approx([0.05, 0.005, 5e-4, 5e-5])
    assert run.steps["loss"] == pytest.approx([sum(losses[i : i + 2]) for i in (0, 2, 4, 6)])
    assert [(state.step, Path(state.path).name) for state in run.manifest.states] == [(2, "state")]
    optimizer.step()  # still that of the schedule, and nobody else's
    assert "save_state" not in vars(accelerator)


def test_recording_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    assert trained(tmp_path / "run") == trained(None)


@pytest.mark.parametrize("steps_between", [True, False])
def test_the_gradients_of_several_optimizers_are_measured(
    tmp_path: Path, steps_between: bool
) -> None:
    from accelerate import Accelerator

    from forensics.record.trainers.accelerate import AcceleratedRecorder

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    parts = [nn.Linear(8, 8), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(part.parameters(), 0.05) for part in parts]
    maker, critic, *prepared = accelerator.prepare(*parts, *optimizers)
    norms = []
    with AcceleratedRecorder(
        tmp_path / "run", accelerator, nn.ModuleList(parts), prepared
    ) as recorder:
        for inputs, _ in batches():
            own = []
            for part, seen in ((maker, maker(inputs)), (critic, inputs)):
                critic.zero_grad()
                accelerator.backward(nn.functional.softplus(critic(seen)).mean())
                grads = [p.grad for p in part.parameters()]
                own += [float(grad.norm()) for grad in grads]
                if steps_between:
                    accelerator.clip_grad_norm_(part.parameters(), 0.1)
                    prepared[part is critic].step()
            if not steps_between:
                accelerator.clip_grad_norm_(nn.ModuleList(parts).parameters(), 0.1)
                accelerator.clip_grad_norm_(nn.ModuleList(parts).parameters(), 0.1)
                for optimizer in prepared:
                    optimizer.step()
            maker.zero_grad()
            norms.append(torch.tensor(own).norm().item())
            recorder.end_step()
    run = load_run(tmp_path / "run")
    assert run.steps["grad_l2_pre_clip"] == pytest.approx(norms, rel=1e-5)
    assert run.manifest.loop == {}


def test_an_optimizer_whose_backward_comes_after_anothers_clip_is_measured_then(
    tmp_path: Path,
) -> None:
    """Backward and clip of each, and only then both steps, as GANs do."""
    from accelerate import Accelerator

    from forensics.record.trainers.accelerate import AcceleratedRecorder

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    parts = [nn.Linear(8, 8), nn.Linear(8, 1)]
    optimizers = [torch.optim.SGD(part.parameters(), 0.05) for part in parts]
    maker, critic, *prepared = accelerator.prepare(*parts, *optimizers)
    norms, losses = [], []
    with AcceleratedRecorder(
        tmp_path / "run", accelerator, nn.ModuleList(parts), prepared, max_norm=0.1
    ) as recorder:
        for inputs, _ in batches():
            maker.zero_grad()
            own, both = [], torch.zeros(())
            for part, seen, sign in ((maker, maker(inputs), 1), (critic, inputs, -3)):
                critic.zero_grad()
                loss = nn.functional.softplus(sign * critic(seen)).mean()
                accelerator.backward(loss)
                own += [float(p.grad.norm()) for p in part.parameters()]
                both = both + loss.detach()
                accelerator.clip_grad_norm_(part.parameters(), 0.1)
            for optimizer in prepared:
                optimizer.step()
            norms.append(torch.tensor(own).norm().item())
            losses.append(both.item())
            recorder.end_step()
    steps = load_run(tmp_path / "run").steps
    assert steps["grad_l2_pre_clip"] == pytest.approx(norms, rel=1e-5)
    assert steps["loss"] == pytest.approx(losses, rel=1e-5)
    assert steps["grad_l2_post_clip"] == pytest.approx([0.02**0.5] * len(norms), rel=1e-3)
    assert "clip_grad_norm_" not in vars(accelerator)
