import torch
from torch import nn

from forensics.record.parameters import (
    ArrivalOrder,
    describe_parameters,
    learning_rates,
    tracked_parameters,
)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.frozen = nn.Linear(3, 3, bias=False)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight
        self.frozen.weight.requires_grad_(False)

    def forward(self, ids):
        return self.head(self.frozen(self.embed(ids)))


def test_parameters_are_tracked_once_in_network_order():
    model = Tied()
    temperature = nn.Parameter(torch.ones(()))
    optimizers = [
        torch.optim.SGD([model.embed.weight], lr=0.1),
        torch.optim.SGD([temperature, model.head.weight], lr=0.2),
    ]
    assert [n for n, _ in tracked_parameters(model, optimizers)] == [
        "embed.weight",
        "optimizers.1.0",
    ]


def test_parameters_no_optimizer_holds_are_not_tracked():
    model = Tied()
    optimizers = [torch.optim.SGD([model.frozen.weight], lr=0.1)]
    assert [n for n, _ in tracked_parameters(model, optimizers)] == ["frozen.weight"]


def test_descriptions_name_ties_groups_and_what_is_frozen():
    model = Tied()
    outside = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
    optimizers = [
        torch.optim.SGD([{"params": [model.embed.weight]}, {"params": [outside]}], lr=0.1)
    ]
    infos = {info.name: info for info in describe_parameters(model, optimizers)}
    assert list(infos) == ["embed.weight", "frozen.weight", "optimizers.0.1"]
    assert infos["embed.weight"].tied == ("head.weight",)
    assert infos["embed.weight"].shape == (5, 3)
    assert (infos["frozen.weight"].group, infos["frozen.weight"].requires_grad) == (-1, False)
    assert (infos["optimizers.0.1"].group, infos["optimizers.0.1"].dtype) == (1, "bfloat16")


def test_learning_rates_of_all_groups_are_floats():
    a, b = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizers = [
        torch.optim.SGD([{"params": [a.weight]}, {"params": [a.bias], "lr": 2.0}], lr=1.0),
        torch.optim.AdamW(b.parameters(), lr=torch.tensor(0.5)),
    ]
    assert learning_rates(optimizers) == (1.0, 2.0, 0.5)


class TestArrival:
    def test_is_from_the_loss_backwards_and_names_a_tied_parameter_once(self):
        model = Tied()
        model.frozen.weight.requires_grad_(True)
        arrival = ArrivalOrder(model.named_parameters())
        for _ in range(2):
            model(torch.tensor([1, 2])).sum().backward()
        assert arrival.names == ["frozen.weight", "embed.weight"]

    def test_hooks_go_when_it_is_known_and_not_before(self):
        model = nn.Linear(2, 1)
        arrival = ArrivalOrder(model.named_parameters())
        arrival.settle()
        assert not arrival.settled
        model(torch.ones(1, 2)).sum().backward()
        arrival.settle()
        assert arrival.settled
        assert not any(p._post_accumulate_grad_hooks for p in model.parameters())

    def test_a_known_order_needs_no_hooks(self):
        model = nn.Linear(2, 1)
        arrival = ArrivalOrder(model.named_parameters(), ["bias", "weight"])
        assert arrival.settled
        assert arrival.names == ["bias", "weight"]
        assert model.weight._post_accumulate_grad_hooks is None
