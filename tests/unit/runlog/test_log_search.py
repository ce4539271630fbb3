"""Logs among many files: what is one, what is one run, and what it costs to tell."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from forensics.runlog.log_search import Found, glance, search_folder
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.samples import SAMPLES, hf_state
from tests.unit.runlog.test_directory_logs import console

JSONL = SAMPLES["jsonl"]


def search(folder: Path) -> Found:
    entries = sorted(folder.iterdir())
    return search_folder(
        folder,
        [entry.name for entry in entries if entry.is_file()],
        [entry.name for entry in entries if entry.is_dir()],
    )


def names(paths: tuple[Path, ...], folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in paths]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_format_is_told_at_a_glance(name: str, tmp_path: Path) -> None:
    path = tmp_path / "it.log"
    path.write_text(SAMPLES[name])
    choice = glance(path)
    assert choice is not None
    assert choice.importer.name == name


def test_a_folder_of_mlflows_metrics_is_one_run(tmp_path: Path) -> None:
    metrics = tmp_path / "abc" / "metrics"
    metrics.mkdir(parents=True)
    for name in ("loss", "lr", "accuracy"):
        (metrics / name).write_text(SAMPLES["mlflow"])
    assert search(metrics).places == ()
    (tmp_path / "abc" / "meta.yaml").write_text("run_id: abc\n")
    assert search(metrics).places == (metrics,)
    assert load_run(metrics).steps.has("lr")


def test_what_is_no_log_is_passed_over_and_what_is_not_called_one_is_not_opened(
    tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 64}')
    (tmp_path / "requirements.txt").write_text("numpy\nclick\n")
    (tmp_path / "data.csv").write_text("id,price\n1,2.5\n2,2.6\n")
    (tmp_path / "server.log").write_text("2024-01-01 INFO request 7 took 0.3 s\n" * 50)
    (tmp_path / "broken.log.gz").write_bytes(b"\x1f\x8b" + b"x" * 90)
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "train.py").write_text(JSONL)
    (tmp_path / "run.jsonl").write_text(JSONL)
    found = search(tmp_path)
    assert names(found.places, tmp_path) == ["run.jsonl"]
    assert sorted(names(found.passed, tmp_path)) == [
        "broken.log.gz",
        "config.json",
        "data.csv",
        "empty.log",
        "requirements.txt",
        "server.log",
    ]


def test_pipes_devices_and_dead_links_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "dead.log").symlink_to(tmp_path / "nothing")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    start = time.monotonic()
    assert search_folder(tmp_path, ["pipe.log", "dead.log", "zero.log"], []).passed == ()
    assert time.monotonic() - start < 60


def test_a_log_below_much_source_code_is_found(tmp_path: Path) -> None:
    code = "loss = model(x)  # the code that trains\n" * 4000
    (tmp_path / "it.log").write_text(code + SAMPLES["modded-nanogpt"])
    assert names(search(tmp_path).places, tmp_path) == ["it.log"]


def test_runs_beside_each_other_are_runs_each(tmp_path: Path) -> None:
    for name in ("job1.jsonl", "job2.jsonl", "other.csv"):
        (tmp_path / name).write_text(SAMPLES["csv"] if name.endswith("csv") else JSONL)
    places = search(tmp_path).places
    assert names(places, tmp_path) == ["job1.jsonl", "job2.jsonl", "other.csv"]
    assert all(len(load_run(place).steps) for place in places)


def test_a_rotated_log_is_one_run(tmp_path: Path) -> None:
    lines = JSONL.splitlines(keepends=True)
    for name, part, age in (("log.jsonl.1", lines[:5], 100), ("log.jsonl", lines[5:], 0)):
        (tmp_path / name).write_text("".join(part))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert search(tmp_path).places == (tmp_path,)
    assert load_run(tmp_path).steps.step.tolist() == list(range(12))


def test_checkpoints_are_one_run_and_are_not_gone_into(tmp_path: Path) -> None:
    for rows in (4, 12):
        (tmp_path / f"checkpoint-{10 * rows}").mkdir()
        (tmp_path / f"checkpoint-{10 * rows}" / "trainer_state.json").write_text(hf_state(rows))
    (tmp_path / "checkpoint-9").mkdir()
    (tmp_path / "eval").mkdir()
    found = search(tmp_path)
    assert names(found.places, tmp_path) == ["checkpoint-120/trainer_state.json"]
    assert found.below == ("checkpoint-9", "eval")


@pytest.mark.parametrize(("noted", "listed"), [("../checkpoint-40", False), ("../../x/c-4", True)])
def test_checkpoints_that_a_run_in_the_folder_has_noted_are_no_run_of_their_own(
    tmp_path: Path, noted: str, listed: bool
) -> None:
    (tmp_path / "checkpoint-40").mkdir()
    (tmp_path / "checkpoint-40" / "trainer_state.json").write_text(hf_state(4))
    (tmp_path / "forensics").mkdir()
    states = [{"step": 40, "path": noted}]
    manifest = {"schema_version": 1, "states": states}
    (tmp_path / "forensics" / "run.json").write_text(json.dumps(manifest))
    found = search(tmp_path)
    expected = ["checkpoint-40/trainer_state.json"] if listed else []
    assert names(found.places, tmp_path) == expected
    assert found.below == ("forensics",)


def test_a_state_and_a_console_of_one_run_are_one_place(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(120))
    (tmp_path / "runs").mkdir()
    found = search(tmp_path)
    assert found.places == (tmp_path,)
    assert found.below == ()
    assert len(load_run(found.places[0]).steps)


def test_consoles_of_two_runs_are_two_places_whatever_their_names_say(tmp_path: Path) -> None:
    """``hf.log`` and ``hf2.log`` are called as a rotated log is."""
    for name, shift in (("hf.log", 0.0), ("hf2.log", 0.3)):
        (tmp_path / name).write_text(console(120, shift=shift))
    assert set(search(tmp_path).places) == {tmp_path / "hf.log", tmp_path / "hf2.log"}


def test_a_state_beside_the_console_of_another_run_is_a_place_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mid.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(120, shift=0.3))
    assert search(tmp_path).places == (tmp_path / "mid.json", tmp_path / "train.log")


def test_folders_that_hold_no_run_of_their_own(tmp_path: Path) -> None:
    for name in (".git", "__pycache__", "train", "validation", "wandb", "version_0"):
        (tmp_path / name).mkdir()
    assert search(tmp_path).below == ("train", "version_0", "wandb")


def test_many_files_cost_little(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for i in range(30):
        (tmp_path / f"{i}.json").write_text(json.dumps({f"key{j}": j for j in range(9000)}))
        (tmp_path / f"{i}.csv").write_text("id,price\n" + "1,2.5\n" * 20_000)
        (tmp_path / f"{i}.out").write_bytes(rng.bytes(100_000))
    start = time.process_time()
    found = search(tmp_path)
    assert time.process_time() - start < 20
    assert (len(found.places), len(found.passed)) == (0, 90)


def test_a_folder_of_runs_beside_a_trainer_s_log_is_searched(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(SAMPLES["hf-stdout"])
    (tmp_path / "runs" / "Nov30_host").mkdir(parents=True)
    (tmp_path / "runs" / "Nov30_host" / "events.out.tfevents.1.host").write_text("")
    assert search(tmp_path).below == ()
    recorded = tmp_path / "runs" / "mine"
    recorded.mkdir()
    (recorded / "steps.csv").write_text("step,loss\n0,1.0\n")
    assert search(tmp_path).below == ("runs",)
