"""Reading a log again as it grows: whole lines, its last part, restarts."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Severity
from forensics.errors import InputError
from forensics.runlog.growing import HEAD, GrowingLog
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_run
from tests.unit.runlog.importers.line_logs import megatron
from tests.unit.runlog.importers.samples import FILES, SAMPLES, hf_state


def healthy(first: int, last: int, total: int = 100_000) -> str:
    return "".join(
        megatron(s, loss=f"{2 + 8 / (1 + s / 50):.6E}", norm=f"{0.7 + s % 7 / 20:.3f}", total=total)
        for s in range(first, last + 1)
    )


def test_it_has_changed_when_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = GrowingLog(path, Reading())
    assert not log.changed()
    path.write_text(healthy(1, 3))
    assert log.changed()
    assert not log.changed()
    with path.open("a") as file:
        file.write(healthy(4, 4))
    assert log.changed()
    assert not log.restarted


def test_an_unfinished_line_is_left_until_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(healthy(1, 9) + megatron(10)[:-1])
    log = GrowingLog(path, Reading())
    assert log.load().steps.step[-1] == 9
    run = log.load(ended=True)
    assert run.steps.step[-1] == 10
    assert run.path == path


def test_a_long_log_is_read_by_its_beginning_and_its_end(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(healthy(1, 6000))
    log = GrowingLog(path, Reading(), window=64 << 10)
    assert path.stat().st_size > 2 * HEAD
    assert len(log.load().steps) == 6000
    with path.open("a") as file:
        file.write(healthy(6001, 6010))
    run = log.load()
    step = run.steps.step
    assert step[-1] == 6010
    assert (np.diff(step[-100:]) == 1).all()
    assert 100 < len(step) < 1000
    findings = diagnose(run).findings
    assert [f.message for f in findings if f.severity >= Severity.WARNING] == []
    with path.open("a") as file:
        file.write("".join(megatron(s, loss="") for s in range(6011, 6014)))
    bad = [f for f in diagnose(log.load()).findings if f.rule == "nonfinite-loss"]
    assert [f.first_step for f in bad] == [6011]


@pytest.mark.parametrize("change", ["cut", "replaced", "cut and grown"])
def test_it_notices_that_it_begins_anew(tmp_path: Path, change: str) -> None:
    path = tmp_path / "a.log"
    path.write_text(healthy(1, 100))
    log = GrowingLog(path, Reading())
    assert log.changed()
    if change == "cut":
        path.write_text(healthy(1, 2))
    elif change == "replaced":
        other = tmp_path / "b.log"
        other.write_text(healthy(2, 101))
        os.replace(other, path)
    else:
        path.write_text(healthy(2, 400))
    assert log.changed()
    assert log.restarted
    assert log.changed() is False


def test_a_log_that_is_copied_from_elsewhere_again_and_again_is_one(tmp_path: Path) -> None:
    path, other = tmp_path / "a.log", tmp_path / "b.log"
    log = GrowingLog(path, Reading())
    for last in (100, 120, 400):
        other.write_text(healthy(1, last))
        os.replace(other, path)
        assert log.changed()
        assert not log.restarted
        assert log.load().steps.step[-1] == last


def test_a_document_that_is_written_anew_each_time_is_one(tmp_path: Path) -> None:
    path, other = tmp_path / "trainer_state.json", tmp_path / "b.json"
    log = GrowingLog(path, Reading())
    for rows in (4, 9):
        other.write_text(f'{{"epoch": {rows}, ' + hf_state(rows).lstrip("{"))
        os.replace(other, path)
        assert log.changed()
        assert not log.restarted
        assert log.load().steps.step[-1] == 10 * rows


def test_it_is_said_to_be_gone_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(healthy(1, 10))
    log = GrowingLog(path, Reading())
    assert log.changed()
    path.unlink()
    assert not log.changed()
    assert log.gone
    path.write_text(healthy(1, 20))
    assert log.changed()
    assert not log.gone
    assert not log.restarted


def test_a_large_log_is_copied_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    path.write_text(healthy(1, 6000) + megatron(6001)[:-30])
    log = GrowingLog(path, Reading(), window=64 << 10)
    monkeypatch.setattr(tempfile, "mkdtemp", lambda *a, **k: pytest.fail("a copy"))
    assert log.load().steps.step[-1] == 6000
    assert len(log.load().steps) < 1000
    assert log.load(ended=True).steps.step[-1] == 6001


def test_the_line_of_the_end_is_not_told_where_a_part_was_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text(healthy(1, 6000) + "Killed\n")
    log = GrowingLog(path, Reading(), window=64 << 10)
    lines = [facts.ended_line for _ in range(2) if (facts := log.load().steps.facts) is not None]
    assert lines == [6001, None]


def test_an_archive_that_is_being_written_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.log.gz"
    path.write_bytes(gzip.compress(healthy(1, 60).encode())[:-20])
    log = GrowingLog(path, Reading())
    assert "torn-gzip" not in {repair.kind for repair in log.load().repairs}
    assert "torn-gzip" in {repair.kind for repair in log.load(ended=True).repairs}


def test_other_kinds_are_read_whole(tmp_path: Path) -> None:
    packed = tmp_path / "a.log.gz"
    packed.write_bytes(gzip.compress(healthy(1, 20).encode()))
    assert len(GrowingLog(packed, Reading()).load().steps) == 20
    state = tmp_path / "trainer_state.json"
    state.write_text(SAMPLES["hf-trainer-state"])  # no newline at its end
    assert GrowingLog(state, Reading()).load().steps.source_format == "hf-trainer-state"
    folder = tmp_path / "run"
    folder.mkdir()
    log = GrowingLog(folder, Reading())
    (folder / "train.log").write_text(healthy(1, 20))
    assert log.changed()
    assert len(log.load().steps) == 20


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_a_log_of_any_format_is_read_while_it_is_written(name: str, tmp_path: Path) -> None:
    """But for a last line that may go on: documents have none."""
    path = tmp_path / FILES.get(name, "it.log")  # of some formats the name tells what it is of
    for text in (SAMPLES[name], SAMPLES[name].rstrip("\n")):
        path.write_text(text)
        expected, steps = load_run(path).steps, GrowingLog(path, Reading()).load().steps
        assert steps.source_format == expected.source_format
        assert len(expected) - 1 <= len(steps) <= len(expected)


def test_a_document_without_a_line_end_is_read_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "history.json"
    path.write_text(json.dumps({"loss": [3.0, 2.0, 1.5], "val_loss": [3.1, 2.2, 1.6]}))
    assert len(GrowingLog(path, Reading()).load().steps) == 3


def test_errors_name_the_log_and_not_the_copy(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("hello\n")
    with pytest.raises(InputError) as error:
        GrowingLog(path, Reading()).load()
    assert error.value.where == str(path)
