"""Whose parameters a step covers, how often and which way: each fault, and what looks like it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from forensics.replay.applied.coverage import idle_note, schedule_note, without_gradient
from forensics.replay.tracing.step_facts import Context
from tests.unit.replay.small_loops import Loop, looked_into, seeded, training_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))


def test_a_head_that_was_replaced_after_the_optimizer_was_made_is_found():
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    assert Loop(model, optimizer, seeded(4, 4)).examine().origin is None
    model[4] = nn.Linear(8, 1)
    origin = Loop(model, optimizer, seeded(4, 4)).examine().origin
    assert (origin.operator, origin.phase) == ("optimizer.param_groups", "optimizer")
    assert origin.parameters == ("4.weight", "4.bias")
    assert "2 parameters that the model no longer has" in origin.summary


def test_one_layer_left_out_of_the_optimizer_is_found():
    model = layers()
    held = [*model[0].parameters(), *model[4].parameters()]
    origin = Loop(model, torch.optim.SGD(held, 0.1), seeded(4, 4)).examine().origin
    assert origin.parameters == ("2.weight", "2.bias")
    assert "no longer has" not in origin.summary


def test_a_head_alone_may_be_trained_and_heads_may_be_unused_frozen_or_moved_by_hand():
    model = layers()
    assert (
        Loop(model, torch.optim.SGD(model[4].parameters(), 0.1), seeded(4, 4)).examine().origin
        is None
    )
    model = layers()
    model.add_module("unused", nn.Identity())
    model.unused.register_parameter("weight", nn.Parameter(torch.ones(3)))
    held = [p for name, p in model.named_parameters() if "unused" not in name]
    assert Loop(model, torch.optim.SGD(held, 0.1), seeded(4, 4)).examine().origin is None
    model = layers()
    model[0].requires_grad_(False)
    held = [p for p in model.parameters() if p.requires_grad]
    assert Loop(model, torch.optim.SGD(held, 0.1), seeded(4, 4)).examine().origin is None
    model = layers()
    loop = Loop(model, torch.optim.SGD([*model[:4].parameters()], 0.1), seeded(4, 4))

    def by_hand() -> Tensor:
        loss = loop()
        with torch.no_grad():
            for parameter in model[4].parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        return loss

    assert looked_into(loop.training, by_hand, batches=[loop.inputs]).origin is None


def test_the_same_gradients_applied_twice_are_found_and_two_updates_are_not():
    model = layers()
    loop = Loop(model, torch.optim.AdamW(model.parameters()), seeded(4, 4))

    def twice() -> Tensor:
        loss = loop()
        loop.optimizer.step()
        return loss

    origin = looked_into(loop.training, twice, batches=[loop.inputs]).origin
    assert (origin.operator, origin.phase) == ("optimizer.step", "optimizer")
    assert "AdamW.step() was called 2 times with the same gradients" in origin.summary

    def two_updates() -> Tensor:
        loop()
        return loop()

    assert looked_into(loop.training, two_updates, batches=[loop.inputs] * 2).origin is None


def micro_batched(schedule_of, each: bool):
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    schedule = schedule_of(optimizer)
    training = training_of(model, [optimizer], schedulers=[schedule])
    batches = [seeded(2, 4)] * 4

    def run() -> Tensor:
        optimizer.zero_grad()
        for batch in batches:
            loss = model(batch).pow(2).mean() / 4
            loss.backward()
            if each and batch is not batches[-1]:
                schedule.step()
        for _ in range(3 if each else 0):
            schedule.step()
        optimizer.step()
        schedule.step()
        return loss

    return looked_into(training, run, batches=batches, context=Context(step=0, steps=100))


@pytest.mark.filterwarnings("ignore:Detected call of")
@pytest.mark.parametrize(
    ("moves", "each", "found"), [(100, True, True), (400, True, False), (100, False, False)]
)
def test_a_schedule_made_for_the_runs_steps_may_not_move_by_micro_batches(moves, each, found):
    cosine = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, moves)  # noqa: E731
    origin = micro_batched(cosine, each).origin
    assert (origin is not None) is found
    if origin is not None:
        assert "is through after 25" in origin.summary


@pytest.mark.filterwarnings("ignore:Detected call of")
def test_a_schedule_whose_unit_is_unknown_is_a_note_however_flat_it_is():
    steps = lambda o: torch.optim.lr_scheduler.StepLR(o, 100)  # noqa: E731
    seen = micro_batched(steps, True)
    assert seen.origin is None
    assert "StepLR.step() is called 4 times a step" in schedule_note(seen.facts)
    assert schedule_note(micro_batched(steps, False).facts) == ""


@pytest.mark.parametrize(
    ("maximize", "rises", "found"), [(True, True, True), (True, False, False), (False, True, False)]
)
def test_an_optimizer_that_climbs_a_rising_loss_is_found(maximize, rises, found):
    model = layers()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, maximize=maximize)
    loop = Loop(model, optimizer, seeded(4, 4))
    origin = loop.examine(context=Context(step=0, rises=rises)).origin
    assert (origin is not None) is found
    if origin is not None:
        assert "maximize=True" in origin.summary


def test_the_group_whose_rate_is_no_number_is_named_with_its_parameters():
    model = layers()
    groups = [{"params": [*model[:4].parameters()]}, {"params": [*model[4].parameters()]}]
    optimizer = torch.optim.SGD(groups, 0.1)
    optimizer.param_groups[1]["lr"] = math.nan
    origin = Loop(model, optimizer, seeded(4, 4)).examine().origin
    assert "the learning rate of group 1 (4.weight, 4.bias) is nan" in origin.summary
    assert origin.chain[0].phase == "scheduler"


def test_a_head_whose_output_is_detached_is_a_note_and_a_branch_in_use_is_none():
    body, aux = nn.Linear(4, 2), nn.Linear(4, 2)
    model = nn.ModuleDict({"body": body, "aux": aux})
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)

    def run_with(used: bool) -> frozenset[str] | None:
        def run() -> Tensor:
            optimizer.zero_grad()
            x = torch.ones(3, 4)
            extra = aux(x) if used else aux(x).detach()
            loss = (body(x) + extra).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        return without_gradient(looked_into(training_of(model, [optimizer]), run).facts)

    idle, in_use = run_with(False), run_with(True)
    assert idle == {"aux.weight", "aux.bias"}
    assert in_use == frozenset()
    note = idle_note({0: idle, 20: idle})
    assert note.startswith("aux.bias, aux.weight got no gradient in any of the 2 steps")
    assert idle_note({0: idle, 20: in_use}) == ""
    assert idle_note({0: idle}) == ""
