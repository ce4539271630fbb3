"""A recorder that nobody closes is closed when Python exits, as far as it is known how."""

import gc
import os
import sys

import pytest
import torch
from torch import nn

from forensics.record import exits
from forensics.record.recorder import Recorder
from forensics.runlog.manifest import read_manifest


@pytest.fixture(autouse=True)
def no_others(monkeypatch):
    for name in ("last_exc", "last_value", "ps1"):
        monkeypatch.delattr(sys, name, raising=False)
    monkeypatch.setattr(exits, "_open", type(exits._open)())
    monkeypatch.setattr(exits, "_newest", [])
    yield
    for left in list(exits._open):
        left.close()


def train(out, steps: int = 3) -> None:
    """As a script's ``main``: its recorder is gone when it returns."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = Recorder(out, model, optimizer)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 2)).square().mean()
        loss.backward()
        recorder.gradients(loss)
        optimizer.step()
        recorder.end_step()


def test_a_script_without_a_with_block_has_finished(tmp_path):
    train(tmp_path)
    gc.collect()
    assert read_manifest(tmp_path).running
    exits._close_open(os.getpid())
    ended = read_manifest(tmp_path).ended
    assert (ended.how, ended.step) == ("finished", 2)
    assert not list(tmp_path.glob("*.lock"))


def test_the_error_that_ended_the_script_is_told(tmp_path, monkeypatch):
    train(tmp_path)
    monkeypatch.setattr(sys, "last_value", RuntimeError("out of luck"), raising=False)
    exits._close_open(os.getpid())
    ended = read_manifest(tmp_path).ended
    assert (ended.how, ended.step) == ("exception", 3)
    assert "out of luck" in ended.message


def test_neither_a_fork_nor_a_prompt_says_how_the_run_ended(tmp_path, monkeypatch):
    train(tmp_path)
    exits._close_open(os.getpid() + 1)
    assert read_manifest(tmp_path).running
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    exits._close_open(os.getpid())
    assert read_manifest(tmp_path).running


def test_a_process_of_multiprocessing_tells_of_no_error(tmp_path, monkeypatch):
    train(tmp_path)
    monkeypatch.setattr(exits.multiprocessing, "parent_process", object)
    exits._close_open(os.getpid())
    assert read_manifest(tmp_path).running


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_of_several_left_open_the_newest_alone_is_kept(tmp_path):
    train(tmp_path / "first")
    train(tmp_path / "second")
    gc.collect()
    exits._close_open(os.getpid())
    assert read_manifest(tmp_path / "first").running
    assert read_manifest(tmp_path / "second").ended.how == "finished"
