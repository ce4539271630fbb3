import io

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import MultiStepLR

from forensics.errors import InputError
from forensics.record.ema import ExponentialMovingAverage
from forensics.record.recipe import Training
from forensics.record.training_state import gather_state, restore_state


class Queue:
    """State of a recipe's own: moves with every step."""

    def __init__(self) -> None:
        self.values = torch.zeros(3)

    def state_dict(self):
        return {"values": self.values}

    def load_state_dict(self, state):
        self.values = state["values"]


class Opaque:
    def state_dict(self):
        return {"handle": object()}


def loss(model, batch):
    return model(batch).square().mean()


def training(**extra) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return Training(
        model,
        [optimizer],
        loss,
        schedulers=[MultiStepLR(optimizer, [2, 4])],
        scaler=GradScaler("cpu", init_scale=8.0),
        ema=ExponentialMovingAverage(model, 0.9),
        extra={"queue": Queue(), **extra},
    )


def advance(made: Training) -> float:
    (optimizer,) = made.optimizers
    optimizer.zero_grad()
    value = loss(made.model, torch.randn(5, 3))
    made.scaler.scale(value).backward()
    made.scaler.step(optimizer)
    made.scaler.update()
    made.schedulers[0].step()
    made.ema.update(made.model)
    made.extra["queue"].values += value.detach()
    return value.item()


def saved_and_loaded(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_restored_training_goes_on_bit_for_bit():
    first = training()
    for _ in range(3):
        advance(first)
    state, missing = gather_state(first, 3, {})
    loaded = saved_and_loaded(state)
    expected = [advance(first) for _ in range(4)]
    second = training()
    advance(second)  # whatever it did before is forgotten
    restore_state(second, loaded, where="file")
    assert [advance(second) for _ in range(4)] == expected
    assert missing == []
    assert torch.equal(second.extra["queue"].values, first.extra["queue"].values)
    assert torch.equal(second.ema.shadow["0.weight"], first.ema.shadow["0.weight"])
    assert second.optimizers[0].param_groups[0]["lr"] == first.optimizers[0].param_groups[0]["lr"]


def test_what_cannot_be_saved_safely_is_said_and_left_out():
    state, missing = gather_state(training(opaque=Opaque(), dumb=object()), 0, {})
    assert missing == [
        "extra.opaque: extra.opaque.handle is a object, which cannot be saved safely",
        "extra.dumb: has no state_dict",
    ]
    restore_state(training(), saved_and_loaded(state), where="file")


def test_the_step_and_the_thread_count_are_in_it():
    state, _ = gather_state(training(), 7, {"queue": Queue()})
    assert (state["step"], state["data"]) == (7, {"position": 7})
    assert state["threads"] == torch.get_num_threads()
    assert state["queue"]["values"].tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda s: s.update(format="other"), "no checkpoint that this version can resume from"),
        (lambda s: s.update(version=99), "no checkpoint that this version can resume from"),
        (lambda s: s["model"].pop("0.weight"), "does not fit this recipe's model"),
        (lambda s: s["optimizers"].append({}), "has 2 optimizers, the recipe 1"),
        (lambda s: s["optimizers"].__setitem__(0, {"x": 1}), "recipe's optimizers.0"),
    ],
)
def test_a_state_of_another_training_is_one_clear_error(change, complaint):
    state, _ = gather_state(training(), 0, {})
    change(state)
    with pytest.raises(InputError, match=complaint) as caught:
        restore_state(training(), state, where="step-00000000.pt")
    assert caught.value.line().startswith("step-00000000.pt: ")
