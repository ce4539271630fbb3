"""Files of torch.save: every kind of tensor, both formats, and names that a reader knows."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forensics.errors import InputError
from forensics.replay.saved_states import open_state
from tests.unit.replay.saved_states.states import bad_names, trained, training_state, values

NEW, OLD = True, False


def save(state: Any, path: Path, new: bool = NEW) -> Path:
    torch.save(state, path, _use_new_zipfile_serialization=new)
    return path


@pytest.mark.parametrize("new", [NEW, OLD])
def test_the_values_are_those_that_were_saved(new: bool, tmp_path: Path) -> None:
    state = training_state()
    found = values(save(state, tmp_path / "a.pt", new))
    for name, tensor in state["model"].items():
        value = found[f"model.{name}"].value
        assert isinstance(value, torch.Tensor)
        assert torch.equal(value, tensor)
    assert found["optimizer.param_groups.0.lr"].value == 1e-3


@pytest.mark.parametrize("new", [NEW, OLD])
def test_what_is_bad_is_named_by_kind_and_parameter(new: bool, tmp_path: Path) -> None:
    assert bad_names(save(training_state(bad=True), tmp_path / "a.pt", new)) == {
        "model.2.weight": ("param", "2.weight", 1, 0),
        "optimizer.state.1.exp_avg": ("optimizer", "0.bias", 0, 1),
    }


def test_facts_of_a_training_state(tmp_path: Path) -> None:
    state = open_state(save(training_state(step=42), tmp_path / "a.pt"))
    assert (state.format, state.step) == ("torch", 42)
    assert state.size == (tmp_path / "a.pt").stat().st_size
    assert state.missing == (
        "the learning-rate schedule",
        "the random generators",
        "the position in the data",
    )


def test_kinds(tmp_path: Path) -> None:
    found = values(save(training_state(), tmp_path / "a.pt"))
    kinds = {name: value.kind for name, value in found.items()}
    assert kinds["model.0.weight"] == "param"
    assert kinds["model.1.running_var"] == "buffer"
    assert kinds["optimizer.state.0.exp_avg"] == "optimizer"
    assert kinds["optimizer.param_groups.0.lr"] == "lr"
    assert kinds["scaler.scale"] == "scaler"


def test_a_bare_state_dict_is_a_model(tmp_path: Path) -> None:
    model, _ = trained(bad=True)
    path = save(model.state_dict(), tmp_path / "weights.pth")
    assert bad_names(path) == {"2.weight": ("param", "2.weight", 1, 0)}
    assert "the optimizer's state" in open_state(path).missing


def test_a_pickled_module_is_looked_through_and_not_rebuilt(tmp_path: Path) -> None:
    model, _ = trained(bad=True)
    path = save(model, tmp_path / "module.pt")
    assert bad_names(path) == {"2.weight": ("param", "2.weight", 1, 0)}
    kinds = {name: value.kind for name, value in values(path).items()}
    assert kinds["1.running_mean"] == "buffer"


def test_objects_beside_the_weights_do_not_spoil_them(tmp_path: Path) -> None:
    state = {
        "state_dict": training_state(bad=True)["model"],
        "hyper_parameters": argparse.Namespace(path=Path("/data"), seen=float("nan")),
        "best": np.float64(0.5),
        "pytorch-lightning_version": "2.4.0",
        "global_step": 1200,
    }
    path = save(state, tmp_path / "epoch=3-step=1200.ckpt")
    opened = open_state(path)
    assert (opened.format, opened.step) == ("Lightning", 1200)
    assert "argparse.Namespace" in opened.notes[0]
    assert list(bad_names(path)) == ["state_dict.2.weight"]  # a setting is no state


def test_nan_beside_the_weights_is_bad(tmp_path: Path) -> None:
    state = {
        "model": training_state()["model"],
        "loss": float("nan"),
        "metric": np.float32(np.nan),
        "history": np.array([1.0, np.nan]),
    }
    found = bad_names(save(state, tmp_path / "a.pt"))
    assert found == {
        "loss": ("other", "", 1, 0),
        "metric": ("other", "", 1, 0),
        "history": ("other", "", 1, 0),
    }


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_every_kind(tmp_path: Path) -> None:
    nan = float("nan")
    state = {
        "half": torch.tensor([1.0, nan], dtype=torch.float16),
        "brain": torch.tensor([1.0, nan], dtype=torch.bfloat16),
        "eight": torch.tensor([1.0, nan]).to(torch.float8_e4m3fn),
        "complex": torch.tensor([1j, complex(nan, 0)]),
        "sparse": torch.tensor([[0.0, nan], [0.0, 1.0]]).to_sparse(),
        "csr": torch.tensor([[0.0, nan], [0.0, 1.0]]).to_sparse_csr(),
        "expanded": torch.tensor([nan]).expand(1000, 1000),
        "strided": torch.tensor([[0.0, nan], [0.0, 1.0]]).t(),
        "parameter": nn.Parameter(torch.tensor([nan])),
        "scalar": torch.tensor(nan),
        "whole": torch.tensor([1, 2]),
        "flags": torch.tensor([True]),
        "wide": torch.tensor([1, 2], dtype=torch.uint16),
        "empty": torch.empty(0, 3),
        "nowhere": torch.empty(4, device="meta"),
    }
    found = bad_names(save({"model": state}, tmp_path / "a.pt"))
    wanted = ["half", "brain", "eight", "complex", "sparse.values", "csr.values", "expanded"]
    wanted += ["strided", "parameter", "scalar"]
    assert list(found) == [f"model.{name}" for name in wanted]
    assert {name: nan for name, (_, _, nan, _) in found.items() if nan != 1} == {
        "model.expanded": 1_000_000
    }


@pytest.mark.filterwarnings("ignore")
def test_a_quantised_tensor_is_bad_where_its_scale_is(tmp_path: Path) -> None:
    sound = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8)
    scales = torch.tensor([0.1, float("nan")], dtype=torch.float64)
    zeros = torch.zeros(2, dtype=torch.int64)
    sick = torch.quantize_per_channel(torch.ones(2, 3), scales, zeros, 0, torch.qint8)
    path = save({"model": {"sound": sound, "sick": sick}}, tmp_path / "a.pt")
    assert list(bad_names(path)) == ["model.sick.scale"]


def test_views_and_tied_weights_are_not_told_apart_wrongly(tmp_path: Path) -> None:
    base = torch.arange(10.0)
    base[7] = float("nan")
    path = save({"model": {"front": base[:5], "back": base[5:], "tied": base[5:]}}, tmp_path / "a")
    assert list(bad_names(path)) == ["model.back", "model.tied"]


def test_nothing_of_a_tensor_is_copied(tmp_path: Path) -> None:
    path = save({"model": {"weight": torch.ones(1000)}}, tmp_path / "a.pt")
    weight = values(path)["model.weight"].value
    again = values(path)["model.weight"].value
    assert isinstance(weight, torch.Tensor)
    assert isinstance(again, torch.Tensor)
    assert weight.data_ptr() % 64 == again.data_ptr() % 64 == 0  # a page of the file, not the heap


def test_a_file_without_tensors_is_no_state(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no tensors"):
        open_state(save({"lr": 0.1}, tmp_path / "a.pt"))


def test_no_warning_reaches_the_user(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not bad_names(save(training_state(), tmp_path / "a.pt"))
