"""Where foreign logs come from: compressed, piped, joined, in a directory; and what is refused."""

from __future__ import annotations

import gzip
import io
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forensics.errors import InputError, UsageError
from forensics.runlog.importers import IMPORTERS
from forensics.runlog.reading import Reading
from forensics.runlog.run import load_joined, load_run
from tests.unit.runlog.importers.samples import SAMPLES, lines_of

JSONL = SAMPLES["jsonl"]


def stdin_of(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    stream = io.TextIOWrapper(io.BytesIO(data))
    monkeypatch.setattr(sys, "stdin", stream)


def test_compressed_logs_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    plain, packed, zstd = (tmp_path / name for name in ("a.log", "b.log", "c.log"))
    plain.write_text(JSONL)
    packed.write_bytes(gzip.compress(JSONL.encode()))
    with pa.CompressedOutputStream(str(zstd), "zstd") as file:
        file.write(JSONL.encode())
    expected = load_run(plain).steps["loss"]
    for path in (packed, zstd):
        np.testing.assert_array_equal(load_run(path).steps["loss"], expected)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    stdin_of(monkeypatch, SAMPLES["hf-stdout"].encode())
    run = load_run("-")
    assert str(run.path) == "-"
    assert run.steps.source_format == "hf-stdout"


@pytest.mark.parametrize("data", [b"", b"no log at all\n", b'{"a": 1}\n'])
def test_standard_input_without_a_log_is_named(
    data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdin_of(monkeypatch, data)
    with pytest.raises(InputError) as caught:
        load_run("-")
    assert caught.value.where == "standard input"


def test_a_pipe_is_read_once_and_whole(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(JSONL))
    writer.start()
    steps = load_run(pipe).steps
    writer.join()
    assert len(steps) == 12


@pytest.mark.skipif(not os.path.isdir("/dev/fd"), reason="no pipes by number here")
def test_a_pipe_by_its_number_is_read_once_and_waited_for() -> None:
    """As a shell gives it for ``<(zcat train.log.gz)``."""
    reading, writing = os.pipe()

    def write() -> None:
        time.sleep(0.3)
        with os.fdopen(writing, "w") as file:
            file.write(SAMPLES["openmmlab-text"])

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert load_run(f"/dev/fd/{reading}").steps.source_format == "openmmlab-text"
    finally:
        writer.join()
        os.close(reading)


def test_files_of_one_run_are_joined(tmp_path: Path) -> None:
    lines = JSONL.splitlines(keepends=True)
    (tmp_path / "one.jsonl").write_text("".join(lines[:7]))
    (tmp_path / "two.jsonl").write_text("".join(lines[7:]))
    run = load_joined([tmp_path / "one.jsonl", tmp_path / "two.jsonl"])
    assert run.steps.step.tolist() == list(range(12))
    assert not run.superseded


def test_csv_files_are_joined(tmp_path: Path) -> None:
    lines = SAMPLES["csv"].splitlines(keepends=True)
    (tmp_path / "one.csv").write_text("".join(lines[:7]))
    (tmp_path / "two.csv").write_text("".join([lines[0], *lines[7:]]))
    run = load_joined([tmp_path / "one.csv", tmp_path / "two.csv"])
    assert run.steps.step.tolist() == list(range(12))


def test_the_named_format_goes_before_what_the_file_looks_like(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(lines_of([{"current_steps": 1, "total_steps": 3, "loss": 2.0}]))
    assert load_run(path).steps.source_format == "llama-factory"
    assert load_run(path, Reading(format_in="jsonl")).steps.source_format == "jsonl"


def test_a_mapping_names_columns(tmp_path: Path) -> None:
    path = tmp_path / "m.csv"
    path.write_text("n,quality,size\n1,3.0,0.5\n2,2.5,0.6\n")
    steps = load_run(
        path, Reading(mapping={"step": "n", "loss": "quality", "grad_l2_pre_clip": "size"})
    ).steps
    assert steps.step.tolist() == [1, 2]
    assert steps["loss"].tolist() == [3.0, 2.5]
    assert steps["grad_l2_pre_clip"].tolist() == [0.5, 0.6]


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        (Reading(format_in="megatrom"), "called 'megatrom'; did you mean megatron-lm"),
        (Reading(format_in="Hugging-Face"), "did you mean hf-trainer-state or hf-stdout"),
        (Reading(format_in="yolo"), "did you mean ultralytics-csv"),
        (
            Reading(format_in="???"),
            r"called '\?\?\?'; `forensics convert --formats` lists all \d+$",
        ),
        (Reading(mapping={"loss": "nowhere"}), "the log has no 'nowhere'"),
        (Reading(mapping={"lossy": "loss"}), "'lossy' is no column of the step table"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, reading: Reading, said: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(JSONL)
    with pytest.raises(UsageError, match=said):
        load_run(path, reading)


def test_the_choice_and_its_reason_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(JSONL)
    facts = load_run(path).steps.facts
    assert facts is not None
    assert facts.confidence < 0.9
    assert "loss" in facts.reason


def test_our_own_log_loads_no_importer(tmp_path: Path) -> None:
    import subprocess

    path = tmp_path / "steps.csv"
    header = "step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale"
    path.write_text(f"{header}\n0,0.1,1.0,1.0,2.0,0,,1.0\n")
    code = (
        "import sys; from forensics.runlog.run import load_run; load_run(sys.argv[1]); "
        "sys.exit(any('importers' in name or 'scanner.' in name and 'forensics' in name "
        "for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False).returncode == 0
    other = tmp_path / "x.jsonl"
    other.write_text(JSONL)
    assert subprocess.run([sys.executable, "-c", code, str(other)], check=False).returncode == 1


def test_progress_is_told_up_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(JSONL)
    told: list[tuple[int, int]] = []
    load_run(path, Reading(progress=lambda done, total: told.append((done, total))))
    assert told[-1] == (path.stat().st_size, path.stat().st_size)


def test_every_format_is_in_the_documentation() -> None:
    text = (Path(__file__).parents[3] / "docs" / "other-logs.md").read_text()
    for importer in IMPORTERS:
        assert f"| `{importer.name}` | {importer.description} |" in text


@pytest.mark.parametrize(
    "text",
    [
        "Nothing was trained here.\n" * 30,
        "hello world\nthis is a note\n",
        "It is long, this sentence that nobody would call a column.\nAnd it goes on, too.\n",
        "[build-system]\nname = 'x'\n",
        "[1, 2]\n",
    ],
)
def test_a_text_that_is_no_log_is_called_so_and_told_what_was_looked_for(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        load_run(tmp_path / "notes.txt")
    assert "is no training log of a known kind: no line like" in caught.value.what
    assert f"it begins '{text[:5]}" in caught.value.what
    assert caught.value.hint is not None
    assert all(option in caught.value.hint for option in ("--format-in", "--map", "--formats"))


def test_bytes_are_called_binary_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    junk = np.random.default_rng(1).bytes(5000)
    stdin_of(monkeypatch, junk)
    with pytest.raises(InputError, match="is binary, not a log") as caught:
        load_run("-")
    assert caught.value.line().isascii()


@pytest.mark.parametrize("text", ["loss\n2.0\n1.5\n", "step,loss\n1,2.0,\n2,1.5,\n"])
def test_a_csv_that_is_a_little_odd_is_still_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text(text)
    assert load_run(tmp_path / "odd.csv").steps["loss"].tolist() == [2.0, 1.5]


def test_a_saved_state_is_called_one_and_says_who_reads_it(tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(b"PK\x03\x04" + bytes(40))
    with pytest.raises(InputError, match=r"is a saved state, not a log; `forensics inspect \S+x"):
        load_run(tmp_path / "x.pth")
    with pytest.raises(InputError, match=r"it holds saved states: `forensics inspect"):
        load_run(tmp_path)
    (tmp_path / "capsule.json").write_text("{}")
    with pytest.raises(InputError, match=r"it is a capsule: `forensics capsule run"):
        load_run(tmp_path)


def test_a_step_log_without_its_header_is_told_so(tmp_path: Path) -> None:
    log = tmp_path / "steps.csv"
    log.write_text("".join(f"{i},0.001,0.88,0.88,2.97,0,,65536.0\n" for i in range(9)))
    with pytest.raises(InputError, match="has no header line; it begins with"):
        load_run(log)
