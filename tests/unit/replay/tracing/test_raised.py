"""Steps that raise: what refused, where, and what was behind it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from forensics.diagnose.bisection_result import FaultKind
from tests.unit.replay.small_loops import Loop, looked_into, training_of


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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


def test_a_value_that_an_exception_complains_of_leads_to_where_it_was_born():
    model = nn.Linear(4, 3)

    def run() -> Tensor:
        logits = model(torch.ones(64, 4)) * 0 / torch.zeros(64, 1)
        return torch.distributions.Categorical(logits=logits, validate_args=True).entropy().mean()

    origin = looked_into(training_of(model, []), run).origin
    assert (origin.operator, origin.kind) == ("aten.div", FaultKind.NAN)
    assert "then the step raised ValueError: Expected parameter logits" in origin.summary
    assert origin.chain[-1].what == "exception"
    assert len(origin.summary) < 500


def test_an_exception_of_another_matter_is_not_put_down_to_a_value():
    model = nn.Linear(4, 3)

    def run() -> Tensor:
        (model(torch.ones(2, 4)) * 0 / torch.zeros(2, 1)).isnan()
        raise KeyError("info")

    origin = looked_into(training_of(model, []), run).origin
    assert origin.kind is FaultKind.EXCEPTION


def test_an_edit_in_place_is_told_where_the_value_was_made():
    model = nn.Linear(4, 1)

    def run() -> Tensor:
        hidden = model(torch.ones(2, 4)).sigmoid()
        hidden += 1
        hidden.mean().backward()
        return hidden

    origin = looked_into(training_of(model, []), run).origin
    assert (origin.operator, origin.phase) == ("SigmoidBackward0", "backward")
    assert ".sigmoid()" in origin.source_line


def test_a_check_of_a_solver_is_named_by_the_solver_and_an_operator_tells_its_inputs():
    model = nn.Linear(4, 4)

    def run() -> Tensor:
        return torch.linalg.cholesky(model(torch.zeros(4, 4)) * 0).sum()

    def miss() -> Tensor:
        return nn.functional.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 4]))

    assert looked_into(training_of(model, []), run).origin.operator == "torch.linalg.cholesky"
    (scores,) = looked_into(training_of(model, []), miss).origin.inputs
    assert scores.shape == (2, 4)
