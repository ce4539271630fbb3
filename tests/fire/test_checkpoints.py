"""Checkpoints that are cut off, bombs, or by a stranger: each reader refuses them in one line."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.cli import main
from forensics.errors import InputError
from forensics.record.checkpoints import load_checkpoint
from forensics.runlog import snapshot_writer
from forensics.runlog.manifest import read_manifest
from forensics.runlog.params import ParamWriter
from tests.fire.limits import limited
from tests.fire.test_kill import Rows, rows
from tests.fire.training import GROUP, record
from tests.unit.replay.saved_states.test_hostile_files import rewritten

STEPS = 12
LAST = "step-00000012.pt"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, with checkpoints before steps 0, 4, 8 and 12."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert record(str(run), {"steps": STEPS}) == 0
    # Its parts are small, and a later test of this process has those it expects.
    assert len(list((run / "params").iterdir())) > 1
    with ParamWriter(run.parent / "params") as writer:
        assert writer.group == snapshot_writer.GROUP != GROUP
    return run


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "run")


def truth(whole: Path) -> Rows:
    return rows(whole)


def cuts(data: bytes) -> Iterator[tuple[str, bytes]]:
    """The file damaged at a boundary of each class."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        largest = max(archive.infolist(), key=lambda record: record.file_size)
        directory = archive.start_dir
    header = largest.header_offset
    within = header + 30 + len(largest.filename) + largest.file_size // 2
    end = data.rindex(b"PK\x05\x06")
    yield "empty", b""
    yield "one byte", data[:1]
    yield "within the first local header", data[:17]
    yield "within a local header", data[: header + 11]
    yield "within a tensor", data[:within]
    yield "at the central directory", data[:directory]
    yield "within the central directory", data[: (directory + end) // 2]
    yield "at the end record", data[:end]
    yield "within the end record", data[: end + 9]
    yield "less one byte", data[:-1]
    yield "a NUL tail instead of its second half", data[: len(data) // 2] + bytes(len(data) // 2)
    yield "only NULs", bytes(len(data))
    yield "the end record alone", data[end:]


CUTS = [name for name, _ in cuts((lambda b: (torch.save({}, b), b.getvalue())[1])(io.BytesIO()))]


@pytest.mark.parametrize("name", CUTS)
def test_cut_off(name: str, run: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "checkpoints" / LAST
    path.write_bytes(dict(cuts(path.read_bytes()))[name])
    refused_everywhere(run, path, capsys)
    resumes_before_it(run, whole, capsys)


def test_what_follows_the_end_changes_nothing(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "checkpoints" / LAST
    for tail in (b"\0", b"garbage" * 100):
        path.write_bytes((whole / "checkpoints" / LAST).read_bytes() + tail)
        code = main(["inspect", str(path)])
        said = capsys.readouterr()
        assert code == 0 or len(said.err.splitlines()) == 1
        with suppress(InputError):
            assert load_checkpoint(path)["step"] == STEPS


def refused_everywhere(run: Path, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with limited():
        with pytest.raises(InputError, match="is no readable checkpoint") as caught:
            load_checkpoint(path)
        assert len(caught.value.line()) < 400
        assert main(["inspect", str(path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(path) in line
    with limited():
        assert main(["bisect", "--ckpt-dir", str(run / "checkpoints"), "--format", "json"]) == 0
    bisection = json.loads(capsys.readouterr().out)["bisection"]
    verdicts = {entry["step"]: entry["verdict"] for entry in bisection["checkpoints"]}
    assert verdicts[STEPS] == "untestable"
    assert verdicts[0] == "good"


def resumes_before_it(run: Path, whole: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A resume says that it takes the checkpoint before, and ends as if nothing had been."""
    with limited():
        assert record(str(run), {"steps": STEPS, "resume": True}) == 0
    assert "trying the one before it" in capsys.readouterr().out
    assert rows(run) == truth(whole)
    assert read_manifest(run).segments[-1].start_step == 8


# -- by a stranger ----------------------------------------------------------------------------


class Harm:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


def compressed(path: Path) -> None:
    """A pickle that grows to a thousand times the file's size."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(64 << 20))
        archive.writestr("archive/version", "3")


def overlapping(path: Path) -> None:
    """Many names for the bytes of one record, as the bombs without recursion do it."""
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    largest = max(infos, key=lambda info: info.file_size)
    data = path.read_bytes()
    end = data.rindex(b"PK\x05\x06")
    entries = [
        struct.pack(
            "<4s6H3L5H2L", b"PK\x01\x02", 0, 0, 0, 0, 0, 0, largest.CRC, largest.file_size,
            largest.file_size, len(name), 0, 0, 0, 0, 0, largest.header_offset,
        ) + name
        for name in (b"archive/data/%d" % i for i in range(5000))
    ]  # fmt: skip
    directory = b"".join(entries)
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 5000, 5000, len(directory), end, 0)
    path.write_bytes(data[:end] + directory + tail)


def absurd_shape(path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(1000)}}, path)
    rewritten(path, lambda raw: raw.replace(struct.pack("<H", 1000), struct.pack("<H", 65000)))


def deep(path: Path) -> None:
    torch.save({"model": {"weight": torch.ones(2)}, "deep": 0}, path)

    def nested(raw: bytes) -> bytes:
        number = raw.index(b"K\x00", raw.index(b"deepq"))
        return raw[:number] + b"]" * 50_000 + b"a" * 49_999 + raw[number + 2 :]

    rewritten(path, nested)


def running_code(path: Path) -> None:
    torch.save({"model": Harm(path.with_name("ran"))}, path)


def plain_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Harm(path.with_name("ran"))))


BOMBS: list[Callable[[Path], None]] = [
    compressed, overlapping, absurd_shape, running_code, plain_pickle
]  # fmt: skip


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs(
    bomb: Callable[[Path], None], run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "checkpoints" / LAST
    bomb(path)
    (run / "checkpoints" / LAST.replace(".pt", ".health.json")).unlink()
    refused_everywhere(run, path, capsys)
    resumes_before_it(run, whole, capsys)
    assert not path.with_name("ran").exists()


def test_a_state_nested_without_end(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / "checkpoints" / LAST
    deep(path)
    with limited():
        assert main(["inspect", str(path)]) == 2
        assert record(str(run), {"steps": STEPS, "resume": True}) == 2
    inspected, resumed = capsys.readouterr().err.splitlines()
    assert "nested more deeply" in inspected
    assert "is no checkpoint that this version can resume from" in resumed


def test_one_number_that_claims_to_be_a_terabyte(
    run: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "checkpoints" / LAST
    state = load_checkpoint(path)
    state["ema"]["shadow"] = {"0.weight": torch.ones(1).expand(1 << 40)}
    torch.save(state, path)
    with limited(), pytest.raises(InputError, match=r"claims 4,398,046,5\d\d,\d+ bytes of tensors"):
        load_checkpoint(path)
    with limited():
        assert main(["inspect", str(path)]) == 0  # what it repeats is looked at once
    resumes_before_it(run, whole, capsys)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.clear(),
        lambda state: state.update(format="other"),
        lambda state: state.update(version="x"),
        lambda state: state.pop("model"),
        lambda state: state.pop("rng"),
        lambda state: state.update(optimizers=None),
        lambda state: state.update(alarm=None),
        lambda state: state.update(checkpoints=[1]),
        lambda state: state["rng"]["python"].update(words=[2**80]),
        lambda state: state["rng"].update(torch=torch.zeros(3)),
        lambda state: state["model"].update({"0.weight": torch.ones(1).expand(16, 8)[:, :7]}),
    ],
)
def test_a_state_that_makes_no_sense_is_one_line(
    change: Callable[[dict[str, Any]], Any], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run / "checkpoints" / LAST
    state = load_checkpoint(path)
    change(state)
    torch.save(state, path)
    before = rows(run)
    assert record(str(run), {"steps": STEPS, "resume": True}) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert LAST in line
    assert rows(run) == before
