"""What a step applied to the weights: each fault is found, and what looks like it is sound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from forensics.replay.tracing.operator_advice import advice_for
from forensics.replay.tracing.step_facts import Context
from forensics.replay.tracing.step_forensics import Examination
from tests.unit.replay.small_loops import Loop, ScaledLoop, looked_into, training_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_a_clip_of_scaled_gradients_that_does_not_engage_is_sound():
    loop = ScaledLoop(scale=2.0)
    loop.unscales, loop.max_norm = False, 1e6
    assert loop.examine().origin is None


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_schedule_that_moves_in_a_skipped_step_is_found():
    loop = ScaledLoop(scale=2.0**40)
    loop.schedules = True
    origin = loop.examine().origin
    assert (origin.operator, origin.phase) == ("lr_scheduler.step", "scheduler")
    assert "from 0.005 to 0.0055" in origin.summary


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_schedule_by_epochs_may_move_in_a_skipped_step():
    loop = ScaledLoop(scale=2.0**40)
    loop.schedules = True
    assert loop.examine(context=Context(step=200)).origin is None


def test_a_schedule_that_moves_twice_a_step_is_found_but_not_by_micro_batches():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    loop = Loop(model, optimizer, torch.ones(2, 2), schedulers=[schedule])

    def run() -> Tensor:
        loss = loop()
        schedule.step()
        schedule.step()
        return loss

    origin = looked_into(loop.training, run, batches=[loop.inputs]).origin
    assert (origin.operator, origin.phase) == ("lr_scheduler.step", "scheduler")
    assert "2 times" in origin.summary
    assert looked_into(loop.training, run, batches=[loop.inputs] * 2).origin is None


def test_a_rate_below_0_is_found_and_a_rate_of_0_is_sound():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 2)
    loop = Loop(model, optimizer, torch.ones(2, 2), schedulers=[schedule])

    def run() -> Tensor:
        loss = loop()
        schedule.step()
        return loss

    assert looked_into(loop.training, run, after=2).origin is None
    origin = looked_into(loop.training, run).origin
    assert (origin.operator, origin.phase) == ("learning rate", "scheduler")
    assert "is -0.05 (LambdaLR made it): SGD climbs the loss" in origin.summary
    assert origin.parameters == ()
    assert "at or above 0" in advice_for(origin)


def test_a_state_that_is_emptied_inside_a_run_is_no_resume():
    model = nn.Linear(2, 1)
    loop = Loop(model, torch.optim.AdamW(model.parameters()), torch.ones(2, 2))

    def run() -> Tensor:
        loop.optimizer.state.clear()
        return loop()

    loop()
    inside = looked_into(loop.training, run, context=Context(step=1, resumed=False)).origin
    assert (inside.operator, inside.phase) == ("resume", "optimizer")
    assert "no resume here: the loop emptied it." in inside.summary
    assert advice_for(inside).startswith("find what empties")
    resumed = looked_into(loop.training, run, context=Context(step=1, resumed=True)).origin
    assert "loop" not in resumed.summary
    assert advice_for(resumed).startswith("save and load")


def test_a_schedule_that_begins_anew_is_found():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    loop = Loop(model, optimizer, torch.ones(2, 2), schedulers=[schedule])
    fresh = schedule.state_dict()

    def run() -> Tensor:
        loss = loop()
        schedule.step()
        return loss

    assert looked_into(loop.training, run, batches=[loop.inputs], after=5).origin is None

    def resumed() -> Tensor:
        schedule.load_state_dict(fresh)
        return run()

    origin = looked_into(loop.training, resumed, batches=[loop.inputs]).origin
    assert (origin.operator, origin.phase) == ("resume", "scheduler")
    assert "went back from its move 6 to 1" in origin.summary


def test_moments_that_are_gone_are_found_by_their_counts():
    model = nn.Linear(4, 1)
    loop = Loop(model, torch.optim.Adam(model.parameters()), torch.ones(2, 4))
    for _ in range(3):
        loop()

    def resumed() -> Tensor:
        loop.optimizer.state.clear()
        return loop()

    origin = looked_into(loop.training, resumed).origin
    assert (origin.operator, origin.phase) == ("resume", "optimizer")
    assert "after 3 steps" in origin.summary
    assert "of 2 parameters 2 start again" in origin.summary


def test_a_state_that_is_empty_although_steps_were_taken_is_found_and_the_first_step_is_sound():
    model = nn.Linear(4, 1)
    loop = Loop(model, torch.optim.Adam(model.parameters()), torch.ones(2, 4))
    assert loop.examine(context=Context(step=0)).origin is None
    model = nn.Linear(4, 1)
    loop = Loop(model, torch.optim.Adam(model.parameters()), torch.ones(2, 4))
    origin = loop.examine(context=Context(step=9, trained=True)).origin
    assert origin.operator == "resume"
    model = nn.Linear(4, 1)
    loop = Loop(model, torch.optim.SGD(model.parameters(), 0.1), torch.ones(2, 4))
    assert loop.examine(context=Context(step=9, trained=True)).origin is None


def test_gradients_that_nobody_clears_are_found():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def run() -> Tensor:
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    training = training_of(model, [optimizer])
    origin = looked_into(training, run, after=2).origin
    assert (origin.operator, origin.phase) == ("zero_grad", "backward")
    skipped = Context(step=2, taken_before=False)
    assert looked_into(training, run, context=skipped).origin is None


def test_gradients_of_another_part_that_are_cleared_in_time_are_sound():
    parts = nn.ModuleDict({"maker": nn.Linear(2, 4), "judge": nn.Linear(4, 1)})
    optimizers = {name: torch.optim.Adam(part.parameters()) for name, part in parts.items()}

    def run() -> Tensor:
        made = parts["maker"](torch.randn(4, 2))
        optimizers["maker"].zero_grad()
        (-parts["judge"](made).mean()).backward()
        optimizers["maker"].step()
        optimizers["judge"].zero_grad()
        loss = parts["judge"](made.detach()).mean()
        loss.backward()
        optimizers["judge"].step()
        return loss

    training = training_of(parts, list(optimizers.values()))
    assert looked_into(training, run, after=3).origin is None


def test_gradients_that_underflow_are_traced_to_the_product_that_lost_them():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        model[2].weight.mul_(1e-4)
    optimizer = torch.optim.Adam(model.parameters())

    def run() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(4, 4)).float().pow(2).mean() * 1e-3
        loss.backward()
        optimizer.step()
        return loss

    origin = looked_into(training_of(model, [optimizer]), run).origin
    assert (origin.operator, origin.autograd_node) == ("aten.mm", "AddmmBackward0")
    assert (origin.phase, origin.module, origin.parameter) == ("backward", "0", "0.weight")
    assert origin.parameters[0] in ("0.weight", "0.bias")
    assert "2 of 4 parameters are exactly 0" in origin.summary


def test_gradients_that_are_0_for_a_reason_are_sound():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    with torch.no_grad():
        model[0].bias.fill_(-100.0)  # every unit is dead
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.ones(4, 4)).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    found = looked_into(training_of(model, [optimizer]), run)
    assert found.trace.arrived["0.weight"] == 0.0
    assert found.origin is None


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.AdamW, {}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.RMSprop, {"foreach": True}),
    ],
)
def test_updates_that_bfloat16_rounds_away_are_found_and_larger_ones_are_sound(kind, options):
    def examined(rate: float, share: float = 1.0) -> Examination:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).bfloat16()
        optimizer = kind(model.parameters(), lr=rate, **options)
        inputs = torch.randn(8, 8).bfloat16()
        loop = Loop(model, optimizer, inputs)
        return loop.examine(context=Context(rate_share=share))

    origin = examined(1e-6).origin
    assert (origin.operator, origin.phase) == ("optimizer rounding", "optimizer")
    assert (origin.module, origin.parameter) == ("0", "0.weight")
    assert "bfloat16" in origin.summary
    assert examined(0.1).origin is None
    assert examined(1e-6, share=0.01).origin is None  # the end of a schedule
    assert examined(0.0).origin is None


def test_a_half_precision_weight_with_a_master_copy_is_sound():
    class Master(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure=None):
            for parameter in self.param_groups[0]["params"]:
                state = self.state[parameter]
                state.setdefault("copy", parameter.float())
                state["copy"] -= 1e-6 * parameter.grad.float()
                parameter.copy_(state["copy"])

    model = nn.Linear(4, 4).bfloat16()
    loop = Loop(model, Master(model.parameters(), 1e-6), torch.ones(2, 4).bfloat16())
    assert loop.examine(after=2).origin is None


def test_rests_that_are_sound():
    model = nn.ModuleDict({"used": nn.Linear(4, 1), "idle": nn.Linear(4, 1)})
    optimizer = torch.optim.Adam(model.parameters(), weight_decay=0.1)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = model["used"](torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    training = training_of(model, [optimizer])
    assert looked_into(training, run, after=2).origin is None
    model["used"].weight.requires_grad_(False)
    assert looked_into(training, run, after=2).origin is None


def test_sparse_gradients_are_sound():
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True))
    loop = Loop(model, torch.optim.SparseAdam(model.parameters()), torch.tensor([1, 1, 5]))
    assert loop.examine(after=2).origin is None


def test_looking_at_what_is_applied_changes_no_bit():
    def weights(examined: bool) -> Tensor:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1)).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        loop = Loop(model, optimizer, torch.randn(8, 8).bfloat16())
        for _ in range(3):
            loop.examine() if examined else loop()
        moments = [v for state in optimizer.state.values() for v in state.values()]
        return torch.cat([t.detach().float().flatten() for t in [*model.parameters(), *moments]])

    assert torch.equal(weights(True), weights(False))
    assert math.isfinite(float(weights(False).sum()))


def test_accumulated_losses_that_are_not_divided_are_told_beside_an_overflow():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    batches = [torch.full((2, 4), 3e18) for _ in range(3)]

    def examined(share: float, by_hand: float = 1.0, clears: bool = False) -> str:
        training = training_of(model, [optimizer])
        training.loss = lambda model, batch: model(batch).pow(2).mean() * 10

        def run() -> Tensor:
            optimizer.zero_grad()
            total = torch.zeros(())
            for batch in batches:
                if clears:
                    optimizer.zero_grad()
                loss = training.loss(model, batch)
                (loss / share).backward()
                total += loss.detach()
            for parameter in model.parameters():
                parameter.grad /= by_hand
            nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
            optimizer.step()
            return total

        with torch.no_grad():
            model.weight.fill_(0.1)
            model.bias.zero_()
        return looked_into(training, run, batches=batches).origin.summary

    assert "3 micro-batches are not divided by 3" in examined(1.0)
    assert "not divided" not in examined(3.0)
    assert "not divided" not in examined(1.0, by_hand=3.0)
    assert "not divided" not in examined(1.0, clears=True)
