"""The trainers on two real ranks: what each rank records of itself, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from forensics import load_run
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.unit.record.ranks.launching import launch
from tests.unit.record.ranks.two_ranks import data, model
from tests.unit.record.trainers.two_trainer_ranks import ACCUMULATION, BAD, STEPS

for package in ("accelerate", "transformers", "lightning"):
    pytest.importorskip(package)

TRAINED = (
    "accelerate",
    "accelerate-sharded",
    "huggingface",
    "lightning",
    "lightning-sharded",
    "fabric",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a run a scenario."""
    folder = tmp_path_factory.mktemp("trainer-ranks")
    launch("record.trainers.two_trainer_ranks", folder)
    return folder


CHOSEN = Path("lightning_logs", "version_0", "forensics")
"""Where a run lies whose folder Lightning has chosen: rank 0 knows the version, the others ask."""


def load(runs: Path, name: str) -> Run:
    chosen = runs / name / CHOSEN
    return load_run(chosen if chosen.exists() else runs / name)


def both(run: Run) -> tuple[StepTable, StepTable]:
    """The logs of rank 0 and rank 1."""
    assert run.rank_zero is not None
    (one,) = run.ranks
    return run.rank_zero, one


@pytest.mark.parametrize("name", TRAINED)
def test_the_rank_that_goes_bad_alone_is_told(runs: Path, name: str) -> None:
    run = load(runs, name)
    assert run.manifest is not None
    assert (run.manifest.world_size, run.manifest.missing) == (2, ())
    names = [parameter.name.removeprefix("body.") for parameter in run.manifest.parameters]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert len(run.steps) == STEPS
    sound, guilty = both(run)
    for table in (sound, guilty):
        assert table.step.tolist() == list(range(STEPS))
        assert table.present("grad_l2_local").all()
    assert np.isfinite(sound["loss"][BAD])
    assert sound["grad_local_nonfinite"][BAD] == 0
    assert np.isnan(guilty["loss"][BAD])
    assert guilty["grad_local_nonfinite"][BAD] > 0
    nearest_the_loss = {"2.bias", "body.2.bias", "2.weight", "body.2.weight"}
    assert guilty.columns["first_nonfinite"].text_at(BAD) in nearest_the_loss
    assert [mark.ended for mark in run.rank_marks] == ["finished", "finished"]
    diagnosis = run.diagnose()
    root = diagnosis.findings[diagnosis.verdict.root or 0]
    assert (root.rule, root.subject, root.first_step) == ("rank-divergence", "rank 1", BAD)


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_own_gradients_are_those_before_the_reduction(runs: Path, name: str) -> None:
    """Step 0 is computed here once more, rank by rank, without any reduction."""
    gradients = []
    run = load_run(runs / name)
    for rank, table in enumerate(both(run)):
        alone = model()
        parts = [data(part, rank) for part in range(ACCUMULATION)]
        losses = [nn.functional.mse_loss(alone(inputs), targets) for inputs, targets in parts]
        loss = torch.stack(losses).mean()
        loss.backward()
        own = torch.cat([p.grad.flatten() for p in alone.parameters() if p.grad is not None])
        gradients.append(own)
        assert table["loss"][0] == pytest.approx(loss.item(), rel=1e-6)
        assert table["grad_l2_local"][0] == pytest.approx(float(own.norm()), rel=1e-5)
    reduced = float(torch.stack(gradients).mean(dim=0).norm())
    assert run.steps["grad_l2_pre_clip"][0] == pytest.approx(reduced, rel=1e-5)


@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_norms_of_a_sharded_model_are_those_of_the_whole(runs: Path, name: str) -> None:
    whole, sharded = load_run(runs / name), load(runs, f"{name}-sharded")
    for column in ("loss", "grad_l2_pre_clip", "grad_l2_post_clip"):
        assert sharded.steps[column][:BAD] == pytest.approx(whole.steps[column][:BAD], rel=1e-5)
    assert sharded.manifest is not None
    assert whole.manifest is not None
    assert sharded.manifest.parameters == whole.manifest.parameters


def test_each_rank_knows_its_place_in_its_loader(runs: Path) -> None:
    """Hugging Face has 8 batches an epoch here, and went on in the middle of the second one."""
    expected = {
        "huggingface": [0, 2, 4, 6, 0, 2, 4, 6, 0, 2],
        "lightning": list(range(0, STEPS * ACCUMULATION, ACCUMULATION)),
    }
    for name, positions in expected.items():
        for table in both(load_run(runs / name)):
            assert table["data_position"].tolist() == positions


def test_what_a_trainer_saved_is_named_by_rank_zero_alone(runs: Path) -> None:
    for name, steps in (("huggingface", [6, 10]), ("lightning", [4, 8])):
        run = load_run(runs / name)
        assert run.manifest is not None
        assert [state.step for state in run.manifest.states] == steps
        assert all((run.path / state.path).exists() for state in run.manifest.states)


def test_a_callback_on_rank_zero_alone_waits_for_nobody(runs: Path) -> None:
    """Not even for the folder, which Lightning's own ``log_dir`` asks all ranks for."""
    run = load_run(runs / "alone" / CHOSEN)
    assert len(run.steps) == STEPS
    assert run.ranks == ()
    assert len(load_run(runs / "own-hook").steps) == STEPS


def test_a_hook_that_the_trainer_registers_stays(runs: Path) -> None:
    run = load_run(runs / "own-hook")
    assert run.manifest is not None
    (clause,) = run.manifest.missing
    assert "communication hook of its own" in clause
