"""The cheap watch: it dates what happens once, and is silent on sound steps."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from forensics.record.step_log import StepLog
from forensics.replay.applied.watch import AppliedWatch
from forensics.replay.rerun.replayed_step import ReplayedStep
from forensics.replay.session import Session
from tests.unit.replay.small_loops import Loop, ScaledLoop


def suspicions(loop: Any, steps: int, at: dict[int, Any] | None = None) -> list[str]:
    """What the watch says of each step; ``at`` runs something at the beginning of a step."""
    watch = AppliedWatch(loop.training)
    found = []

    def run(step: int) -> Tensor:
        if at and step in at:
            at[step]()
        return loop()

    with watch.watching():
        for step in range(steps):
            watch.step(lambda step=step: run(step))
            row = StepLog(
                step=step, lrs=(0.1,), loss=1.0, grad_l2_pre_clip=None, grad_l2_post_clip=None
            )
            found.append(watch.suspicion(ReplayedStep(step=step, log=row)))
    return found


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_sound_steps_are_not_suspected():
    assert suspicions(ScaledLoop(), 4) == [""] * 4
    assert suspicions(ScaledLoop(optimizer=torch.optim.AdamW, fused=True), 4) == [""] * 4
    assert suspicions(ScaledLoop(scale=2.0**40), 4) == [""] * 4  # calibration


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_schedule_that_runs_ahead_is_suspected_in_the_skipped_steps():
    loop = ScaledLoop(scale=2.0**40)
    loop.schedules = True
    assert suspicions(loop, 3) == ["lr_scheduler.step"] * 3
    loop = ScaledLoop()
    loop.schedules = True
    assert suspicions(loop, 3) == [""] * 3


def test_a_lost_state_is_dated():
    model = nn.Linear(4, 1)
    loop = Loop(model, torch.optim.Adam(model.parameters()), torch.ones(2, 4))
    assert suspicions(loop, 6, {3: loop.optimizer.state.clear}) == ["", "", "", "resume", "", ""]


def test_a_lost_momentum_is_dated():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    loop = Loop(model, optimizer, torch.ones(2, 4))
    assert suspicions(loop, 4, {2: optimizer.state.clear})[2] == "resume"


def test_a_scale_that_is_set_back_is_dated():
    loop = ScaledLoop(scale=16.0)
    new = torch.amp.GradScaler("cpu", init_scale=1024.0).state_dict()
    found = suspicions(loop, 5, {3: lambda: loop.scaler.load_state_dict(new)})
    assert found == ["", "", "", "resume", ""]


@pytest.mark.parametrize(
    ("change", "name"),
    [({"unscales": False}, "clip"), ({"unscales": False, "through_scaler": False}, "clip")],
)
def test_scaled_gradients_are_suspected(change, name):
    loop = ScaledLoop()
    vars(loop).update(change)
    assert suspicions(loop, 2) == [name] * 2
    loop = ScaledLoop()
    vars(loop).update({**change, "max_norm": 0.0})
    assert suspicions(loop, 2) == ["optimizer" if "through_scaler" in change else ""] * 2


def test_a_hidden_skip_is_suspected_where_it_is_counted():
    loop = ScaledLoop(scale=2.0**18, optimizer=torch.optim.AdamW, fused=True)
    loop.optimizer.register_step_post_hook(lambda *_: None)
    loop.inputs = [30 * inputs for inputs in loop.inputs]
    found = suspicions(loop, 12)
    assert found[0] == "_fused_adamw_"
    assert found[-1] == ""


def test_gradients_that_are_never_cleared_are_suspected():
    model = nn.Linear(4, 1)
    loop = Loop(model, torch.optim.SGD(model.parameters(), 1e-3), torch.ones(2, 4))
    loop.optimizer = SimpleNamespace(zero_grad=lambda: None, step=loop.optimizer.step)
    assert suspicions(loop, 3) == ["", "zero_grad", "zero_grad"]


def test_weights_that_do_not_move_are_suspected_unless_the_rate_is_0():
    def loop(rate: float) -> Loop:
        model = nn.Linear(8, 8).bfloat16()
        return Loop(model, torch.optim.SGD(model.parameters(), rate), torch.ones(2, 8).bfloat16())

    assert suspicions(loop(1e-6), 2) == ["optimizer rounding"] * 2
    assert suspicions(loop(0.5), 2) == [""] * 2
    assert suspicions(loop(0.0), 2) == [""] * 2


def test_a_watched_replay_is_the_record_and_nothing_stays_hooked(session: Session):
    own = torch.amp.GradScaler.step, torch.optim.lr_scheduler.LRScheduler.step
    session.go_to(4)
    watch = AppliedWatch(session.training)
    with watch.watching():
        for _ in range(4):
            replayed = session.run_step(trace=watch.step)
            assert watch.suspicion(replayed) == ""
            assert session.departure(replayed) is None
    assert (torch.amp.GradScaler.step, torch.optim.lr_scheduler.LRScheduler.step) == own
