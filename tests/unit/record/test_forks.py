"""A fork of a process that records: the run stays its parent's, whatever the fork calls."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from forensics.record.recorder import Recorder
from forensics.runlog.manifest import read_manifest
from forensics.runlog.run import load_run

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),
]


class Loop:
    """A recorded loop, a step at a time."""

    def __init__(self, run_dir: Path, say: Callable[[str], None] = lambda _: None) -> None:
        torch.manual_seed(0)
        model = nn.Linear(2, 1)
        self.optimizer = torch.optim.SGD(model.parameters(), 0.1)
        self.model = model
        self.recorder = Recorder(
            run_dir,
            model,
            self.optimizer,
            checkpoint_every=2,
            snapshot_every=1,
            activations=True,
            extras=("param_l2",),
            say=say,
        )

    def step(self, inputs: torch.Tensor | None = None) -> float:
        """One step; returns the norm that ``gradients`` gives."""
        inputs = torch.ones(4, 2) if inputs is None else inputs
        self.optimizer.zero_grad()
        loss = self.model(inputs).square().mean()
        loss.backward()
        norm = self.recorder.gradients(loss)
        self.optimizer.step()
        self.recorder.end_step()
        return norm


def in_fork(does: Callable[[], Any], told: Path) -> None:
    """Run something in a fork, which writes down what it came to, and wait for its end."""
    child = os.fork()
    if not child:
        try:
            told.write_text(json.dumps(does()))
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def contents(run_dir: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in run_dir.rglob("*") if p.is_file()}


def test_a_fork_that_goes_on_calling_changes_nothing(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    loop.step()
    before = contents(tmp_path / "run")

    def go_on() -> list[Any]:
        heard: list[str] = []
        loop.recorder._say = heard.append
        norms = [loop.step() > 0 for _ in range(3)]
        loop.recorder.saved("elsewhere.pt")
        loop.recorder.close()
        return [norms, heard]

    in_fork(go_on, tmp_path / "told")
    assert contents(tmp_path / "run") == before
    norms, heard = json.loads((tmp_path / "told").read_text())
    assert norms == [True, True, True]
    (line,) = heard
    assert line.startswith("a fork of the process that made the Recorder trains, and is not")

    for _ in range(3):
        loop.step()
    loop.recorder.close()
    run = load_run(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1, 2, 3]
    assert run.params is not None
    assert run.params.steps.tolist() == [0, 1, 2, 3]
    assert [info.step for info in run.checkpoints] == [0, 2, 4]
    assert run.manifest is not None
    assert run.manifest.ended is not None
    assert (run.manifest.ended.how, run.manifest.missing) == ("finished", ())


@pytest.mark.parametrize("ending", [SystemExit(0), RuntimeError("in the fork alone")])
def test_a_fork_that_leaves_the_with_block_ends_no_run(
    tmp_path: Path, ending: BaseException
) -> None:
    with Loop(tmp_path / "run").recorder as recorder:
        before = contents(tmp_path / "run")

        def leave() -> None:
            recorder.__exit__(type(ending), ending, None)

        in_fork(leave, tmp_path / "told")
        assert contents(tmp_path / "run") == before
        assert read_manifest(tmp_path / "run").running
        assert list((tmp_path / "run").glob("*.lock"))


class Rows(Dataset[torch.Tensor]):
    """Whose workers are forks."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.loop.recorder.note(epoch=index)
        self.loop.recorder.saved(f"row-{index}.pt")
        return torch.ones(2)


@pytest.mark.skipif(sys.platform != "linux", reason="workers are forks on Linux alone")
def test_a_data_loaders_worker_says_nothing_into_the_run(tmp_path: Path) -> None:
    loop = Loop(tmp_path / "run")
    for batch in DataLoader(
        Rows(loop), batch_size=4, num_workers=1, multiprocessing_context="fork"
    ):
        loop.step(batch)
    loop.recorder.close()
    run = load_run(tmp_path / "run")
    assert run.steps.step.tolist() == [0, 1]
    assert run.manifest is not None
    assert run.manifest.states == ()
