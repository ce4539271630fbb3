"""Origins of single steps in clips, optimizers and averages."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from forensics.diagnose.bisection_result import FaultKind
from tests.unit.replay.small_loops import Loop, looked_into, seeded, training_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def test_a_foreach_optimizer_names_the_parameter_whose_update_is_bad():
    model = nn.Sequential(nn.Embedding(6, 4), nn.Linear(4, 1)).half()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, foreach=True)
    origin = Loop(model, optimizer, torch.tensor([0, 1, 2])).examine().origin
    assert (origin.operator, origin.phase) == ("aten._foreach_addcdiv", "optimizer")
    assert (origin.parameter, origin.module) == ("0.weight", "")
    assert "0/0" in origin.summary


def test_a_second_moment_that_overflows_in_a_fused_kernel_is_found_in_its_state():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    inputs = torch.zeros(2, 4)
    inputs[0, 1] = 1e22
    training = training_of(model, [optimizer])

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = model(inputs).abs().mean()
        loss.backward()
        optimizer.step()
        return loss

    origin = looked_into(training, run, batches=[inputs]).origin
    assert (origin.operator, origin.phase) == ("aten._fused_adamw", "optimizer")
    assert (origin.parameter, origin.element) == ("weight.exp_avg_sq", "[0, 1]")


def test_a_learning_rate_that_is_nan_is_named_with_its_schedule():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    optimizer.param_groups[0]["lr"] = math.nan
    loop = Loop(model, optimizer, seeded(2, 4), schedulers=[schedule])
    origin = loop.examine().origin
    assert (origin.phase, origin.kind) == ("optimizer", FaultKind.NAN)
    assert origin.chain[0].what == "learning rate"
    assert "the learning rate is nan (LambdaLR made it)" in origin.summary


def test_an_update_by_hand_belongs_to_the_optimizer_phase():
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1e10)

    def run() -> Tensor:
        model.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 1e30 * parameter.grad
        return loss

    origin = looked_into(training_of(model, []), run).origin
    assert (origin.operator, origin.phase) == ("aten.mul", "optimizer")


def test_the_closure_of_an_optimizer_is_no_part_of_it():
    model = nn.Linear(4, 1)
    with torch.no_grad():
        model.weight.fill_(1e25)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).pow(2).mean()
        loss.backward()
        return loss

    found = looked_into(training_of(model, [optimizer]), lambda: optimizer.step(closure))
    assert (found.origin.operator, found.origin.phase) == ("aten.pow", "loss")


def test_an_average_that_is_the_user_s_own_is_its_own_phase():
    model = nn.Linear(2, 1)

    class Average:
        def __init__(self) -> None:
            self.weight = torch.zeros(1, 2)

        def update(self) -> None:
            self.weight = self.weight * 0.9 + math.inf

        def state_dict(self) -> dict[str, Tensor]:
            return {"weight": self.weight}

        def load_state_dict(self, state: dict[str, Tensor]) -> None:
            self.weight = state["weight"]

    average = Average()
    training = training_of(model, [torch.optim.SGD(model.parameters(), 0.1)], ema=average)

    def run() -> float:
        average.update()
        return 0.0

    origin = looked_into(training, run).origin
    assert (origin.phase, origin.parameter) == ("ema", "ema.weight")


def test_a_norm_that_overflows_over_finite_gradients_is_a_kind_of_its_own():
    model = nn.Sequential(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-30)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.full((1, 4), 3e20)).abs().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    origin = looked_into(training_of(model, [optimizer]), run).origin
    assert (origin.kind, origin.phase, origin.module) == (FaultKind.NORM_OVERFLOW, "clip", "")
    assert origin.operator == "aten._foreach_norm"
    assert origin.parameter == "0.weight"
    assert "true norm is 6e+20" in origin.summary


class _Divides(torch.autograd.Function):
    """Divides by what it saved, in a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient / (x - x)


def test_a_custom_backward_is_blamed_at_its_own_line_and_called_from_its_forward():
    model = nn.Linear(4, 1)
    training = training_of(model, [torch.optim.SGD(model.parameters(), 1e-3)])

    def run() -> Tensor:
        loss = _Divides.apply(model(seeded(2, 4))).mean()
        loss.backward()
        return loss.detach()

    origin = looked_into(training, run).origin
    assert (origin.phase, origin.autograd_node) == ("backward", "_DividesBackward")
    assert origin.source_line.endswith("return gradient / (x - x)")
    assert origin.traceback[-1] == origin.source_line
    assert "_Divides.apply" in origin.traceback[-2]
