"""One traced step of a small training, for each kind of origin."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forensics.replay.op_trace import Birth
from forensics.replay.tracing.call_site import Phase
from forensics.replay.tracing.step_trace import StepTrace, trace_step


class Wrapped(nn.Module):
    """A linear layer, then a function in a module of its own, then a head."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.inner = Inner(function)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.body(x)))


class Inner(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def train(
    function: Callable[[Tensor], Tensor],
    batch: Tensor | None = None,
    change: Callable[[Wrapped], None] | None = None,
    optimizer: type[torch.optim.Optimizer] = torch.optim.SGD,
    **options: Any,
) -> StepTrace:
    torch.manual_seed(0)
    model = Wrapped(function)
    if change:
        change(model)
    opt = optimizer(model.parameters(), lr=options.pop("lr", 0.1), **options)
    x = torch.randn(3, 4) if batch is None else batch

    def step() -> Tensor:
        opt.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        opt.step()
        return loss

    return trace_step(step, model=model, optimizers=[opt], micro_batches=[x])


def origin(trace: StepTrace) -> Birth:
    assert trace.origin is not None
    return trace.origin


def test_a_sound_step_has_no_birth_and_no_damage() -> None:
    trace = train(torch.tanh)
    assert trace.births == ()
    assert trace.damages == ()
    assert math.isfinite(trace.loss)
    assert trace.arrival[0].startswith("head.")
    assert trace.arrival[-1].startswith("body.")


def test_log_of_zero_is_the_origin_of_the_nan_that_zero_times_inf_makes() -> None:
    birth = origin(train(lambda h: (h.relu() * 0) * (h.relu() * 0).log()))
    assert (birth.operator, birth.kind, birth.phase) == ("aten.log", "inf", Phase.FORWARD)
    assert birth.module == "inner"
    assert birth.source_line.startswith("test_step_trace.py:")
    assert "log()" in birth.source_line
    assert birth.inputs[0].absmax == 0.0
    assert birth.output is not None
    assert birth.output.inf == 18


def test_a_fully_masked_softmax_is_the_origin_and_not_its_mask() -> None:
    mask = torch.ones(3, 6, dtype=torch.bool)
    birth = origin(train(lambda h: h.masked_fill(mask, -math.inf).softmax(-1)))
    assert birth.operator == "aten._softmax"


def test_a_partial_mask_is_no_birth() -> None:
    mask = torch.eye(3, 6, dtype=torch.bool)
    trace = train(lambda h: h.masked_fill(mask, -math.inf).softmax(-1))
    assert trace.births == ()
    assert trace.damages == ()


def test_what_is_absorbed_does_no_damage() -> None:
    def absorbed(h: Tensor) -> Tensor:
        bad = (h.detach() * 0).log()
        return torch.where(torch.isfinite(bad), bad, h)

    trace = train(absorbed)
    assert [b.operator for b in trace.births] == ["aten.log"]
    assert trace.damages == ()
    assert trace.origin is None


def test_the_unselected_branch_of_where_is_named_by_its_backward_node() -> None:
    def guarded(h: Tensor) -> Tensor:
        p = h * torch.tensor([0.0, 1, 1, 1, 1, 1])
        return torch.where(p != 0, p.abs().log(), 0.0)

    trace = train(guarded)
    assert math.isfinite(trace.loss)
    birth = origin(trace)
    assert (birth.autograd_node, birth.phase, birth.module) == (
        "LogBackward0",
        Phase.BACKWARD,
        "inner",
    )
    assert "log()" in birth.source_line
    first = next(d for d in trace.damages if d.place == "gradient")
    assert first.name.startswith("body.")


def test_a_nan_in_the_batch_comes_before_any_operator() -> None:
    x = torch.randn(3, 4)
    x[1, 2] = math.nan
    birth = origin(train(torch.tanh, batch=x))
    assert (birth.operator, birth.phase) == ("input", Phase.INPUT)
    assert birth.output is not None
    assert birth.output.first_bad == (1, 2)


def test_a_bad_weight_comes_before_any_operator() -> None:
    def poison(model: Wrapped) -> None:
        model.inner.gain = nn.Parameter(torch.full((6,), math.nan))
        model.inner.function = lambda h: h * model.inner.gain

    birth = origin(train(torch.tanh, change=poison))
    assert birth.operator == "param:inner.gain"
    assert birth.module == "inner"


def test_batch_norm_statistics_are_seen_although_they_are_not_marked_as_written() -> None:
    x = torch.randn(3, 4)
    x[0, 0] = 1e20

    def add_norm(model: Wrapped) -> None:
        model.inner.norm = nn.BatchNorm1d(6)
        model.inner.function = lambda h: model.inner.norm(h)

    trace = train(torch.tanh, batch=x, change=add_norm, lr=0.0)
    buffers = [d for d in trace.damages if d.place == "buffer"]
    assert [d.name for d in buffers] == ["inner.norm.running_var"]
    assert buffers[0].birth is not None
    birth = trace.births[buffers[0].birth]
    assert birth.operator == "aten.native_batch_norm"
    assert birth.module == "inner.norm"


def test_adam_whose_second_moment_overflows_is_damage_though_the_weights_are_finite() -> None:
    x = torch.zeros(3, 4)
    x[0, 0] = 1e22
    trace = train(lambda h: h / 1e10, batch=x, optimizer=torch.optim.Adam, foreach=False)
    state = [d for d in trace.damages if d.place == "optimizer"]
    assert "body.weight.exp_avg_sq" in [d.name for d in state]
    assert state[0].birth is not None
    birth = trace.births[state[0].birth]
    assert (birth.operator, birth.phase) == ("aten.addcmul", Phase.OPTIMIZER)


def test_a_nan_learning_rate_is_born_in_the_optimizer() -> None:
    birth = origin(train(torch.tanh, lr=math.nan, foreach=False))
    assert (birth.operator, birth.phase) == ("aten.add", Phase.OPTIMIZER)


def test_a_recomputed_forward_belongs_to_backward() -> None:
    calls = []

    def once_bad(h: Tensor) -> Tensor:
        calls.append(1)
        return (h * (math.inf if len(calls) > 1 else 1.0)).exp()

    birth = origin(train(lambda h: checkpoint(once_bad, h, use_reentrant=False)))
    assert birth.phase is Phase.BACKWARD


def test_a_loss_that_is_returned_as_a_number_is_traced_through_its_reading() -> None:
    model = nn.Linear(4, 1)
    x = torch.randn(3, 4)

    def step() -> float:
        loss = F.mse_loss(model(x) * 1e30, torch.zeros(3, 1))
        return loss.item()

    trace = trace_step(step, model=model, micro_batches=[x])
    assert trace.damages[0].place == "loss"
    assert origin(trace).operator == "aten.mse_loss"
    assert origin(trace).phase is Phase.LOSS


def test_what_the_step_raises_is_recorded() -> None:
    def step() -> float:
        raise RuntimeError("unscale_() has already been called")

    trace = trace_step(step, model=nn.Linear(2, 1))
    assert trace.exception == "RuntimeError: unscale_() has already been called"
    assert math.isnan(trace.loss)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_large_finite_half_tensor_is_not_taken_for_an_overflow(dtype: torch.dtype) -> None:
    trace = train(lambda h: (torch.full((3, 6), 60000.0, dtype=dtype) * 1.0).float() * 0 + h)
    assert trace.births == ()


def test_tracing_changes_no_bit() -> None:
    def weights(traced: bool) -> Tensor:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        opt = torch.optim.Adam(model.parameters(), lr=1e-2)
        x = torch.randn(5, 4)

        def step() -> Tensor:
            opt.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            opt.step()
            return loss

        for _ in range(3):
            if traced:
                trace_step(step, model=model, optimizers=[opt], micro_batches=[x])
            else:
                step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    assert torch.equal(weights(True), weights(False))
