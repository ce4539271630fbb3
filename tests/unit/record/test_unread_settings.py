"""Settings that a recipe does not read, so that setting them is no use."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from forensics.record.assembly import assemble
from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.optimizers import build_optimizer
from forensics.record.options import RecordOptions
from forensics.record.precision import choose_precision
from forensics.record.recipe import Recipe, Training
from forensics.record.reference_loop import record_run
from forensics.record.unread_settings import WatchedSettings, complaint
from forensics.runlog.run import load_run

CPU = torch.device("cpu")


class Deaf(Recipe):
    """Its rate is written down in its code."""

    name = "deaf"

    def build(self, config: Config) -> Training:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return Training(model, optimizer, lambda m, b: m(b).mean())


class Listening(Recipe):
    """Everything comes from the config."""

    name = "listening"

    def build(self, config: Config) -> Training:
        model = nn.Linear(2, 1)
        optimizer = build_optimizer(model.parameters(), self.config.optimizer)
        return Training(model, optimizer, lambda m, b: m(b).mean())


def told(recipe: Recipe, config: Config) -> list[str]:
    said: list[str] = []
    assemble(recipe, config, choose_precision("fp32", CPU, said.append), CPU, said.append)
    assert recipe.config == config
    return said


def test_a_rate_that_is_set_and_not_read_is_said_in_one_line() -> None:
    (line,) = told(Deaf(), Config(optimizer=OptimizerConfig(lr=0.2)))
    assert line.startswith("recipe deaf does not read optimizer.lr: setting it changes nothing")
    both = Config(optimizer=OptimizerConfig(lr=0.2), schedule=ScheduleConfig(name="cosine"))
    (line,) = told(Deaf(), both)
    assert "optimizer.lr, schedule.name: setting them" in line


def test_nothing_is_said_of_defaults_and_of_what_is_read() -> None:
    assert told(Deaf(), Config()) == []
    assert told(Listening(), Config(optimizer=OptimizerConfig(lr=0.2))) == []


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_of_a_watched_config_is_a_plain_one(copied) -> None:  # type: ignore[no-untyped-def]
    config = Config(optimizer=OptimizerConfig(lr=0.2, betas=(0.8, 0.9)))
    watched = WatchedSettings(config)
    assert copied(watched.config) == config
    assert isinstance(watched.config.optimizer, OptimizerConfig)
    assert replace(watched.config.optimizer, lr=1.0).lr == 1.0


def test_the_complaint_names_the_recipe() -> None:
    assert complaint("x", ["optimizer.lr"]).startswith("recipe x does not read optimizer.lr")


class Unclipped(Recipe):
    """A loop of its own as a GAN's is: nothing in it clips, nor asks for a threshold."""

    name = "unclipped"
    defaults = Config(steps=2, device="cpu")

    def build(self, config: Config) -> Training:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        return Training(model, optimizer, lambda m, b: 100 * m(b).mean())

    def batch(self, step: int) -> torch.Tensor:
        return torch.ones(4, 2)

    def threshold(self) -> None:
        """What a loop that clips would ask for."""

    def step(self, training, micro_batches, recorder):  # type: ignore[no-untyped-def, override]
        training.optimizers[0].zero_grad()
        loss = training.loss(training.model, micro_batches[0])
        loss.backward()
        recorder.gradients(loss)
        self.threshold()
        training.optimizers[0].step()
        return loss


class Asking(Unclipped):
    """Reads its threshold: whether it then clips is for a report to judge."""

    def threshold(self) -> float | None:  # type: ignore[override]
        return self.config.max_norm


class AskingEarly(Unclipped):
    """Takes it along when it builds."""

    def build(self, config: Config) -> Training:
        self.limit = config.max_norm
        return super().build(config)


@pytest.mark.parametrize(
    ("kind", "asked", "recorded"),
    [
        (Unclipped, 1.0, None),  # the threshold is the reference step's, and nobody's here
        (Unclipped, 2.0, 2.0),  # stated, so it counts
        (Asking, 1.0, 1.0),
        (AskingEarly, 1.0, 1.0),
    ],
)
def test_a_loop_that_never_asks_for_the_threshold_is_not_recorded_with_one(
    kind: type[Recipe], asked: float, recorded: float | None, tmp_path: Path
) -> None:
    recipe, config = kind(), replace(kind.defaults, max_norm=asked)
    recipe.config = config
    record_run(recipe, config, RecordOptions(out=tmp_path / "run"), say=lambda _: None)
    manifest = load_run(tmp_path / "run").manifest
    assert manifest is not None
    assert manifest.max_norm == recorded
    assert recipe.config is config
