"""safetensors, folders of Hugging Face and of torch.distributed.checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from forensics.errors import InputError
from forensics.replay.checkpoint_health import examine_state
from forensics.replay.saved_states import open_state
from tests.unit.replay.saved_states.states import (
    bad_names,
    trained,
    training_state,
    values,
    write_distributed,
    write_safetensors,
    write_sharded,
)

NAN = float("nan")


def test_safetensors(tmp_path: Path) -> None:
    tensors = {
        "embed.weight": torch.tensor([[1.0, NAN, NAN]]),
        "head.weight": torch.tensor([1.0, float("inf")], dtype=torch.bfloat16),
        "ids": torch.tensor([1, 2]),
    }
    path = write_safetensors(tmp_path / "model.safetensors", tensors, {"step": "900"})
    assert bad_names(path) == {
        "embed.weight": ("param", "embed.weight", 2, 0),
        "head.weight": ("param", "head.weight", 0, 1),
    }
    state = open_state(path)
    assert (state.format, state.step) == ("safetensors", 900)
    assert "the optimizer's state" in state.missing
    found = values(path)["head.weight"].value
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, tensors["head.weight"])


def test_safetensors_under_another_name(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "weights.bin", {"a": torch.ones(2)})
    assert open_state(path).format == "safetensors"


@pytest.mark.parametrize("safe", [True, False])
def test_a_sharded_folder(safe: bool, tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "checkpoint-500", safe=safe, bad=True)
    assert bad_names(folder) == {
        "2.weight": ("param", "2.weight", 1, 0),
        "optimizer.state.1.exp_avg": ("optimizer", "", 0, 1),
    }
    state = open_state(folder)
    assert state.step == 500
    assert "2 shards" in state.format
    assert state.missing == ("the loss scaler (where it trained in fp16)",)


@pytest.mark.parametrize("text", ["[" * 10_000, "[1]", '{"global_step": -4}', ""])
def test_a_damaged_trainer_state_tells_no_step_and_refuses_no_weights(
    text: str, tmp_path: Path
) -> None:
    folder = write_sharded(tmp_path / "weights")
    (folder / "trainer_state.json").write_text(text)
    health = examine_state(folder)
    assert health.finite
    assert health.step is None
    assert "the position in the data" in health.missing
    said = any(note.startswith("trainer_state.json cannot be read") for note in health.notes)
    assert said is not text.startswith("{")


def test_a_step_in_the_name_counts_where_the_state_tells_none(tmp_path: Path) -> None:
    for name, step in (("step-4.pt", 4), ("model_7.pt", None), ("epoch_3.pt", None)):
        torch.save({"w": torch.ones(2)}, tmp_path / name)
        assert examine_state(tmp_path / name).step == step


def test_a_refused_side_file_is_missing_and_spoils_nothing(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "checkpoint-500")
    (folder / "optimizer.pt").write_bytes(b"PK\x03\x04 no more of it")
    (folder / "rng_state.pth").write_bytes(b"rubbish")
    health = examine_state(folder)
    assert health.finite
    assert "the optimizer's state" in health.missing
    assert "the random generators" in health.missing
    assert any("optimizer.pt cannot be read safely" in note for note in health.notes)


@pytest.mark.parametrize("name", ["../secret.safetensors", "/etc/passwd", "a\0b", ".."])
def test_a_shard_outside_the_folder_is_refused(name: str, tmp_path: Path) -> None:
    write_safetensors(tmp_path / "secret.safetensors", {"a": torch.ones(2)})
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    index = {"weight_map": {"a": name}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(InputError, match="names a shard outside its folder"):
        open_state(folder)


def test_a_lost_shard_is_said(tmp_path: Path) -> None:
    folder = write_sharded(tmp_path / "checkpoint-500")
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(InputError, match="1 of 2 shards are missing, model-00002-of-00002"):
        open_state(folder)


def test_a_distributed_checkpoint(tmp_path: Path) -> None:
    model, optimizer = trained(bad=True)
    moments = {
        "state": {name: optimizer.state[parameter] for name, parameter in model.named_parameters()},
        "param_groups": [{"lr": 1e-3, "eps": 1e-8}],
    }
    state = {"model": model.state_dict(), "optim": moments, "step": 12}
    folder = write_distributed(tmp_path / "dcp", state)
    assert bad_names(folder) == {
        "model.2.weight": ("param", "2.weight", 1, 0),
        "optim.state.0.bias.exp_avg": ("optimizer", "0.bias", 0, 1),
    }
    opened = open_state(folder)
    assert opened.step == 12
    assert opened.format.startswith("torch.distributed.checkpoint")
    found = values(folder)
    assert found["optim.param_groups.0.lr"].kind == "lr"
    assert found["model.1.running_var"].kind == "buffer"
    weight = found["model.0.weight"].value
    assert isinstance(weight, torch.Tensor)
    assert torch.equal(weight, model.state_dict()["0.weight"])


def test_a_distributed_checkpoint_of_a_model_alone(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "dcp", dict(trained(bad=True)[0].state_dict()))
    assert bad_names(folder) == {"2.weight": ("param", "2.weight", 1, 0)}


def test_a_distributed_checkpoint_that_lost_a_file(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "dcp", training_state())
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(InputError, match="cannot be found"):
        open_state(folder)


def test_a_folder_without_a_state(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(InputError, match="is a folder without a saved state"):
        open_state(tmp_path)
