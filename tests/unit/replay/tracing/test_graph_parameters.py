"""Which parameter a tensor comes from."""

from __future__ import annotations

import torch
from torch import nn

from forensics.replay.tracing.graph_parameters import nearest_parameter, parameter_names


def test_of_a_layer_the_weight_is_named_and_of_two_inputs_the_first():
    model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3)})
    names = parameter_names(model)
    a, b = model["a"](torch.ones(1, 3)), model["b"](torch.ones(1, 3))
    assert nearest_parameter([a, b], names) == ("a.weight", False)
    assert nearest_parameter([b.tanh(), a.tanh()], names) == ("b.weight", False)
    assert nearest_parameter([model["b"](a)], names) == ("b.weight", False)


def test_a_parameter_among_the_inputs_is_direct():
    model = nn.Linear(3, 3)
    names = parameter_names(model)
    assert nearest_parameter([model.bias, torch.ones(1), model.weight.t()], names) == (
        "weight",
        True,
    )


def test_data_come_from_no_parameter():
    names = parameter_names(nn.Linear(3, 3))
    other = nn.Linear(3, 3)
    assert nearest_parameter([torch.ones(2), other(torch.ones(1, 3))], names) == ("", False)


def test_a_tied_parameter_has_all_its_names():
    model = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    model["b"].weight = model["a"].weight
    names = parameter_names(model)
    assert names.names[id(model["a"].weight)] == ("a.weight", "b.weight")
    assert names.first(model["b"].weight) == "a.weight"
