"""Finite gradients that are wrong, and what only looks as if it could make them so."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forensics.diagnose.bisection_result import FaultKind, Origin
from forensics.replay.applied.gradient_check import GradientWatch, gradient_origin, wrong_gradients
from forensics.replay.op_trace import OpTrace, tracing
from forensics.replay.tracing.call_site import Parts


def check(model: nn.Module, inputs: Tensor) -> tuple[Origin | None, GradientWatch]:
    """One backward as it is and one as it should be, from the same state."""
    state, rng = copy.deepcopy(model.state_dict()), torch.get_rng_state()

    def run(sound: bool) -> GradientWatch:
        model.load_state_dict(state)
        torch.set_rng_state(rng)
        model.zero_grad()
        watch = GradientWatch.of(model, Parts.of(model), sound=sound)
        with watch.watching(model), tracing(OpTrace(model)):
            out = model(inputs)
            (out[0] if isinstance(out, tuple) else out).pow(2).mean().backward()
        return watch

    actual = run(False)
    if not actual.suspicious:
        return None, actual
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    return gradient_origin(actual, run(True), sizes), actual


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


class Recomputed(nn.Module):
    """A checkpointed block between two layers."""

    def __init__(self, reentrant: bool, preserve: bool, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(4, 16)
        parts = [nn.Linear(16, 16), nn.Dropout(0.5)]
        self.block = nn.Sequential(*parts, *([nn.BatchNorm1d(16)] if norm else []))
        self.last = nn.Linear(16, 1)
        self.options = {"use_reentrant": reentrant, "preserve_rng_state": preserve}

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, self.first(x), **self.options))


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_with_other_random_numbers_is_found(reentrant):
    origin, _ = check(Recomputed(reentrant, preserve=False), torch.randn(8, 4))
    assert (origin.kind, origin.operator) == (FaultKind.APPLIED, "recompute")
    assert (origin.phase, origin.module, origin.parameter) == (
        "backward",
        "block",
        "block.0.weight",
    )
    assert "first.weight" in origin.parameters
    assert "last.weight" not in origin.parameters
    assert "checkpoint(self.block" in origin.source_line


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_recomputation_that_keeps_the_random_state_is_sound(reentrant):
    origin, watch = check(Recomputed(reentrant, preserve=True, norm=True), torch.randn(8, 4))
    assert len(watch.recomputation.regions) == 1
    assert origin is None


class OwnCheckpoint(torch.autograd.Function):
    """A checkpoint as libraries write them; it restores the random state, or forgets to."""

    @staticmethod
    def forward(ctx, function, restores, x):
        ctx.function, ctx.state = function, torch.get_rng_state() if restores else None
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        now = torch.get_rng_state()
        if ctx.state is not None:
            torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            out = ctx.function(x)
        torch.set_rng_state(now)
        torch.autograd.backward(out, gradient)
        return None, None, x.grad


class RecomputedElsewhere(nn.Module):
    def __init__(self, restores: bool) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5))
        self.last, self.restores = nn.Linear(16, 1), restores

    def forward(self, x: Tensor) -> Tensor:
        return self.last(OwnCheckpoint.apply(self.block, self.restores, x))


def test_a_recomputation_that_is_not_torch_s_is_known_by_its_draws():
    inputs = torch.randn(8, 4).requires_grad_()
    origin, _ = check(RecomputedElsewhere(restores=False), inputs)
    assert (origin.operator, origin.parameter) == ("recompute", "block.0.weight")
    assert origin.parameters[0].startswith("block.0")
    origin, watch = check(RecomputedElsewhere(restores=True), inputs)
    assert watch.draws.others == []
    assert origin is None


def test_noise_that_backward_adds_on_purpose_is_no_recomputation():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[0].weight.register_hook(lambda g: g + torch.randn_like(g))
    origin, watch = check(model, torch.randn(8, 4))
    assert not watch.suspicious
    assert origin is None


class Edited(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _sigmoid_data(x: Tensor) -> Tensor:
    y = x.sigmoid()
    y.data.mul_(0.5)
    return y


def _tanh_numpy(x: Tensor) -> Tensor:
    y = x.tanh()
    y.detach().numpy()[...] = 0.9
    return y


def _input_data(x: Tensor) -> Tensor:
    z = x * x
    x.data.zero_()
    return z


@pytest.mark.parametrize(
    ("function", "node"),
    [
        (_sigmoid_data, "SigmoidBackward0"),
        (_tanh_numpy, "TanhBackward0"),
        (_input_data, "MulBackward0"),
    ],
)
def test_an_edit_behind_autograd_s_back_is_found_with_its_node(function, node):
    model = nn.Sequential(nn.Linear(4, 6), Edited(function), nn.Linear(6, 1))
    origin, _ = check(model, torch.randn(8, 4))
    assert (origin.operator, origin.autograd_node) == (node, node)
    assert (origin.module, origin.phase) == ("1", "backward")
    assert origin.parameter == "0.weight"
    assert "test_gradient_check.py" in origin.source_line


def _known_in_place(x: Tensor) -> Tensor:
    return (x * 2).add_(1).relu_() * 1.5


def _edit_of_nothing_saved(x: Tensor) -> Tensor:
    y = x * 2
    z = y + 1
    y.data.zero_()
    return z


@pytest.mark.parametrize("function", [_known_in_place, _edit_of_nothing_saved])
def test_edits_that_autograd_handles_or_does_not_need_are_sound(function):
    model = nn.Sequential(nn.Linear(4, 6), Edited(function), nn.BatchNorm1d(6), nn.Linear(6, 1))
    origin, watch = check(model, torch.randn(8, 4))
    assert watch.saved.edited == []
    assert origin is None


def test_statistics_that_are_updated_after_they_were_saved_are_no_edit():
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.Dropout(0.2), nn.LSTM(6, 3))
    origin, watch = check(model, torch.randn(4, 1, 8))
    assert not watch.suspicious
    assert origin is None


def test_an_edited_tensor_that_makes_no_difference_is_no_fault():
    def edit(x: Tensor) -> Tensor:
        y = x.relu()
        y.data.add_(1.0).sub_(1.0)
        y.data.mul_(3.0)  # relu's gradient asks for the sign alone
        return y

    model = nn.Sequential(nn.Linear(4, 6), Edited(edit))
    _, watch = check(model, torch.randn(8, 4))
    assert [e.autograd_node for e in watch.saved.edited][-1] in ("ReluBackward0", "PowBackward0")


def test_noise_below_the_tolerance_is_no_error():
    exact = torch.randn(50, dtype=torch.float64)
    got = {"a": exact * 1.01, "b": exact, "c": torch.zeros(50), "d": exact}
    wanted = {"a": exact, "b": -exact, "c": torch.zeros(50), "e": exact}
    assert list(wrong_gradients(got, wanted)) == ["b"]


def test_watching_changes_no_bit():
    def gradients(watched: bool) -> list[Tensor]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1))
        inputs = torch.randn(6, 4)
        if watched:
            with GradientWatch.of(model, Parts.of(model)).watching(model):
                model(inputs).pow(2).mean().backward()
        else:
            model(inputs).pow(2).mean().backward()
        return [p.grad for p in model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(gradients(True), gradients(False), strict=True))


def test_what_a_loop_asks_autograd_grad_for_is_not_what_is_applied():
    model = nn.Linear(3, 1)
    inputs = torch.ones(4, 3)
    watch = GradientWatch.of(model, Parts.of(model))
    with watch.watching(model):
        torch.autograd.grad(7 * model(inputs).sum(), model.weight)
        model(inputs).sum().backward()
    assert watch.first["weight"].tolist() == [4.0, 4.0, 4.0]
    assert watch.first["bias"].tolist() == [4.0]
