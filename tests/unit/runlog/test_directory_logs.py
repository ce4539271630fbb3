"""Which of the logs in a directory is read, and which are refused for being several runs."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from forensics.errors import InputError
from forensics.runlog import directory_logs
from forensics.runlog.directory_logs import is_log_name
from forensics.runlog.foreign_logs import read_foreign
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_run
from forensics.runlog.steps import StepTable
from tests.unit.runlog.importers.samples import SAMPLES, hf_state

JSONL = SAMPLES["jsonl"]
TRACE = 'Traceback (most recent call last):\n  File "x"\nRuntimeError: gone\n'


def test_a_directory_of_checkpoints_gives_the_last_state(tmp_path: Path) -> None:
    for rows in (4, 9, 12):
        folder = tmp_path / f"checkpoint-{10 * rows}"
        folder.mkdir()
        (folder / "trainer_state.json").write_text(hf_state(rows))
        (folder / "config.json").write_text('{"hidden_size": 64}')
    assert load_run(tmp_path).steps.step[-1] == 120


def test_a_directory_of_a_rotated_log_is_joined(tmp_path: Path) -> None:
    lines = JSONL.splitlines(keepends=True)
    for name, part, age in (("log.1.jsonl", lines[:5], 100), ("log.jsonl", lines[5:], 0)):
        (tmp_path / name).write_text("".join(part))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    assert load_run(tmp_path).steps.step.tolist() == list(range(12))


def test_a_directory_with_logs_of_several_runs_asks_which(tmp_path: Path) -> None:
    for name in ("alpha", "beta"):
        (tmp_path / f"{name}.jsonl").write_text(JSONL)
    with pytest.raises(InputError, match=r"holds 2 logs read as jsonl: alpha\.jsonl, beta\.jsonl"):
        load_run(tmp_path)


def test_numbered_logs_of_which_each_begins_anew_are_no_rotation(tmp_path: Path) -> None:
    """The one that died must not be set aside for the healthy one."""
    for name in ("job1", "job2"):
        (tmp_path / f"{name}.jsonl").write_text(JSONL)
    with pytest.raises(InputError, match=r"job1\.jsonl, job2\.jsonl; `forensics report \S+job1"):
        load_run(tmp_path)


def test_logs_of_several_writers_are_listed(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(SAMPLES["csv"])
    (tmp_path / "keras.csv").write_text(SAMPLES["keras-csv"])
    with pytest.raises(InputError, match=r"read as 2 formats: a\.csv, keras\.csv; `forensics rep"):
        load_run(tmp_path)


def test_two_views_that_one_trainer_writes_are_one_run(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(120))
    assert load_run(tmp_path).steps.source_format == "hf-trainer-state"


@pytest.mark.parametrize("shift", [0.05, -0.2])
def test_two_views_with_other_losses_at_the_same_steps_are_two_runs(
    tmp_path: Path, shift: float
) -> None:
    """Their steps are the same; only their values tell that they are not of one run."""
    (tmp_path / "state.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(120, shift=shift))
    with pytest.raises(
        InputError, match=r"holds 2 logs read as 2 formats: state\.json, train\.log"
    ):
        load_run(tmp_path)


def test_a_view_that_was_dead_from_the_start_is_not_the_healthy_one_beside_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "state.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(120, bad_from=20))
    with pytest.raises(InputError, match="holds 2 logs"):
        load_run(tmp_path)


def test_several_consoles_beside_a_state_are_no_view_of_it(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(hf_state(12))
    for name in ("hf.log", "hf2.log"):
        (tmp_path / name).write_text(console(120))
    with pytest.raises(InputError, match=r"holds 3 logs read as 2 formats: hf2\.log, hf\.log"):
        load_run(tmp_path)


def of_lines(first: int, last: int, shift: float = 0.0) -> str:
    rows = [{"step": step, "loss": 3 - step / 100 + shift} for step in range(first, last)]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


@pytest.mark.parametrize(("first", "shift", "one"), [(10, 0.0, True), (10, 0.5, False)])
def test_most_of_a_log_written_again_with_other_values_is_another_run(
    tmp_path: Path, first: int, shift: float, one: bool
) -> None:
    (tmp_path / "run.1.jsonl").write_text(of_lines(0, 50))
    (tmp_path / "run.2.jsonl").write_text(of_lines(first, 60, shift))
    os.utime(tmp_path / "run.1.jsonl", (1e9, 1e9))
    if one:
        assert load_run(tmp_path).steps.step.tolist() == list(range(60))
    else:
        with pytest.raises(InputError, match="holds 2 logs"):
            load_run(tmp_path)


def test_an_end_that_is_trained_again_is_a_restart(tmp_path: Path) -> None:
    (tmp_path / "run.1.jsonl").write_text(of_lines(0, 50))
    (tmp_path / "run.2.jsonl").write_text(of_lines(40, 60, 0.5))
    os.utime(tmp_path / "run.1.jsonl", (1e9, 1e9))
    assert load_run(tmp_path).steps.step.tolist() == list(range(60))


def test_runs_below_a_directory_are_not_its_log(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "steps.csv").write_text("step,loss\n0,1.0\n")
    with pytest.raises(InputError, match="name one of the runs in it: a"):
        load_run(tmp_path)


def test_states_of_several_runs_side_by_side_ask_which(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.json").write_text(hf_state())
    with pytest.raises(InputError, match="holds 2 logs read as hf-trainer-state"):
        load_run(tmp_path)


def notes(path: Path) -> tuple[str, ...]:
    facts = load_run(path).steps.facts
    assert facts is not None
    return facts.notes


def console(steps: int, *, bad_from: int = 10**9, end: str = "", shift: float = 0.0) -> str:
    """What a Trainer prints that logs every 10 steps."""
    lines = []
    for step in range(10, steps + 1, 10):
        loss, norm = (0.0, math.nan) if step >= bad_from else (3.0 - step / 100 + shift, 1.0)
        record = {"loss": loss, "grad_norm": norm, "learning_rate": 1e-5, "epoch": step / 100}
        lines.append(f" 1%|#  | {step}/500 [00:10<00:20, 2.0it/s]\r{record}\n")
    return "".join(lines) + end


def output_folder(folder: Path) -> None:
    """As a Trainer leaves it: a state in each checkpoint."""
    for rows in (4, 9, 12):
        (folder / f"checkpoint-{10 * rows}").mkdir()
        (folder / f"checkpoint-{10 * rows}" / "trainer_state.json").write_text(hf_state(rows))


def test_it_is_said_which_file_is_read_and_which_are_not(tmp_path: Path) -> None:
    output_folder(tmp_path)
    assert notes(tmp_path)[0] == (
        "read from checkpoint-120/trainer_state.json, not from checkpoint-40/trainer_state.json, "
        "checkpoint-90/trainer_state.json: taken for the same run"
    )
    assert notes(tmp_path / "checkpoint-90")[0] == "read from trainer_state.json"
    (tmp_path / "trainer_state.json").write_text(hf_state(14))
    assert notes(tmp_path)[0].startswith("read from trainer_state.json, not from checkpoint-40/")
    assert "and 1 more: taken" in notes(tmp_path)[0]


@pytest.mark.parametrize("top", [False, True])
def test_the_console_that_saw_the_end_goes_before_a_state_of_before(
    top: bool, tmp_path: Path
) -> None:
    """The last checkpoint knows nothing of the NaN that came after it."""
    output_folder(tmp_path)
    if top:
        (tmp_path / "trainer_state.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(160, bad_from=130, end=TRACE))
    run = load_run(tmp_path)
    assert run.steps.source_format == "hf-stdout"
    assert run.steps.step[-1] == 160
    assert math.isnan(run.steps["loss"][-1])
    assert notes(tmp_path)[0].startswith("read from train.log, not from ")


def test_of_two_that_reach_as_far_the_one_that_tells_of_the_end_is_taken(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(hf_state(12))
    (tmp_path / "train.log").write_text(console(120))
    assert load_run(tmp_path).steps.source_format == "hf-trainer-state"
    (tmp_path / "train.log").write_text(console(120, end=TRACE))
    assert load_run(tmp_path).steps.source_format == "hf-stdout"


def test_a_view_that_cannot_be_read_is_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "trainer_state.json").write_text(hf_state(12))
    (tmp_path / "events.out.tfevents.1.host").write_bytes(b"\x18" + bytes(11) + b"brain.Event:2")
    assert load_run(tmp_path).steps.source_format == "hf-trainer-state"


def test_large_event_files_are_not_read_beside_another_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer_state.json").write_text(hf_state(12))
    events = tmp_path / "events.out.tfevents.1.host"
    events.write_bytes(b"\x18" + bytes(11) + b"brain.Event:2")
    os.truncate(events, 9 << 20)
    read: list[Path] = []

    def noted(sources: Sequence[Path], reading: Reading) -> StepTable:
        read.extend(sources)
        return read_foreign(sources, reading)

    monkeypatch.setattr(directory_logs, "read_foreign", noted)
    assert load_run(tmp_path).steps.source_format == "hf-trainer-state"
    assert events not in read


def test_logs_in_folders_below_are_looked_at_where_there_is_none_above(tmp_path: Path) -> None:
    below = tmp_path / "version_0"
    below.mkdir()
    (below / "metrics.csv").write_text(SAMPLES["lightning-csv"])
    assert load_run(tmp_path).steps.source_format == "lightning-csv"
    assert notes(tmp_path)[0] == "read from version_0/metrics.csv"
    (tmp_path / "train.jsonl").write_text(JSONL)
    assert load_run(tmp_path).steps.source_format == "jsonl"


def test_a_refusal_names_no_copies_of_older_checkpoints(tmp_path: Path) -> None:
    output_folder(tmp_path)
    (tmp_path / "other.jsonl").write_text(JSONL)
    with pytest.raises(InputError) as caught:
        load_run(tmp_path)
    assert caught.value.what == (
        "holds 2 logs read as 2 formats: other.jsonl, checkpoint-120/trainer_state.json"
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("train.log", True),
        ("train.log.1", True),
        ("train.log.2.gz", True),
        ("train.log-20240301", True),
        ("log.jsonl.zst", True),
        ("slurm-4711.out", True),
        ("slurm-4711", True),
        ("nohup", True),
        ("nohup.out", True),
        ("train_log", True),
        ("job.o123456", True),
        ("METRICS.CSV", True),
        ("events.out.tfevents.170.host.1.0", True),
        ("model.safetensors", False),
        ("pytorch_model.bin", False),
        ("train.py", False),
        ("blog.html", False),
        ("README", False),
        ("optimizer.pt", False),
        ("picture.png.1", False),
    ],
)
def test_names_of_logs(name: str, told: bool) -> None:
    assert is_log_name(name) is told
