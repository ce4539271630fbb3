"""Single steps of a session, examined and audited."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from forensics.diagnose.bisection_result import FaultKind, Origin
from forensics.replay.session import Session
from forensics.replay.tracing.step_forensics import (
    audit,
    audit_step,
    behind_growth,
    examine,
    examine_step,
)
from tests.unit.replay.recordings import open_run, record


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


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
