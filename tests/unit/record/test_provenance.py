import subprocess

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from forensics.record.precision import Precision
from forensics.record.provenance import describe_run, git_state


@pytest.mark.parametrize(
    ("settings", "flavour"),
    [({}, "single"), ({"foreach": True}, "foreach"), ({"fused": True}, "fused")],
)
def test_the_optimizers_flavour_is_told(settings, flavour):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, betas=(0.8, 0.9), **settings)
    told = describe_run(model, [optimizer]).optimizer
    assert (told["name"], told["flavour"]) == ("adamw", flavour)
    assert (told["lr"], told["betas"]) == (0.5, [0.8, 0.9])


def test_a_run_tells_its_machine_and_its_precision():
    model = nn.Linear(1, 1)
    manifest = describe_run(
        model,
        [torch.optim.SGD(model.parameters(), lr=0.1)],
        scaler=GradScaler("cpu", init_scale=4.0),
        precision=Precision("fp16", "cpu"),
        scale_floor=2.0,
    )
    assert (manifest.device, manifest.autocast_device) == ("cpu", "cpu")
    assert manifest.versions["torch"].startswith(torch.__version__.split("+")[0])
    assert manifest.threads == torch.get_num_threads()
    assert (manifest.scaler.init_scale, manifest.scaler.floor) == (4.0, 2.0)
    assert [info.name for info in manifest.parameters] == ["weight", "bias"]


def test_the_commit_of_the_code_is_noted(tmp_path):
    assert git_state(tmp_path) == {}

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    git("init")
    (tmp_path / "train.py").write_text("x = 1\n")
    git("add", "train.py")
    git("commit", "-m", "first")
    state = git_state(tmp_path / "train.py")
    assert len(state["commit"]) == 40
    assert state["dirty"] is False
    (tmp_path / "train.py").write_text("x = 2\n")
    assert git_state(tmp_path)["dirty"] is True
