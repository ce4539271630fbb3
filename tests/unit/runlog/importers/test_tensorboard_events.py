from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from forensics.errors import ForensicsError, MissingExtraError
from forensics.runlog.run import load_run

pytest.importorskip("tensorboard")


def write(folder: Path, scalars: list[tuple[int, str, float]], suffix: str = "") -> Path:
    """An event file as PyTorch's SummaryWriter writes it."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    folder.mkdir(exist_ok=True)
    writer = EventFileWriter(str(folder), filename_suffix=suffix)
    for step, tag, value in scalars:
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        writer.add_event(Event(step=step, wall_time=1e9 + step, summary=summary))
    writer.close()
    return max(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)


def run_of(steps: range, bad: int = -1) -> list[tuple[int, str, float]]:
    return [
        (step, tag, float("nan") if step == bad else value)
        for step in steps
        for tag, value in (("train/loss", 2.0), ("train/grad_norm", 1.5))
    ]


def test_tags_become_columns(tmp_path: Path) -> None:
    table = load_run(write(tmp_path / "tb", run_of(range(0, 50, 10), bad=30))).steps
    assert table.source_format == "tensorboard"
    assert table.step.tolist() == [0, 10, 20, 30, 40]
    assert np.isnan(table["loss"]).tolist() == [False, False, False, True, False]
    assert table["grad_l2_pre_clip"][0] == 1.5
    assert table.interval == 10


def test_tensors_of_tensorflow_2_are_read(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter
    from tensorboard.util.tensor_util import make_tensor_proto

    writer = EventFileWriter(str(tmp_path))
    for step in range(3):
        tensor = make_tensor_proto(np.float32(2.0 - step / 2))
        value = Summary.Value(tag="epoch_loss", tensor=tensor)
        writer.add_event(Event(step=step, wall_time=1e9, summary=Summary(value=[value])))
    writer.close()
    table = load_run(next(tmp_path.iterdir())).steps
    assert table["loss"].tolist() == [2.0, 1.5, 1.0]


def test_files_of_a_restarted_run_in_a_directory_are_joined(tmp_path: Path) -> None:
    write(tmp_path / "tb", run_of(range(0, 60)), ".1")
    write(tmp_path / "tb", [(s, "train/loss", 1.0) for s in range(40, 90)], ".2")
    run = load_run(tmp_path / "tb")
    assert run.steps.step.tolist() == list(range(90))
    assert run.steps["loss"][39] == 2.0
    assert run.steps["loss"][40] == 1.0
    assert run.superseded[0].step.tolist() == list(range(40, 60))


def test_the_end_that_was_not_written_is_left_out(tmp_path: Path) -> None:
    path = write(tmp_path / "tb", run_of(range(100)))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    assert 50 < len(load_run(path).steps) < 100


@pytest.mark.parametrize("at", [12, 60, 200])
def test_a_damaged_file_is_an_error_or_a_shorter_table(tmp_path: Path, at: int) -> None:
    path = write(tmp_path / "tb", run_of(range(40)))
    data = bytearray(path.read_bytes())
    data[at : at + 20] = b"\xff" * 20
    path.write_bytes(bytes(data))
    try:
        assert len(load_run(path).steps) < 40
    except ForensicsError as error:
        assert error.where == str(path)  # noqa: PT017 - either outcome is right


def test_the_folder_of_the_training_is_read_beside_that_of_the_validation(tmp_path: Path) -> None:
    write(tmp_path / "train", [(s, "epoch_loss", 2.0) for s in range(12)])
    write(tmp_path / "validation", [(s, "epoch_loss", 9.0) for s in range(12)])
    assert (load_run(tmp_path).steps["loss"] == 2.0).all()


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "tb", run_of(range(3)))
    for name in [name for name in sys.modules if name.split(".")[0] == "tensorboard"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtraError, match=r"pip install tensorboard"):
        load_run(path)
