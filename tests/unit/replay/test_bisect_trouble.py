"""Interrupts, and runs with a part that is missing, false, unreadable or read-only."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.diagnose.bisection_file import NAME, bisection_of
from forensics.diagnose.bisection_result import BisectStatus
from forensics.errors import TerminatedError, UsageError
from forensics.replay.bisect import bisect_run
from forensics.runlog.run import load_run
from tests.unit.replay.bisections import quick


def test_a_false_row_does_not_hide_the_real_fault(copy: Path) -> None:
    lines = (copy / "steps.csv").read_text().splitlines()
    cells = lines[15].split(",")
    cells[lines[0].split(",").index("loss")] = "nan"
    (copy / "steps.csv").write_text("\n".join([*lines[:15], ",".join(cells), *lines[16:], ""]))
    result = quick(copy)
    assert result.origin is not None
    assert (result.first_bad_step, result.origin.operator) == (30, "input")
    assert any("the row of step 14 is not what the training made" in n for n in result.notes)


def test_an_interrupt_leaves_what_is_known(bad_sample: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("replaying") and done == 3:
            raise KeyboardInterrupt

    result = quick(bad_sample, progress=stop)
    assert result.status is BisectStatus.PARTIAL
    assert result.reason == "stopped at step 27"
    assert (result.faithful_until, result.compared) == (26, 3)
    assert result.next_command.startswith("forensics bisect ")
    assert any("24 to 26 were replayed and are sound" in note for note in result.notes)


def test_an_interrupt_of_the_trials_keeps_the_located_step(bad_sample: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("what if"):
            raise TerminatedError

    result = bisect_run(bad_sample, progress=stop)
    assert (result.status, result.terminated) == (BisectStatus.PARTIAL, True)
    assert result.origin is not None
    assert (result.first_bad_step, result.samples) == (30, (7,))


def test_an_interrupt_does_not_replace_a_whole_answer(copy: Path) -> None:
    def stop(text: str, done: int, total: int) -> None:
        if text.startswith("replaying"):
            raise KeyboardInterrupt

    whole = quick(copy)
    result = quick(copy, progress=stop)
    assert result.status is BisectStatus.PARTIAL
    assert any("earlier, whole bisection" in note for note in result.notes)
    assert bisection_of(load_run(copy))[0] == whole


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_directory_still_gets_its_answer(copy: Path) -> None:
    copy.chmod(0o555)
    try:
        result = quick(copy)
    finally:
        copy.chmod(0o755)
    assert result.status is BisectStatus.LOCATED
    assert any("could not be kept" in note for note in result.notes)


def test_where_the_answer_cannot_be_written_it_says_so(copy: Path) -> None:
    (copy / NAME).unlink(missing_ok=True)
    (copy / NAME).mkdir()
    result = quick(copy)
    assert result.first_bad_step == 30
    assert any("could not be kept in the run directory" in note for note in result.notes)


def test_a_state_that_belies_its_health_file_is_passed_over(copy: Path) -> None:
    path = copy / "checkpoints" / "step-00000024.pt"
    state = torch.load(path, weights_only=True)
    name = next(iter(state["model"]))
    state["model"][name].view(-1)[0] = float("nan")
    torch.save(state, path)
    result = quick(copy)
    assert (result.replayed_from, result.first_bad_step) == (16, 30)
    assert result.origin is not None
    assert result.origin.operator == "input"


def test_states_that_cannot_be_read_are_passed_over(copy: Path) -> None:
    for step in (16, 24):
        (copy / "checkpoints" / f"step-{step:08d}.pt").write_bytes(b"torn")
    result = quick(copy)
    assert (result.replayed_from, result.first_bad_step, result.reproduces) == (8, 30, True)


def test_a_config_of_fewer_steps_than_were_logged_cuts_nothing_off(copy: Path) -> None:
    manifest = json.loads((copy / "run.json").read_text())
    manifest["recipe"]["config"]["steps"] = 20
    (copy / "run.json").write_text(json.dumps(manifest))
    result = quick(copy)
    assert (result.first_bad_step, result.reproduces) == (30, True)


@pytest.mark.parametrize("part", ["steps.csv", "run.json"])
def test_a_run_without_its_log_or_its_manifest_still_gets_an_answer(copy: Path, part: str) -> None:
    (copy / part).unlink()
    result = quick(copy)
    assert result.first_bad_step == 30
    assert (result.origin is None) is (part == "run.json")  # without it nothing can be replayed


def test_without_any_state_it_is_trained_from_the_start(copy: Path) -> None:
    shutil.rmtree(copy / "checkpoints")
    result = quick(copy)
    assert (result.replayed_from, result.first_bad_step, result.compared) == (0, 30, 31)


def test_a_proof_that_breaks_off_costs_no_located_step(
    bad_sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("select() takes no indices")

    monkeypatch.setattr("forensics.replay.proof.proving.guilty_samples", broken)
    result = quick(bad_sample)
    assert (result.status, result.first_bad_step) == (BisectStatus.LOCATED, 30)
    assert result.reproduces is True
    assert any("select() takes no indices" in note for note in result.notes)


def test_a_folder_of_states_is_judged_by_health(bad_sample: Path, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    folder.mkdir()
    for path in (bad_sample / "checkpoints").glob("*.pt"):
        shutil.copy(path, folder)
    with pytest.raises(UsageError, match="this folder has no log"):
        bisect_run(folder, bad="loss>3")
    result = bisect_run(folder, recipe="bad-sample")
    assert result.status is BisectStatus.NOT_BISECTABLE
    assert result.origin is None
    assert any("The recipe was not used" in note for note in result.notes)
    assert not (folder / NAME).exists()


@pytest.mark.parametrize("linked", ["folder", "files"])
def test_states_on_a_linked_disk_are_judged_as_they_are_loaded(
    copy: Path, tmp_path: Path, linked: str
) -> None:
    disk, states = tmp_path / "disk", copy / "checkpoints"
    shutil.move(states, disk)
    for health in disk.glob("*.health.json"):
        health.unlink()
    if linked == "folder":
        states.symlink_to(disk)
    else:  # of one that is itself a link nobody knows where it leads
        states.mkdir()
        for state in disk.iterdir():
            (states / state.name).symlink_to(state)
    result = quick(copy)
    assert result.first_bad_step == 30
    verdicts = {state.verdict for state in result.checkpoints} - {"untested"}
    assert verdicts == ({"good"} if linked == "folder" else {"untestable"})
    assert result.replayed_from == (24 if linked == "folder" else 0)
