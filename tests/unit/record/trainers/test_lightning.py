"""``ForensicsCallback`` under the real Lightning ``Trainer``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from forensics import load_run

pl = pytest.importorskip("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs, of every kind and release

SAMPLES, BATCH = 32, 4


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    """Fits a sum; the loss of one batch may be NaN, or its step raise."""

    def __init__(self, nan_at: int | None = None, raises_at: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
        self.nan_at, self.raises_at = nan_at, raises_at
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        inputs, targets = batch
        loss = nn.functional.mse_loss(self.body(inputs), targets)
        if len(self.losses) == self.raises_at:
            raise OSError("the disk of the data is gone")
        if len(self.losses) == self.nan_at:
            loss = loss * torch.nan
        self.losses.append(float(loss))
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        inputs, targets = batch
        self.log("val_loss", nn.functional.mse_loss(self.body(inputs), targets))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.02)


class Pair(pl.LightningModule):  # type: ignore[misc, name-defined]
    """Two optimizers by hand: the second one meets a NaN at step 5, when the first has stepped."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.automatic_optimization = False
        self.maker, self.critic = nn.Linear(8, 8), nn.Linear(8, 1)
        self.norms: list[float] = []

    def training_step(self, batch: Any, index: int) -> None:
        inputs, own = batch[0], []
        real = inputs * torch.nan if len(self.norms) == 5 else inputs
        for optimizer, seen in zip(self.optimizers(), (self.maker(inputs), real), strict=True):
            self.toggle_optimizer(optimizer)
            self.manual_backward(nn.functional.softplus(self.critic(seen)).mean())
            held = [p.grad for group in optimizer.param_groups for p in group["params"]]
            own += [float(grad.norm()) for grad in held]
            optimizer.step()
            optimizer.zero_grad()
            self.untoggle_optimizer(optimizer)
        self.norms.append(float(np.linalg.norm(own)))

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(part.parameters(), 0.02) for part in (self.maker, self.critic)]


def loader() -> Any:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 8, generator=draw)
    data = torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True))
    return torch.utils.data.DataLoader(data, BATCH)


def fit(
    tmp_path: Path, module: Module | Pair, *, resume: str | None = None, **settings: Any
) -> Any:
    """The run that a Trainer with the callback left."""
    from lightning.pytorch.callbacks import ModelCheckpoint

    from forensics.record.trainers.lightning import ForensicsCallback

    saving = ModelCheckpoint(tmp_path / "states", every_n_train_steps=4, save_top_k=-1)
    trainer = pl.Trainer(
        max_epochs=2,
        accelerator="cpu",
        gradient_clip_val=0.5 if module.automatic_optimization else None,
        callbacks=[ForensicsCallback(tmp_path / "run"), saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **settings,
    )
    trainer.fit(module, loader(), loader(), ckpt_path=resume)
    return load_run(tmp_path / "run")


def test_rows_hold_the_losses_and_the_norms_before_and_after_the_clip(tmp_path: Path) -> None:
    module = Module()
    run = fit(tmp_path, module)
    assert run.steps.step.tolist() == list(range(16))
    assert run.steps["loss"] == pytest.approx(module.losses)
    assert min(run.steps["grad_l2_pre_clip"]) > 0.5
    # Lightning clips within optimizer.step(closure): at its entry there is nothing to measure.
    assert run.steps["grad_l2_post_clip"] == pytest.approx([0.5] * 16, rel=1e-4)
    assert not [f.rule for f in run.diagnose().findings if f.severity.name != "INFO"]


def test_with_accumulation_a_row_is_an_optimizer_step(tmp_path: Path) -> None:
    module = Module()
    run = fit(tmp_path, module, accumulate_grad_batches=2)
    assert run.manifest.accumulation == 2
    assert run.steps.step.tolist() == list(range(8))
    means = np.reshape(module.losses, (8, 2)).mean(axis=1)
    assert run.steps["loss"] == pytest.approx(means)


def test_what_the_trainer_saved_and_validated_is_noted(tmp_path: Path) -> None:
    run = fit(tmp_path, Module())
    assert [state.step for state in run.manifest.states] == [4, 8, 12, 16]
    for state in run.manifest.states:
        assert (tmp_path / "run" / state.path).is_file()
    present = run.steps.present("val_loss")
    assert run.steps.step[present].tolist() == [8]
    assert run.manifest.ended.how == "finished"


def test_a_nan_is_dated(tmp_path: Path) -> None:
    diagnosis = fit(tmp_path, Module(nan_at=11)).diagnose()
    root = diagnosis.findings[diagnosis.verdict.root]
    assert (root.rule, root.first_step) == ("nonfinite-loss", 11)


def test_by_hand_the_gradients_of_each_optimizer_are_measured(tmp_path: Path) -> None:
    module = Pair()
    run = fit(tmp_path, module)
    assert run.steps["grad_l2_pre_clip"] == pytest.approx(module.norms, nan_ok=True)
    assert run.manifest.loop == {"in_turn_steps": 16, "first_in_turn": 0}
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root]
    assert (root.rule, root.first_step) == ("nonfinite-loss", 5)


def test_an_exception_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk"):
        fit(tmp_path, Module(raises_at=5))
    run = load_run(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2, 3, 4]
    assert (run.manifest.ended.how, run.manifest.ended.step) == ("exception", 5)
    assert run.manifest.ended.message == "OSError: the disk of the data is gone"


def test_a_resume_goes_on_with_the_run(tmp_path: Path) -> None:
    whole = fit(tmp_path, Module())
    state = tmp_path / "run" / whole.manifest.states[1].path
    again = fit(tmp_path, Module(), resume=str(state))
    assert again.steps.step.tolist() == list(range(16))
    assert again.steps["loss"] == pytest.approx(whole.steps["loss"], rel=1e-6)
    assert [segment.start_step for segment in again.manifest.segments] == [0, 8]


def test_a_callback_can_be_sent_to_the_processes_that_train() -> None:
    import pickle

    from forensics.record.trainers.lightning import ForensicsCallback

    sent = pickle.loads(pickle.dumps(ForensicsCallback("runs/x", monitor="loss")))
    assert (sent.run_dir, sent.monitor, sent.recorder) == ("runs/x", "loss", None)
