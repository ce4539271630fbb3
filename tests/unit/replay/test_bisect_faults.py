"""Faults of other kinds: silent ones, growths, flipped bits, exceptions; and sound runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus, Persistence
from forensics.replay.bisect import bisect_run
from tests.unit.replay.bisections import quick, recorded


def test_a_fault_that_no_number_shows_is_located(tmp_path: Path) -> None:
    run = recorded("clip-before-unscale", tmp_path / "run", steps=12)
    result = quick(run)
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 0)
    assert result.origin is not None
    assert (result.origin.phase, result.origin.operator) == ("clip", "clip")
    assert result.reproduces is True


def test_an_optimizer_that_starts_anew_is_dated(tmp_path: Path) -> None:
    run = recorded("resume-without-optimizer", tmp_path / "run", 100, steps=420)
    result = quick(run)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (400, "resume")


def test_a_bit_that_flipped_in_the_recording_comes_from_outside(tmp_path: Path) -> None:
    result = quick(recorded("bit-flip", tmp_path / "run", 3))
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.phase) == (5, "outside")
    assert (result.origin.parameter, result.origin.element) == ("layers.0.weight", "[3, 1]")
    assert result.reproduces is False
    assert result.persistence is Persistence.TRANSIENT


def test_an_exception_that_a_saved_state_lacks_the_cause_of(tmp_path: Path) -> None:
    run = recorded("spike-skipped-half", tmp_path / "run", 3)
    result = quick(run)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (6, "GradScaler.unscale_")
    assert any("lacks what the fault depends on" in note for note in result.notes)


@pytest.mark.parametrize("recipe", ["healthy-mlp", "control-scaler-warm-up", "control-loss-spike"])
def test_a_healthy_run_is_healthy(recipe: str, tmp_path: Path) -> None:
    result = quick(recorded(recipe, tmp_path / "run", 5, steps=20))
    assert (result.status, result.origin) == (BisectStatus.HEALTHY, None)
    assert "what was applied is right" in result.reason


def test_a_growth_that_has_not_overflowed_is_not_called_healthy(tmp_path: Path) -> None:
    result = quick(recorded("lr-too-high", tmp_path / "run", 10, steps=45))
    assert result.status is BisectStatus.LOCATED
    assert result.growth is not None
    assert result.origin is not None
    assert result.origin.operator == "growth"


HIDDEN_STATE = """
import torch
from torch import nn
from forensics import Config, Recipe, Training, recipe

@recipe("kept", "a hidden state that is not detached", defaults=Config(steps=6))
class Kept(Recipe):
    def build(self, config):
        self.hidden = None
        model = nn.GRUCell(4, 8)
        return Training(model, torch.optim.SGD(model.parameters(), lr=0.01), self.loss)

    def batch(self, step):
        return [torch.randn(3, 4, generator=torch.Generator().manual_seed(step))]

    def loss(self, model, inputs):
        hidden = torch.zeros(3, 8) if self.hidden is None else self.hidden
        self.hidden = model(inputs, hidden)
        return self.hidden.square().mean()
"""


def test_what_comes_back_from_an_earlier_start_alone_is_traced_there(tmp_path: Path) -> None:
    (tmp_path / "kept.py").write_text(HIDDEN_STATE)
    recipe = f"{tmp_path / 'kept.py'}:kept"
    result = quick(recorded(recipe, tmp_path / "run", steps=6), recipe=recipe)
    assert (result.first_bad_step, result.reproduces, result.raised) == (1, None, True)
    assert result.origin is not None
    assert (result.origin.kind.value, result.origin.phase) == ("exception", "backward")
    assert any("the recipe keeps state of its own" in note for note in result.notes)
    assert any("Detach what one step hands to the next" in line for line in result.remedy)


SHORT_SCHEDULE = """
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR
from forensics import Config, Training, recipe

@recipe("short", "a schedule that ends before the run", defaults=Config(steps=12))
def short(config):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    def loss(model, batch):
        return model(batch).square().mean()
    def batch(step):
        return torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
    schedule = OneCycleLR(optimizer, 0.01, total_steps=9)
    return Training(model, optimizer, loss, schedulers=schedule, batch=batch)
"""


def test_no_sample_is_to_blame_for_a_schedule_that_raises(tmp_path: Path) -> None:
    (tmp_path / "short.py").write_text(SHORT_SCHEDULE)
    recipe = f"{tmp_path / 'short.py'}:short"
    result = bisect_run(recorded(recipe, tmp_path / "run"), recipe=recipe, further_steps=1)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.phase) == (9, "scheduler")
    assert result.persistence is Persistence.PERSISTENT
    assert [trial.change for trial in result.what_if if "rate" in trial.change] == []
    assert (result.samples, result.samples_note, result.batch_size) == ((), "", 0)
    assert result.raised
