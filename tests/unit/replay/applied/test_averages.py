"""What a step makes of a moving average: wrong shares are found, odd times are noted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from forensics.diagnose.bisection_result import FaultKind
from forensics.record.ema import ExponentialMovingAverage
from forensics.replay.applied.average_look import AverageLook
from forensics.replay.applied.averages import SHARES, average_note, still_note
from forensics.replay.tracing.operator_advice import advice_for
from forensics.replay.tracing.step_facts import Context
from tests.unit.replay.small_loops import looked_into, seeded, training_of

Mix = Callable[[Tensor, Tensor], Tensor]
LATE = Context(step=40, trained=True)


class Average:
    """Anybody's average, with the formula given."""

    def __init__(self, model: nn.Module, mix: Mix, decay: float = 0.9) -> None:
        self.decay, self._mix = decay, mix
        self.shadow = {name: p.detach().clone() for name, p in model.named_parameters()}

    def update(self, model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            self.shadow[name] = self._mix(self.shadow[name], parameter.detach())

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": dict(self.shadow)}


class Averaged:
    """A loop with an average that is updated when the test says."""

    def __init__(self, make: Callable[[nn.Module], Any], *, when: str = "after") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.ema, self.when = make(self.model), when
        self.training = training_of(self.model, [self.optimizer], ema=self.ema)

    def __call__(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = (self.model(seeded(6, 4)) - 1).pow(2).mean()
        loss.backward()
        if self.when == "before":
            self._update()
        if self.when != "skipped":
            self.optimizer.step()
        if self.when in ("after", "skipped"):
            self._update()
        return loss

    def _update(self) -> None:
        update = getattr(self.ema, "update_parameters", None) or self.ema.update
        update(self.model)

    def examine(self, after: int = 5, context: Context = LATE) -> Any:
        return looked_into(self.training, self, after=after, context=context)


def of(mix: Mix, decay: float = 0.9) -> Callable[[nn.Module], Average]:
    return lambda model: Average(model, mix, decay)


SOUND: dict[str, Callable[[nn.Module], Any]] = {
    "ours": lambda model: ExponentialMovingAverage(model, 0.9),
    "slow": lambda model: ExponentialMovingAverage(model, 0.9999),
    "torch": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99)),
    "mean": lambda model: AveragedModel(model),
    "copy": of(lambda old, new: new.clone()),
    "half": lambda model: Average(model.bfloat16().float(), lambda o, n: o.lerp(n, 0.1)),
    "small decay": of(lambda old, new: 0.4 * old + 0.6 * new, decay=0.4),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("after", [0, 1, 30])
def test_averages_as_they_should_be_are_sound(name: str, after: int) -> None:
    found = Averaged(SOUND[name]).examine(after, Context(step=after + 20, trained=after > 0))
    assert found.origin is None
    assert average_note(found.facts) == ""


@pytest.mark.parametrize(("old", "new"), [(0.9, 0.2), (0.9, 0.05), (1.9, 0.1), (0.0, 0.1)])
def test_shares_that_do_not_sum_to_one_are_found(old: float, new: float) -> None:
    origin = Averaged(of(lambda a, p: old * a + new * p)).examine(after=2).origin
    assert (origin.kind, origin.operator, origin.phase) == (FaultKind.APPLIED, SHARES, "ema")
    assert f"sum to {old + new:.4g}" in origin.summary
    assert "sum to 1" in advice_for(origin)


def test_shares_the_wrong_way_round_are_found_once_no_warm_up_explains_them() -> None:
    loop = Averaged(of(lambda old, new: 0.1 * old + 0.9 * new))
    origin = loop.examine().origin
    assert origin.operator == SHARES
    assert "keeps 0.1 of itself and takes 0.9 of the new weights" in origin.summary
    assert "round" in advice_for(origin)
    assert loop.examine(context=Context(step=0)).origin is None


@pytest.mark.parametrize(
    ("when", "words"), [("skipped", "in a skipped step"), ("before", "lags by one")]
)
def test_odd_times_are_noted_and_no_fault(when: str, words: str) -> None:
    loop = Averaged(SOUND["ours"])
    loop.examine()
    loop.when = when
    found = loop.examine(after=0)
    assert found.origin is None
    assert words in average_note(found.facts)


def test_an_average_that_never_moves_is_noted_where_it_had_the_time() -> None:
    loop = Averaged(SOUND["ours"], when="never")
    first = AverageLook.of(loop.training)
    loop()
    last = AverageLook.of(loop.training)
    assert first is not None
    assert last is not None
    assert "before step 0 and before step 90" in still_note({0: first, 90: last})
    assert still_note({0: first, 20: last}) == ""
    assert still_note({0: first, 90: first}) == ""  # nor do the weights
    assert still_note({0: first}) == ""


def test_what_is_no_average_of_this_model_is_left_alone() -> None:
    other = nn.Linear(3, 3)
    for ema in (None, Average(other, torch.add), object(), {"shadow": 1}):
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        assert AverageLook.of(training_of(model, [optimizer], ema=ema)) is None
