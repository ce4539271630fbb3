"""Models as loops hold them: wrapped, tied, frozen, sparse, and changed while they train."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from forensics.record.checkpoints import list_checkpoints, load_checkpoint
from forensics.record.plain_names import PlainNames, PlainState, named_modules
from forensics.record.recorder import Recorder
from forensics.runlog.activations import ActivationStore
from forensics.runlog.manifest import read_manifest
from forensics.runlog.params import ParamStore
from forensics.runlog.steps_csv import read_steps
from tests.unit.record.own_loops import loss_of, net, sgd

PLAIN = ["0.weight", "0.bias", "2.weight", "2.bias"]


def nested() -> nn.Module:
    """A wrapper of each kind, around the whole and around a part."""
    inner = net()
    inner[0] = torch.compile(inner[0], backend="eager")
    inner[2] = checkpoint_wrapper(inner[2])
    return nn.DataParallel(torch.compile(inner, backend="eager"))


def train(recorder, model, optimizer, steps=3):
    for i in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model, i)
        loss.backward()
        recorder.gradients(loss)
        optimizer.step()
        recorder.end_step()


def eager(model: nn.Module) -> nn.Module:
    """Nothing is compiled: what is looked at is the names."""
    for module in model.modules():
        if hasattr(module, "_orig_mod"):
            module.forward = module._orig_mod.forward
    return model


class TestPlainNames:
    def test_every_wrapper_goes(self):
        model = nested()
        names = PlainNames(model)
        assert [names(name) for name, _ in model.named_parameters()] == PLAIN
        assert [name for name, _ in named_modules(model)] == ["", "0", "1", "2"]

    def test_a_module_of_that_name_stays(self):
        model = nn.Module()
        model.module = nn.Linear(2, 2)
        average = torch.optim.swa_utils.AveragedModel(net())
        assert PlainNames(model)("module.weight") == "module.weight"
        assert PlainNames(average)("module.0.weight") == "module.0.weight"

    def test_a_state_goes_out_plain_and_comes_back(self):
        model, bare = nested(), net()
        state = PlainState(model).state_dict()
        assert list(state) == PLAIN
        bare.load_state_dict(state)
        other = nested()
        with torch.no_grad():
            next(other.parameters()).zero_()
        PlainState(other).load_state_dict(bare.state_dict())
        assert torch.equal(next(other.parameters()), bare[0].weight)
        with pytest.raises(RuntimeError, match="Missing key"):
            PlainState(other).load_state_dict({})


def test_all_files_of_a_run_have_plain_names(tmp_path):
    model = eager(nested())
    optimizer = sgd(model)
    options = {"snapshot_every": 1, "activations": True, "checkpoint_every": 2}
    with Recorder(tmp_path / "run", model, optimizer, **options) as recorder:
        train(recorder, model, optimizer)
    manifest = read_manifest(tmp_path / "run")
    assert [p.name for p in manifest.parameters] == PLAIN
    assert set(manifest.arrival_order) == set(PLAIN)
    assert list(ParamStore(tmp_path / "run" / "params").matrix("grad_l2").names) == PLAIN
    assert set(ActivationStore(tmp_path / "run" / "activations").modules) <= {"0", "1", "2"}
    info = list_checkpoints(tmp_path / "run" / "checkpoints")[0]
    assert list(load_checkpoint(info.path)["model"]) == PLAIN
    assert info.health["healthy"]
    assert info.health["extremes"]["param"]["name"].removeprefix("model.") in PLAIN
    assert manifest.missing == ()


class TestParametersThatChange:
    def test_a_group_added_later_is_measured_from_then_on(self, tmp_path):
        model = net()
        model[0].requires_grad_(False)
        optimizer = torch.optim.AdamW(model[2].parameters(), 1e-2)
        said: list[str] = []
        options = {"snapshot_every": 1, "extras": ("update_l2",), "say": said.append}
        with Recorder(tmp_path / "run", model, optimizer, **options) as recorder:
            train(recorder, model, optimizer, 2)
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": model[0].parameters(), "lr": 1e-3})
            train(recorder, model, optimizer, 2)
        run = tmp_path / "run"
        grads = ParamStore(run / "params").matrix("grad_l2")
        column = list(grads.names).index("0.weight")
        assert grads.present[:, column].tolist() == [False, False, True, True]
        norms = read_steps(run / "steps.csv")["grad_l2_pre_clip"]
        assert (norms > 0).all()
        assert {p.name: p.group for p in read_manifest(run).parameters} == {
            "0.weight": 1, "0.bias": 1, "2.weight": 0, "2.bias": 0,
        }  # fmt: skip
        assert said == ["lr_1: its group was added at step 2, after the header"]
        assert read_manifest(run).missing == tuple(said)

    def test_lora_adapters_alone_are_trained(self, tmp_path):
        model = net().requires_grad_(False)
        model.adapter = nn.Linear(4, 1, bias=False)
        optimizer = sgd(model.adapter)
        with Recorder(tmp_path / "run", model, optimizer, snapshot_every=1) as recorder:
            for i in range(3):
                optimizer.zero_grad()
                inputs = torch.randn(8, 4)
                loss = (
                    (model[2](model[1](model[0](inputs))) + model.adapter(inputs)).square().mean()
                )
                loss.backward()
                assert recorder.gradients(loss) == pytest.approx(
                    model.adapter.weight.grad.norm().item(), rel=1e-6
                )
                optimizer.step()
                recorder.end_step()
                del i
        groups = {p.name: p.group for p in read_manifest(tmp_path / "run").parameters}
        assert groups.pop("adapter.weight") == 0
        assert set(groups.values()) == {-1}

    def test_a_tied_and_sparse_embedding_counts_once(self, tmp_path):
        model = nn.ModuleDict({"embed": nn.Embedding(10, 4, sparse=True)})
        model["again"] = model["embed"]
        optimizer = torch.optim.SparseAdam(list(model.parameters()), 1e-2)
        with Recorder(tmp_path / "run", model, optimizer, max_norm=9.0) as recorder:
            for _ in range(2):
                optimizer.zero_grad()
                both = model["embed"](torch.tensor([1, 1, 3])) + model["again"](torch.tensor([5]))
                loss = both.square().sum()
                loss.backward()
                dense = model["embed"].weight.grad.to_dense()
                assert recorder.gradients(loss) == pytest.approx(dense.norm().item(), rel=1e-6)
                optimizer.step()
                recorder.end_step()
        steps = read_steps(tmp_path / "run" / "steps.csv")
        assert steps["grad_l2_post_clip"] == pytest.approx(steps["grad_l2_pre_clip"], rel=1e-6)
        manifest = read_manifest(tmp_path / "run")
        assert [(p.name, p.tied) for p in manifest.parameters] == [
            ("embed.weight", ("again.weight",))
        ]
        assert manifest.loop == {}
        assert manifest.missing == ()
