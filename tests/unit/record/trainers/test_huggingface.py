"""``ForensicsCallback`` under the real ``transformers.Trainer``."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from forensics import load_run
from forensics.runlog.manifest import read_manifest

# Imported by name below, once the packages are known to be there.
pytest.importorskip("accelerate")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of every kind and release

STEPS, ACCUMULATION, SAMPLES = 12, 2, 32


class Rows(Dataset):  # type: ignore[type-arg]
    """Inputs and their sums; one may hold a NaN."""

    def __init__(self, bad: int | None = None) -> None:
        draw = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(SAMPLES, 8, generator=draw)
        self.targets = self.inputs.sum(1, keepdim=True)
        if bad is not None:
            self.inputs[bad, 3] = torch.nan

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"inputs": self.inputs[index], "targets": self.targets[index]}


class Net(nn.Module):
    """As the Trainer wants one: the loss is in what it returns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, inputs: Any = None, targets: Any = None) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.body(inputs), targets)}


def trained(
    tmp_path: Path, data: Rows, *, resume: bool = False, **settings: Any
) -> tuple[Any, list[dict[str, Any]]]:
    """The run that a Trainer with the callback left, and what the Trainer logged itself."""
    from transformers import Trainer, TrainingArguments

    from forensics.record.trainers.huggingface import ForensicsCallback

    arguments: dict[str, Any] = {
        "max_steps": STEPS,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": ACCUMULATION,
        "learning_rate": 0.02,
        "max_grad_norm": 0.5,
        "logging_steps": 1,
        "save_steps": 4,
        "use_cpu": True,
        "report_to": [],
        "label_names": ["targets"],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        **settings,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = Trainer(
            Net(),
            TrainingArguments(str(tmp_path / "out"), **arguments),
            train_dataset=data,
            eval_dataset=Rows(),
            callbacks=[ForensicsCallback(tmp_path / "run")],
        )
        trainer.train(resume_from_checkpoint=resume or None)
    return load_run(tmp_path / "run"), trainer.state.log_history


def test_rows_agree_with_what_the_trainer_logs(tmp_path: Path) -> None:
    run, logged = trained(tmp_path, Rows())
    own = [entry for entry in logged if "loss" in entry]
    assert run.steps.step.tolist() == list(range(STEPS))
    assert run.steps["loss"] == pytest.approx([e["loss"] for e in own], abs=1e-4)
    norms = [e["grad_norm"] for e in own]
    assert run.steps["grad_l2_pre_clip"] == pytest.approx(norms, rel=1e-5)
    assert max(norms) > 0.5, "nothing was clipped: the next line would prove nothing"
    assert max(run.steps["grad_l2_post_clip"]) == pytest.approx(0.5, rel=1e-4)
    assert run.steps["lr"] == pytest.approx([e["learning_rate"] for e in own])


def test_the_manifest_says_what_the_arguments_said(tmp_path: Path) -> None:
    run, _ = trained(tmp_path, Rows(), warmup_steps=3, seed=11)
    manifest = run.manifest
    assert (manifest.max_norm, manifest.accumulation, manifest.precision) == (0.5, 2, "fp32")
    assert manifest.schedule == {"name": "linear", "warmup_steps": 3, "total_steps": STEPS}
    assert manifest.seeds == {"torch": 11, "data": 11}
    assert manifest.versions["transformers"]
    assert [state.step for state in manifest.states] == [4, 8, 12]
    for state in manifest.states:
        assert (tmp_path / "run" / state.path / "trainer_state.json").is_file()
    assert manifest.ended.how == "finished"


def test_a_nan_that_the_trainer_filters_from_its_log_is_in_ours(tmp_path: Path) -> None:
    run, logged = trained(tmp_path, Rows(bad=5))
    first = int(run.steps.step[~np.isfinite(run.steps["loss"])][0])
    own = [entry["loss"] for entry in logged if "loss" in entry]
    assert all(loss == loss for loss in own), "the Trainer logged the NaN: this proves nothing"
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root]
    assert (root.rule, root.first_step) == ("nonfinite-loss", first)


def test_a_resume_goes_on_with_the_run(tmp_path: Path) -> None:
    import shutil

    whole, _ = trained(tmp_path, Rows())
    shutil.rmtree(tmp_path / "out" / "checkpoint-12")
    again, _ = trained(tmp_path, Rows(), resume=True)
    assert again.steps.step.tolist() == list(range(STEPS))
    assert again.steps["loss"] == pytest.approx(whole.steps["loss"], rel=1e-6)
    assert [(s.start_step, s.reason) for s in again.manifest.segments] == [
        (0, "start"),
        (8, "resume"),
    ]
    assert [state.step for state in again.manifest.states] == [4, 8, 12]


def test_the_validation_loss_stands_in_the_row_of_the_state_that_it_judged(tmp_path: Path) -> None:
    run, logged = trained(tmp_path, Rows(), eval_strategy="steps", eval_steps=5)
    losses = [entry["eval_loss"] for entry in logged if "eval_loss" in entry]
    present = run.steps.present("val_loss")
    assert run.steps.step[present].tolist() == [5, 10]
    assert run.steps["val_loss"][present] == pytest.approx(losses[:2])


def test_a_training_that_raises_is_closed_when_python_exits(tmp_path: Path) -> None:
    import subprocess
    import sys

    script = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[4])!r})
from tests.unit.record.trainers import test_huggingface as t
class Breaks(t.Rows):
    asked = 0
    def __getitem__(self, index):
        type(self).asked += 1
        if self.asked > 40:
            raise OSError("the disk of the data is gone")
        return super().__getitem__(index)
t.trained(Path({str(tmp_path)!r}), Breaks())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    ended = read_manifest(tmp_path / "run").ended
    assert (ended.how, ended.message) == ("exception", "OSError: the disk of the data is gone")
    assert json.loads((tmp_path / "run" / "run.json").read_text())["segments"][0]["ended"]


def test_a_trainer_that_finds_a_smaller_batch_size_begins_the_run_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Net.forward

    def narrow(self: Net, inputs: Any = None, targets: Any = None) -> dict[str, torch.Tensor]:
        if len(inputs) > 4:
            raise RuntimeError("CUDA out of memory.")
        return forward(self, inputs, targets)

    monkeypatch.setattr(Net, "forward", narrow)
    run, _ = trained(
        tmp_path, Rows(), auto_find_batch_size=True, per_device_train_batch_size=8, save_steps=100
    )
    assert run.steps.step.tolist() == list(range(STEPS))
    assert run.manifest.ended.how == "finished"
    assert run.manifest.missing == ()


def test_the_accelerator_is_left_as_it_was(tmp_path: Path) -> None:
    from accelerate import Accelerator

    before = Accelerator.backward
    trained(tmp_path, Rows(), max_steps=2)
    assert Accelerator.backward is before
