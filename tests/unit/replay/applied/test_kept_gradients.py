"""What outlives a step beside the saved state: gradients after a skip, and a recipe's own state."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import Persistence
from forensics.errors import TrainingRaisedError
from forensics.record.options import RecordOptions
from forensics.record.recipe_lookup import find_recipe
from forensics.record.reference_loop import record_run
from forensics.replay.bisect import bisect_run
from tests.unit.replay.recordings import quiet

LOOPS = """
import math
import torch
from torch import nn
from forensics import Config, Recipe, Training, recipe

class Own(Recipe):
    clears = True
    def build(self, config):
        self.held = None
        model = nn.Linear(4, 1)
        return Training(model, torch.optim.SGD(model.parameters(), 0.01), self.loss)
    def batch(self, step):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        if step == 5:
            x[2] = math.nan
        return [(x,)]
    @staticmethod
    def loss(model, batch):
        return model(batch[0]).square().mean()
    def step(self, training, micro_batches, recorder):
        optimizer = training.optimizers[0]
        if self.clears:
            optimizer.zero_grad()
        loss = self.loss(training.model, micro_batches[0])
        loss.backward()
        if math.isfinite(recorder.gradients()):
            optimizer.step()
            optimizer.zero_grad()
        recorder.end_step(loss)
        return loss

@recipe("clears", "skips and clears", defaults=Config(steps=12, precision="fp32"))
class Clears(Own):
    pass

@recipe("keeps", "skips and keeps its gradients", defaults=Config(steps=12, precision="fp32"))
class Keeps(Own):
    clears = False

@recipe("limits", "a limit that is NaN from a step on", defaults=Config(steps=12, precision="fp32"))
class Limits(Own):
    until = 99
    def batch(self, step):
        x = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        return [(x, torch.full((6,), step))]
    def step(self, training, micro_batches, recorder):
        optimizer, now = training.optimizers[0], int(micro_batches[0][1][0])
        optimizer.zero_grad()
        loss = self.loss(training.model, micro_batches[0])
        loss.backward()
        recorder.gradients()
        limit = math.nan if 5 <= now < self.until else 0.1
        nn.utils.clip_grad_value_(training.model.parameters(), limit)
        optimizer.step()
        recorder.end_step(loss)
        return loss

@recipe("limits-once", "in one step", defaults=Config(steps=12, precision="fp32"))
class LimitsOnce(Limits):
    until = 6

@recipe("hidden", "a hidden state with its graph", defaults=Config(steps=12, precision="fp32"))
class Hidden(Recipe):
    def build(self, config):
        self.held = None
        model = nn.GRUCell(4, 3)
        return Training(model, torch.optim.SGD(model.parameters(), 0.01), self.loss)
    def batch(self, step):
        return [(torch.ones(6, 4),)]
    def loss(self, model, batch):
        before = torch.zeros(6, 3) if self.held is None else self.held
        self.held = model(batch[0], before)
        return self.held.square().mean()
"""


def bisected(home: Path, name: str):
    file = home / "loops.py"
    file.write_text(LOOPS)
    kind = find_recipe(f"{file}:{name}")
    options = RecordOptions(out=home / name, checkpoint_every=4, keep="last:9", recipe_file=file)
    try:
        record_run(kind(kind.defaults), kind.defaults, options, say=quiet)
    except TrainingRaisedError:
        assert name == "hidden"
    return bisect_run(home / name, recipe=f"{file}:{name}", what_if=False)


@pytest.mark.parametrize(("name", "told"), [("keeps", True), ("clears", False)])
def test_gradients_that_outlive_a_skip_are_told(tmp_path: Path, name: str, told: bool) -> None:
    result = bisected(tmp_path, name)
    assert result.first_bad_step == 5
    assert any("call zero_grad() in skipped steps" in note for note in result.notes) is told


def test_state_that_a_recipe_keeps_is_no_fault_of_the_machine(tmp_path: Path) -> None:
    result = bisected(tmp_path, "hidden")
    assert result.first_bad_step == 1
    assert result.reproduces is None
    assert any("the recipe keeps state of its own" in note for note in result.notes)
    assert not any("memory" in sentence for sentence in result.remedy)


def test_a_constant_that_stays_bad_behind_the_guard_persists(tmp_path: Path) -> None:
    result = bisected(tmp_path, "limits")
    assert (result.first_bad_step, result.origin.phase) == (5, "clip")
    assert result.persistence is Persistence.PERSISTENT
    assert bisected(tmp_path, "limits-once").persistence is Persistence.TRANSIENT
