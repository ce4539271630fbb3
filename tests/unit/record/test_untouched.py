"""The norm after a clip that had nothing to do: what is told of it is what measuring would give."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import nn

from forensics.record import loop_entries, tensor_norms
from forensics.record.clipping import grad_norms
from forensics.record.recorder import Recorder
from forensics.record.untouched import EVERY, FIRST, Untouched
from forensics.runlog.steps_csv import read_steps

Clip = Callable[[list[torch.Tensor]], None]
MAX_NORM = 1.0


def true_norm(parameters: list[nn.Parameter]) -> float:
    return math.hypot(*(p.grad.norm().item() for p in parameters if p.grad is not None))


def train(
    path: Path,
    clips: Mapping[int, Clip],
    *,
    steps: int = FIRST + 6,
    norm: float = 0.5,
    groups: int = 1,
) -> tuple[list[float], list[float]]:
    """What the log says of the norm after the clip, and what it was.

    All steps clip as torch does; those in ``clips`` then do something else, too.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))
    parameters = list(model.parameters())
    held = [{"params": parameters[i::groups]} for i in range(groups)]
    optimizer = torch.optim.SGD(held, lr=1e-4)
    was = []
    with Recorder(path, model, optimizer, max_norm=MAX_NORM, snapshot_every=0) as recorder:
        for step in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(8, 4)).square().mean()
            loss.backward()
            torch.nn.utils.clip_grads_with_norm_(
                parameters, norm, torch.tensor(true_norm(parameters))
            )
            for parameter in parameters:  # exactly so large, whatever the seed
                assert parameter.grad is not None
                parameter.grad.mul_(norm / true_norm(parameters))
            recorder.gradients(loss)
            torch.nn.utils.clip_grad_norm_(parameters, MAX_NORM)
            clips.get(step, lambda grads: None)([p.grad for p in parameters if p.grad is not None])
            was.append(true_norm(parameters))
            optimizer.step()
            recorder.end_step()
    return read_steps(path / "steps.csv")["grad_l2_post_clip"].tolist(), was


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many gradients were measured, at each entry of the optimizer that measures all."""
    counts: list[int] = []
    original = tensor_norms.l2_norms

    def counted(tensors):  # type: ignore[no-untyped-def]
        counts.append(len(tensors))
        return original(tensors)

    monkeypatch.setattr(loop_entries, "l2_norms", counted)
    return counts


@pytest.mark.parametrize("groups", [1, 2])  # the order of the optimizer may be another
def test_what_is_below_the_threshold_is_measured_in_few_steps(
    groups: int, tmp_path: Path, measured: list[int]
) -> None:
    told, was = train(tmp_path / "run", {}, steps=2 * EVERY + 1, groups=groups)
    assert len(measured) == FIRST + 2
    assert told == pytest.approx(was, rel=1e-6)
    steps = read_steps(tmp_path / "run" / "steps.csv")
    if groups == 1:
        assert told == steps["grad_l2_pre_clip"].tolist()  # to the bit


def test_above_the_threshold_every_step_is_measured(tmp_path: Path, measured: list[int]) -> None:
    told, was = train(tmp_path / "run", {}, steps=20, norm=3.0)
    assert len(measured) == 20
    assert told == pytest.approx(was, rel=1e-6)
    assert told == pytest.approx([MAX_NORM] * 20, rel=1e-4)


def scaled(factor: float, part: slice = slice(None)) -> Clip:
    return lambda grads: torch._foreach_mul_(grads[part], factor)


def scaled_unseen(grads: list[torch.Tensor]) -> None:
    for grad in grads:
        grad.data.mul_(0.25)


def one_row_cleared(grads: list[torch.Tensor]) -> None:
    grads[0][0] = 0.0


def noise(grads: list[torch.Tensor]) -> None:
    for grad in grads:
        grad.data.add_(torch.randn_like(grad) * 0.1)


@pytest.mark.parametrize(
    "clip",
    [
        scaled(0.5),
        scaled(0.5, slice(3)),
        scaled(0.0),
        scaled(1.0, slice(1)),
        scaled(4.0),
        scaled_unseen,
        one_row_cleared,
        noise,
    ],
    ids=["all", "some", "cleared", "written", "grown", "unseen", "row", "noise"],
)
def test_whatever_changes_them_is_measured(clip: Clip, tmp_path: Path, measured: list[int]) -> None:
    at = FIRST + 2
    told, was = train(tmp_path / "run", {at: clip})
    assert told == pytest.approx(was, rel=1e-6)
    assert len(measured) == FIRST + 1


def test_gradients_that_others_took_the_place_of_are_measured(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    (weight, bias) = model.parameters()
    weight.grad, bias.grad = torch.full((3, 3), 0.1), torch.full((3,), 0.1)
    norms = grad_norms(model.named_parameters())
    untouched = Untouched(MAX_NORM)
    untouched.begin(norms)
    assert untouched.norms_of([weight.grad, bias.grad], 40) == list(norms.l2)
    assert untouched.norms_of([weight.grad], 40) is None
    assert untouched.norms_of([weight.grad, bias.grad.clone()], 40) is None


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_nothing_is_told_of_narrow_ones_nor_without_a_threshold(kind: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=kind))
    parameter.grad = torch.full((3,), 0.125, dtype=kind)
    wide = nn.Parameter(torch.ones(3))
    wide.grad = torch.full((3,), 0.125)
    for held, max_norm in ((parameter, MAX_NORM), (wide, None)):
        untouched = Untouched(max_norm)
        untouched.begin(grad_norms([("w", held)]))
        assert held.grad is not None
        assert untouched.norms_of([held.grad], 40) is None


def test_a_change_that_hides_is_found_in_a_step_that_is_measured_and_none_hides_later(
    tmp_path: Path,
) -> None:
    """A clip by value of one element, past autograd's eyes, of a gradient that is not looked at."""

    def by_value(grads: list[torch.Tensor]) -> None:
        grad = grads[(step_of[0] + 1) % len(grads)]  # step % len(grads) is the one looked at
        grad.data.flatten()[0].mul_(0.0)
        step_of[0] += 1

    step_of = [0]
    steps = EVERY + 8
    told, was = train(tmp_path / "run", dict.fromkeys(range(steps), by_value), steps=steps)
    assert told == pytest.approx(was, rel=1e-6)  # the very first steps have shown it
    step_of[0] = FIRST + 1
    late = dict.fromkeys(range(FIRST + 1, steps), by_value)
    told, was = train(tmp_path / "late", late, steps=steps)
    hidden = [i for i in range(steps) if told[i] != pytest.approx(was[i], rel=1e-6)]
    assert hidden
    assert max(hidden) < EVERY


def test_a_resumed_recording_measures_its_first_steps_in_full() -> None:
    untouched = Untouched(MAX_NORM, first_step=100)
    assert all(untouched.in_full(step) for step in range(100, 100 + FIRST))
    assert not untouched.in_full(100 + FIRST)
