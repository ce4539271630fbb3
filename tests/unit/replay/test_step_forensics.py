"""Origins of single steps, over models, optimizers and loops of many kinds."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forensics.diagnose.bisection_result import FaultKind, Origin
from forensics.replay.session import Session
from forensics.replay.step_forensics import (
    audit,
    audit_step,
    behind_growth,
    examine,
    examine_step,
)
from tests.unit.replay.recordings import open_run, record
from tests.unit.replay.small_loops import Loop, looked_into, training_of


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


# -- what is sound ---------------------------------------------------------------------------


class Block(nn.Module):
    """Attention with a mask, tied embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.1)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.full((5, 5), -math.inf).triu(1))

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        mixed, _ = self.attention(hidden, hidden, hidden, attn_mask=self.mask, need_weights=False)
        return self.head(self.norm(hidden + mixed))


@pytest.mark.parametrize("flavour", ["foreach", "fused"])
def test_a_sound_transformer_has_no_origin(flavour):
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, **{flavour: True})
    loop = Loop(model, optimizer, torch.arange(20).reshape(4, 5) % 12)
    assert loop.examine(after=2).origin is None


def test_a_sound_lstm_and_a_sound_cnn_have_no_origin():
    rnn = nn.Sequential(nn.LSTM(4, 8, batch_first=True), First(), nn.Linear(8, 1))
    optimizer = torch.optim.RMSprop(rnn.parameters(), 1e-3)
    assert Loop(rnn, optimizer, seeded(2, 5, 4)).examine().origin is None
    cnn = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(cnn.parameters(), 1e-3, momentum=0.9)
    assert Loop(cnn, optimizer, seeded(3, 1, 6, 6)).examine(after=1).origin is None


class First(nn.Module):
    def forward(self, pair: tuple[Tensor, object]) -> Tensor:
        return pair[0]


# -- forward and loss ------------------------------------------------------------------------


def test_a_row_that_a_mask_buffer_covers_whole_is_the_softmax_s_fault():
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query = nn.Linear(4, 4)
            self.register_buffer("mask", torch.zeros(3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.query(x) @ x.mT + self.mask).softmax(-1) @ x

    model = nn.Sequential(Attend(), nn.Linear(4, 1))
    model[0].mask[1] = -math.inf
    origin = Loop(model, torch.optim.Adam(model.parameters()), seeded(2, 3, 4)).examine().origin
    assert (origin.operator, origin.module, origin.kind) == ("aten._softmax", "0", FaultKind.NAN)
    assert "whole row" in origin.summary


def test_an_overflow_names_the_parameter_of_its_module_and_the_limit_of_the_dtype():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).half()
    with torch.no_grad():
        model[1].weight.fill_(6e4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    origin = Loop(model, optimizer, torch.full((2, 4), 4.0).half()).examine().origin
    assert (origin.operator, origin.module) == ("aten.addmm", "1")
    assert origin.parameter == "1.weight"
    assert "float16 ends at 65,504" in origin.summary
    assert [link.what for link in origin.chain][:2] == ["aten.addmm", "loss"]


def test_a_recurrent_product_that_overflows_with_both_signs_is_explained():
    model = nn.Sequential(nn.RNN(2, 4, nonlinearity="relu", batch_first=True), First())
    with torch.no_grad():
        model[0].weight_hh_l0.copy_(torch.tensor([[1e30, -1e30, 1e30, 1e30]] * 4))
        model[0].bias_ih_l0.fill_(1e10)
    loop = Loop(model, torch.optim.SGD(model.parameters(), 1e-3), torch.ones(1, 3, 2))
    origin = loop.examine().origin
    assert (origin.operator, origin.module) == ("aten.addmm", "0")
    assert origin.parameter == "0.weight_hh_l0"


def test_a_loss_inside_a_module_belongs_to_the_module():
    class WithLoss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.criterion = nn.Linear(4, 3), nn.CrossEntropyLoss()

        def forward(self, x: Tensor) -> Tensor:
            target = torch.full((len(x),), -100)
            return self.criterion(self.layer(x), target)

    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    origin = Loop(model, optimizer, seeded(2, 4)).examine().origin
    assert (origin.operator, origin.module) == ("aten.nll_loss_forward", "criterion")
    assert "every target is ignored" in origin.summary


def test_a_target_that_is_too_large_is_the_loss_s_fault_and_no_gradient_is_bad():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    training = training_of(model, [optimizer])

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(seeded(2, 4)), torch.tensor([[1e20], [0.0]]))
        loss.backward()
        return loss

    origin = looked_into(training, run).origin
    assert (origin.operator, origin.phase, origin.module) == ("aten.mse_loss", "loss", "")
    assert origin.parameters == ()


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_born_in_a_checkpointed_forward_is_found_in_forward(reentrant):
    class Inner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 0).log() * 0 + x

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(4, 4), Inner()

        def forward(self, x: Tensor) -> Tensor:
            out = checkpoint(self.inner, self.first(x), use_reentrant=reentrant)
            assert isinstance(out, Tensor)
            return out

    model = Outer()
    loop = Loop(model, torch.optim.SGD(model.parameters(), 1e-3), seeded(2, 4))
    origin = loop.examine().origin
    assert (origin.operator, origin.phase, origin.module) == ("aten.log", "forward", "inner")
    assert origin.source_line.startswith("test_step_forensics.py:")


def test_an_infinity_put_there_on_purpose_that_reaches_the_loss_is_told_as_such():
    model = nn.Linear(4, 1)
    everything = torch.ones(2, 1, dtype=torch.bool)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    training = training_of(model, [optimizer])

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = model(seeded(2, 4)).masked_fill(everything, math.inf).logsumexp(0).mean()
        return loss

    found = looked_into(training, run)
    assert found.trace.births == ()
    assert (found.origin.operator, found.origin.kind) == ("aten.masked_fill", FaultKind.INF)
    assert "masked_fill(everything" in found.origin.source_line
    assert "on purpose" in found.origin.summary


def test_a_norm_of_values_that_do_not_vary_does_not_blame_its_weight():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=0.0))
    with torch.no_grad():
        model[0].weight.zero_()
        model[0].bias.zero_()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    origin = Loop(model, optimizer, seeded(2, 4)).examine().origin
    assert (origin.operator, origin.module) == ("aten.native_layer_norm", "1")
    assert origin.parameter == ""
    assert "does not vary" in origin.summary


# -- data, leaves, backward ------------------------------------------------------------------


def test_a_bad_sample_is_named_by_its_index_and_by_the_module_that_it_spoils_first():
    model = nn.Sequential(nn.LSTM(4, 8, batch_first=True), First(), nn.Linear(8, 1))
    inputs = seeded(3, 5, 4)
    inputs[2, 4, 1] = math.nan
    loop = Loop(model, torch.optim.Adam(model.parameters()), inputs)
    origin = loop.examine().origin
    assert (origin.operator, origin.phase, origin.module) == ("input", "input", "0")
    assert origin.element == "[2, 4, 1]"
    assert "1 of 60 elements" in origin.summary


def test_a_bad_input_that_only_the_step_knows_is_still_input():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    bad = seeded(2, 4)
    bad[1, 0] = math.nan

    def run() -> Tensor:
        loss = model(bad).mean()
        loss.backward()
        return loss

    assert looked_into(training_of(model, [optimizer]), run).origin.operator == "input"


def test_a_custom_function_is_named_by_its_backward_and_the_line_that_called_it():
    class Root(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sqrt()

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved_tensors
            return gradient / (2 * x.sqrt())

    class Rooted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor([1.0, 0.0]))

        def forward(self, x: Tensor) -> Tensor:
            return Root.apply(self.scale) * x

    model = nn.Sequential(Rooted())
    loop = Loop(model, torch.optim.SGD(model.parameters(), 1e-3), torch.ones(3, 2))
    origin = loop.examine().origin
    assert (origin.autograd_node, origin.phase, origin.module) == ("RootBackward", "backward", "0")
    assert "Root.apply(self.scale)" in origin.source_line
    assert (origin.parameter, origin.element) == ("0.scale", "[1]")


def test_the_calls_that_led_to_a_failing_node_s_forward_are_told_innermost_last():
    class Distance(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 0).pow(2).sum(-1).sqrt()

    model = nn.Sequential(nn.Linear(3, 2), Distance())
    loop = Loop(model, torch.optim.SGD(model.parameters(), 0.1), torch.ones(2, 3))
    origin = loop.examine().origin
    assert origin.autograd_node == "SqrtBackward0"
    assert origin.source_line == origin.traceback[-1]
    assert "sum(-1).sqrt()" in origin.traceback[-1]
    assert origin.traceback[-2].startswith("small_loops.py:")
    assert not any("step_trace" in line or "conftest" in line for line in origin.traceback)


def test_a_tied_weight_is_named_by_both_names():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def run() -> Tensor:
        loss = (model["b"](model["a"](seeded(2, 3))) * 0).sqrt().sum()
        loss.backward()
        return loss

    origin = looked_into(training_of(model, [optimizer]), run).origin
    assert origin.autograd_node == "SqrtBackward0"
    assert origin.parameters == ("a.weight", "b.weight")
    assert "a.weight is tied to b.weight" in origin.summary


def test_a_sparse_gradient_leads_to_its_origin():
    model = nn.Sequential(nn.Embedding(6, 3, sparse=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = (model(torch.tensor([1, 1, 4])) * 0).sqrt().mean()
        loss.backward()
        optimizer.step()
        return loss

    origin = looked_into(training_of(model, [optimizer]), run).origin
    assert (origin.autograd_node, origin.parameter) == ("SqrtBackward0", "0.weight")


def test_complex_parameters_and_gradients_of_gradients_are_sound():
    model = nn.ParameterList([nn.Parameter(torch.ones(4, dtype=torch.cfloat))])
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run() -> Tensor:
        optimizer.zero_grad()
        loss = (model[0] * 2).abs().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    assert looked_into(training_of(model, [optimizer]), run).origin is None
    critic = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.Adam(critic.parameters())

    def penalise() -> Tensor:
        optimizer.zero_grad()
        points = torch.ones(2, 3, requires_grad=True)
        (slope,) = torch.autograd.grad(critic(points).sum(), points, create_graph=True)
        loss = (slope.norm(dim=1) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    assert looked_into(training_of(critic, [optimizer]), penalise, after=1).origin is None


def test_a_loop_that_assigns_its_gradients_is_sound():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run() -> float:
        loss = model(torch.ones(2, 3)).pow(2).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), grads, strict=True):
            parameter.grad = gradient
        optimizer.step()
        return loss.item()

    assert looked_into(training_of(model, [optimizer]), run, after=2).origin is None


@pytest.mark.parametrize("returned", [None, {"loss": 1.0}])
def test_what_backward_is_called_on_counts_where_the_step_returns_something_else(returned):
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def run() -> object:
        (model(torch.ones(2, 3)) * 0).log().mean().backward()
        return returned

    found = looked_into(training_of(model, [optimizer]), run)
    assert (found.origin.operator, found.origin.phase) == ("aten.log", "loss")
    assert found.trace.damages[0].place == "loss"


# -- optimizers ------------------------------------------------------------------------------


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


# -- norms and exceptions --------------------------------------------------------------------


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


def test_what_refuses_the_step_is_named_by_its_public_name_and_its_module():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    loop = Loop(model, torch.optim.SGD(model.parameters(), 1e-3), torch.ones(1, 4))
    origin = loop.examine().origin
    assert (origin.kind, origin.operator) == (FaultKind.EXCEPTION, "F.batch_norm")
    assert (origin.phase, origin.module) == ("forward", "1")
    assert "Expected more than 1 value per channel" in origin.summary


def test_a_scaler_that_was_not_updated_refuses_to_unscale_again():
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)

    def run() -> Tensor:
        loss = model(torch.ones(2, 4)).mean()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        return loss

    run()
    origin = looked_into(training_of(model, [optimizer], scaler=scaler), run).origin
    assert (origin.operator, origin.phase) == ("GradScaler.unscale_", "unscale")


def test_an_operator_that_refuses_is_named_itself():
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(4, 1))
    loop = Loop(model, torch.optim.SGD(model.parameters(), 1e-3), torch.ones(1, 4))
    origin = loop.examine().origin
    assert (origin.operator, origin.module) == ("aten.addmm", "1")


def test_an_exception_of_the_user_s_own_is_told_as_it_is():
    model = nn.Linear(4, 1)

    def run() -> Tensor:
        raise ValueError("the loader is empty")

    origin = looked_into(training_of(model, []), run).origin
    assert origin.summary == "the step raised ValueError: the loader is empty"
    assert "raise ValueError" in origin.source_line


def test_a_guard_that_refuses_a_bad_loss_leads_to_what_made_it():
    model = nn.Linear(4, 1)

    def run() -> Tensor:
        loss = (model(torch.ones(2, 4)) * 0).log().mean()
        if not torch.isfinite(loss):
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        return loss

    found = looked_into(training_of(model, []), run)
    assert (found.origin.operator, found.origin.kind) == ("aten.log", FaultKind.INF)
    assert found.origin.chain[-1].what == "exception"


# -- with a session --------------------------------------------------------------------------


def test_a_traced_step_of_a_session_is_the_recorded_one_bit_for_bit(session: Session):
    session.go_to(4)
    found = examine(session)
    assert found.origin is None
    assert session.departure(found.replayed) is None
    assert session.departure(session.run_step()) is None
    assert session.step_index == 6


def test_an_audited_step_leaves_the_session_behind_it(session: Session):
    session.go_to(4)
    before = session.capture()
    assert audit_step(session, before=before) is None
    assert session.step_index == 5
    assert session.departure(session.run_step()) is None


def test_a_bad_weight_in_a_session_is_found(session: Session):
    session.go_to(4)
    with torch.no_grad():
        session.model.get_parameter("0.weight")[3, 1] = math.nan
    origin = examine_step(session)
    assert (origin.operator, origin.element) == ("param:0.weight", "[3, 1]")
    session.go_to(4)
    assert audit(session).origin is None


BYPASS = """
import torch
from torch import nn
from forensics import Config, Training, recipe
from forensics.record.recipe import Recipe

@recipe("bypass", "steps past its scaler, and never measures a norm")
class Bypass(Recipe):
    defaults = Config(steps=8, max_norm=None)

    def build(self, config):
        model = nn.Sequential(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)
        return Training(model, optimizer, lambda m, b: m(b).pow(2).mean(), scaler=scaler)

    def batch(self, step):
        return [torch.randn(8, 4, generator=torch.Generator().manual_seed(step))]

    def step(self, training, batches, recorder):
        training.optimizers[0].zero_grad()
        loss = training.loss(training.model, batches[0])
        training.scaler.scale(loss).backward()
        training.optimizers[0].step()
        recorder.end_step(loss)
        return loss
"""


def test_what_was_applied_in_the_steps_before_is_behind_a_growth(tmp_path: Path):
    file = tmp_path / "bypass.py"
    file.write_text(BYPASS)
    record(f"{file}:bypass", tmp_path / "run", steps=8)
    with open_run(tmp_path / "run", recipe=f"{file}:bypass") as session:
        bad = next(s for s in range(8) if not math.isfinite(session.recorded(s)["loss"]))
        while session.step_index < bad:
            session.run_step()
        ends = examine_step(session)
        assert ends.operator == "aten.pow"
        origin = behind_growth(session, ends, bad)
    assert (origin.kind, origin.operator) == (FaultKind.GROWTH, "optimizer")
    assert (origin.module, origin.parameter) == ("0", "0.weight")
    assert origin.chain[-1] == ends.chain[-1]
    assert "in the end aten.pow" in origin.summary


def test_a_growth_with_nothing_behind_it_keeps_its_origin(session: Session):
    ends = Origin(kind=FaultKind.GROWTH, phase="loss", operator="aten.pow", summary="it ends.")
    assert behind_growth(session, ends, 6) is ends
