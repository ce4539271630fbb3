"""States of torch.distributed.checkpoint that others saved, as one process loads them."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

from forensics.record.recipe import Training
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.distributed_parts import distributed_parts

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def trained(*, split: bool = False) -> Training:
    """A few steps of Adam, with momenta that differ in every element; one or two optimizers."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}]
    optimizers = [torch.optim.Adam(part) for part in ([[g] for g in groups] if split else [groups])]
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.rand(5, 3)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return Training(model, optimizers, lambda model, batch: model(batch).sum())


def named(training: Training, *, flat: bool = False) -> Any:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    return get_optimizer_state_dict(training.model, tuple(training.optimizers), options=options)


def counted(training: Training) -> Any:
    states = [optimizer.state_dict() for optimizer in training.optimizers]
    return states[0] if len(states) == 1 else states


FORMS: dict[str, Callable[[Training], dict[str, Any]]] = {
    "named": lambda t: {"model": t.model.state_dict(), "optim": named(t)},
    "flat beside bare weights": lambda t: {
        **t.model.state_dict(),
        "optimizer": named(t, flat=True),
        "train_state": {"step": 3},
    },
    "counted": lambda t: {"model": t.model.state_dict(), "optimizer": counted(t)},
    "in a wrapper": lambda t: {"app": {"model": t.model.state_dict(), "optim": named(t)}},
}


def save(folder: Path, state: dict[str, Any]) -> Path:
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_weights_and_moments_come_back(tmp_path: Path, form: str, *, split: bool) -> None:
    saved, here = trained(split=split), trained(split=split)
    parts = distributed_parts(save(tmp_path / "state", FORMS[form](saved)), here)
    here.model.load_state_dict(parts[roles.PARAM])
    for optimizer, state in zip(here.optimizers, parts[roles.OPTIMIZER], strict=True):
        optimizer.load_state_dict(state)
    assert here.model.state_dict().keys() == saved.model.state_dict().keys()
    for mine, theirs in zip(here.model.parameters(), saved.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    for mine, theirs in zip(here.optimizers, saved.optimizers, strict=True):
        assert [g["lr"] for g in mine.param_groups] == [g["lr"] for g in theirs.param_groups]
        pairs = zip(mine.state.values(), theirs.state.values(), strict=True)
        assert all(torch.equal(a[key], b[key]) for a, b in pairs for key in b)


def test_the_optimizer_of_another_training_is_left_out(tmp_path: Path) -> None:
    folder = save(tmp_path / "state", FORMS["named"](trained()))
    other = trained()
    other.optimizers = [torch.optim.Adam(other.model.parameters())]  # one group, of all
    assert distributed_parts(folder, other).keys() == {roles.PARAM}


def test_values_that_are_not_safe_are_left_out(tmp_path: Path) -> None:
    """numpy's generator is an object; the weights beside it are as good as ever."""
    saved = trained()
    state = {**FORMS["named"](saved), "rng": {"numpy": np.random.get_state(), "python": random}}
    state["rng"]["python"] = random.getstate()
    parts = distributed_parts(save(tmp_path / "state", state), trained())
    assert torch.equal(parts[roles.PARAM]["0.weight"], saved.model[0].weight)  # type: ignore[index]
    assert roles.OPTIMIZER in parts
    assert "numpy" not in parts.get(roles.RNG, {})
