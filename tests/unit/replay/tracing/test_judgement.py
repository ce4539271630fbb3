"""Origins of single steps in data, forward, loss and backward, over models of many kinds."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from forensics.diagnose.bisection_result import FaultKind
from forensics.replay.tracing.operator_advice import advice_for
from tests.unit.replay.small_loops import Loop, looked_into, seeded, training_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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
    assert origin.source_line.startswith("test_judgement.py:")


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


def test_a_masked_class_that_a_smoothed_loss_reads_is_told_with_its_share():
    model = nn.Linear(4, 3)
    banned = torch.zeros(2, 3, dtype=torch.bool)
    banned[1, 2] = True
    training = training_of(model, [torch.optim.SGD(model.parameters(), 1e-3)])

    def run() -> Tensor:
        logits = model(seeded(2, 4)).masked_fill(banned, -math.inf)
        return nn.functional.cross_entropy(logits, torch.tensor([0, 1]), label_smoothing=0.1)

    origin = looked_into(training, run).origin
    assert origin.operator == "aten.masked_fill"
    assert "came through to the loss by aten.sum (test_judgement.py:185)" in origin.summary
    assert "1 of 6 elements are masked" in origin.summary
    assert [link.what for link in origin.chain[1:]] == ["aten.sum", "loss"]
    assert "no label smoothing" in advice_for(origin)


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
    assert "return gradient / (2 * x.sqrt())" in origin.source_line
    assert "Root.apply(self.scale)" in origin.traceback[-2]
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
