"""Modes that change between steps, where they matter."""

from __future__ import annotations

import torch
from torch import nn

from forensics.replay.applied.mode_watch import mode_note, watching_modes


def seen(model: nn.Module, *, gradients: bool = True) -> dict[str, bool]:
    with watching_modes(model) as modes, torch.set_grad_enabled(gradients):
        model(torch.ones(4, 3))
    return modes


def layers(p: float = 0.5) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(p), nn.LayerNorm(3))


def test_a_model_left_in_evaluation_is_told_once_with_both_steps() -> None:
    model = layers()
    before = seen(model.train())
    after = seen(model.eval())
    note = mode_note({0: before, 40: before, 80: after, 100: after})
    assert note.startswith("1, 2 computed in training mode in step 40 and in evaluation mode in")
    assert "step 80" in note


def test_modes_that_stay_or_do_not_matter_are_not_told() -> None:
    model = layers(p=0.0)
    assert set(seen(model.train())) == {"1"}
    frozen = seen(model.eval())
    assert mode_note({0: frozen, 9: frozen}) == ""
    assert mode_note({0: seen(nn.Sequential(nn.Linear(3, 3)))}) == ""


def test_a_validation_without_gradients_is_left_out() -> None:
    model = layers().eval()
    assert seen(model, gradients=False) == {}
    assert not model._forward_pre_hooks
