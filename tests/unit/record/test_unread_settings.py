"""Settings that a recipe does not read, so that setting them is no use."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import nn

from forensics.record.assembly import assemble
from forensics.record.config import Config, OptimizerConfig, ScheduleConfig
from forensics.record.optimizers import build_optimizer
from forensics.record.precision import choose_precision
from forensics.record.recipe import Recipe, Training
from forensics.record.unread_settings import WatchedSettings, complaint

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
