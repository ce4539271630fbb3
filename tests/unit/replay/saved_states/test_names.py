"""What a value is and whose: by its name, and claimed only where it can be proven."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from forensics.replay.saved_states.owners import KnownParameters
from forensics.replay.saved_states.roles import kind_of
from forensics.replay.saved_states.torch_state import open_torch_state
from tests.unit.replay.saved_states.states import bad_names, values


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.layer.weight", "param"),
        ("state_dict.encoder.ema_proj.weight", "param"),
        ("model.bn.running_mean", "buffer"),
        ("model.attn.causal_mask", "buffer"),
        ("model.act.activation_post_process.min_val", "buffer"),
        ("model_ema.layer.weight", "ema"),
        ("state_dict_ema.layer.weight", "ema"),
        ("ema.shadow.layer.weight", "ema"),
        ("optimizer_states.0.state.1.exp_avg", "optimizer"),
        ("last_optimizer_state.state.1.exp_avg", "optimizer"),
        ("optimizers.0.param_groups.1.lr", "lr"),
        ("lr_schedulers.0._last_lr.0", "lr"),
        ("lr_schedulers.0.best", "other"),
        ("MixedPrecision.scale", "scaler"),
        ("native_amp_scaling_state.scale", "scaler"),
        ("grad_scaler.scale", "scaler"),
        ("rng_state.cuda.0", "rng"),
        ("hyper_parameters.dropout", "config"),
        ("args.weight_decay", "config"),
        ("callbacks.EarlyStopping.best_score", "other"),
        ("callbacks.ModelCheckpoint{}.kth_value", "other"),
        ("val_loss", "other"),
    ],
)
def test_kinds_by_name(name: str, kind: str) -> None:
    assert kind_of(name.split("."), bare=False) == kind


def test_in_a_bare_state_dict_everything_is_the_model() -> None:
    assert kind_of(["optimizer_embedding", "weight"], bare=True) == "param"
    assert kind_of(["bn", "running_var"], bare=True) == "buffer"


class Net(nn.Module):
    """Two parameters of the same shape and one of another."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Parameter(torch.ones(n)) for n in (3, 3, 4))


def trained_in_groups(*names: str, named: bool = False) -> dict[str, Any]:
    """A state whose optimizer has a group a name, and an infinite moment of ``b``."""
    net = Net()
    pick = {name: [(name, getattr(net, name))] for name in "abc"}
    groups = [[pair for name in group for pair in pick[name]] for group in names]
    given = [{"params": group if named else [p for _, p in group]} for group in groups]
    optimizer = torch.optim.Adam(given)
    sum(p.sum() for p in net.parameters()).backward()
    optimizer.step()
    optimizer.state[net.b]["exp_avg"][0] = float("inf")
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict()}


def owner(state: dict[str, Any], tmp_path: Path, known: KnownParameters | None = None) -> str:
    """The parameter that the one bad moment is laid to."""
    torch.save(state, tmp_path / "a.pt")
    opened = open_torch_state(tmp_path / "a.pt", known=known)
    (found,) = (
        value.parameter
        for value in opened.values()
        if isinstance(value.value, torch.Tensor) and value.value.isinf().any()
    )
    return found


def test_one_group_in_the_order_of_the_model_proves_it(tmp_path: Path) -> None:
    assert owner(trained_in_groups("abc"), tmp_path) == "b"


def test_several_groups_prove_nothing(tmp_path: Path) -> None:
    assert owner(trained_in_groups("ac", "b"), tmp_path) == ""


def test_a_part_of_the_model_proves_nothing(tmp_path: Path) -> None:
    assert owner(trained_in_groups("bc"), tmp_path) == ""


def test_a_shape_that_does_not_agree_proves_nothing(tmp_path: Path) -> None:
    assert owner(trained_in_groups("cab"), tmp_path) == ""


def test_names_in_the_groups_are_believed(tmp_path: Path) -> None:
    assert owner(trained_in_groups("ac", "b", named=True), tmp_path) == "b"


def test_an_optimizer_that_is_keyed_by_name_is_believed(tmp_path: Path) -> None:
    state = trained_in_groups("ac", "b")
    names = dict(enumerate("acb"))
    optimizer = state["optimizer"]
    optimizer["state"] = {names[i]: held for i, held in optimizer["state"].items()}
    for group in optimizer["param_groups"]:
        group["params"] = [names[i] for i in group["params"]]
    assert owner(state, tmp_path) == "b"


def test_a_manifest_is_believed_where_the_shapes_agree(tmp_path: Path) -> None:
    state = trained_in_groups("ac", "b")
    right = KnownParameters(frozenset("abc"), (("a", "c"), ("b",)))
    wrong = KnownParameters(frozenset("abc"), (("a", "b"), ("c",)))
    assert owner(state, tmp_path, right) == "b"
    assert owner(state, tmp_path, wrong) == ""


def test_a_dict_of_named_weights_is_a_model_whatever_its_key(tmp_path: Path) -> None:
    state = {
        "student": {"head.weight": torch.tensor([1.0, float("inf")])},
        "losses": {"last": torch.tensor(float("inf"))},
    }
    torch.save(state, tmp_path / "a.pt")
    assert bad_names(tmp_path / "a.pt") == {"student.head.weight": ("param", "head.weight", 0, 1)}


def test_a_module_may_keep_anything_as_its_extra_state(tmp_path: Path) -> None:
    state = {"layers.0.weight": torch.ones(2), "layers.0._extra_state": {"scale": [1.0]}}
    torch.save(state, tmp_path / "a.pt")
    assert values(tmp_path / "a.pt")["layers.0.weight"].kind == "param"


def test_a_distributed_tensor_keeps_its_name(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("torch without torch.distributed")
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    try:
        mesh = init_device_mesh("cpu", (1,))
        weight = distribute_tensor(torch.tensor([[1.0, float("nan")]]), mesh, [Shard(0)])
        torch.save({"model": {"w": weight}}, tmp_path / "a.pt")
    finally:
        distributed.destroy_process_group()
    assert bad_names(tmp_path / "a.pt") == {"model.w": ("param", "w", 1, 0)}
