"""Files that a stranger made to run code, to take memory or time, or to lead elsewhere."""

from __future__ import annotations

import json
import os
import pickle
import random
import resource
import struct
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from forensics.errors import InputError
from forensics.replay.bisection import State
from forensics.replay.checkpoint_health import examine_state, judge_state
from forensics.replay.saved_states import find_states, open_state
from tests.unit.replay.saved_states.states import (
    training_state,
    write_distributed,
    write_safetensors,
)

SECONDS = 120.0
"""For what takes milliseconds: a busy machine is no failure, an endless loop is."""
LINUX = sys.platform == "linux"
"""Elsewhere nothing enforces a limit of the address space."""
HEADROOM = 1 << 30
"""Bytes of address space beyond what is in use that a look may take."""


@contextmanager
def frugal() -> Iterator[None]:
    """Neither much memory nor much time: what asks for gigabytes gets a MemoryError here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    if LINUX:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, hard))
    start = time.perf_counter()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.perf_counter() - start < SECONDS


def refused(path: Path, reason: str = "") -> None:
    """The state is untestable, for one reason in one line."""
    with frugal():
        judgement = judge_state(path)
    assert judgement.state is State.UNTESTABLE
    assert reason in judgement.reason
    assert "\n" not in judgement.reason
    assert 0 < len(judgement.reason) < 300
    assert "more memory" not in judgement.reason


class Harm:
    """Unpickling it runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("new", [True, False])
def test_code_in_a_state_is_not_run(new: bool, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    state = {"model": {"weight": torch.ones(2)}, "extra": Harm(marker)}
    path = tmp_path / "a.pt"
    torch.save(state, path, _use_new_zipfile_serialization=new)
    refused(path, "would run posix.system")
    assert not marker.exists()
    torch.load(path, weights_only=False)
    assert marker.exists()  # the probe can fail


def test_code_in_distributed_metadata_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    folder = write_distributed(tmp_path / "dcp", {"model": {"weight": torch.ones(2)}})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data = Harm(marker)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(folder, "names posix.system, which has no business there")
    assert not marker.exists()


def test_code_in_a_side_file_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", {"weight": torch.ones(2)})
    (folder / "rng_state.pth").write_bytes(pickle.dumps(Harm(marker)))
    torch.save(Harm(marker), folder / "optimizer.pt")
    health = examine_state(folder)
    assert health.finite
    assert {"the optimizer's state", "the random generators"} <= set(health.missing)
    assert not marker.exists()


def saved(tmp_path: Path, kind: str) -> tuple[Path, Path]:
    """A state of a kind, and the file of it that is to be damaged."""
    if kind == "distributed":
        folder = write_distributed(tmp_path / "dcp", training_state())
        return folder, folder / "__0_0.distcp"
    if kind == "metadata":
        folder = write_distributed(tmp_path / "dcp", training_state())
        return folder, folder / ".metadata"
    path = tmp_path / f"a.{'safetensors' if kind == 'safetensors' else 'pt'}"
    if kind == "safetensors":
        write_safetensors(path, {"a": torch.ones(5), "b": torch.ones(2, 3)})
    else:
        torch.save(training_state(), path, _use_new_zipfile_serialization=kind == "torch")
    return path, path


KINDS = ["torch", "old", "safetensors", "distributed", "metadata"]


@pytest.mark.parametrize("kind", KINDS)
def test_cut_off_anywhere_it_is_untestable(kind: str, tmp_path: Path) -> None:
    path, file = saved(tmp_path, kind)
    whole = file.read_bytes()
    # A pickle of an old file is followed by the storages, and ends in a pickle of their keys.
    for length in {*range(0, len(whole), max(1, len(whole) // 30)), len(whole) - 1}:
        file.write_bytes(whole[:length])
        refused(path)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_anywhere_it_is_judged_or_untestable(kind: str, tmp_path: Path) -> None:
    path, file = saved(tmp_path, kind)
    whole = file.read_bytes()
    rng = random.Random(0)
    for _ in range(40):
        damaged = bytearray(whole)
        at = rng.randrange(len(damaged) - 8)
        number = rng.choice([0, 1, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 63, (1 << 64) - 1])
        damaged[at : at + 8] = rng.choice([struct.pack("<Q", number), rng.randbytes(8)])
        file.write_bytes(damaged)
        with frugal():
            judge_state(path)


def rewritten(path: Path, change: Callable[[bytes], bytes]) -> None:
    """Write the zip archive anew with another ``data.pkl``."""
    with zipfile.ZipFile(path) as archive:
        parts = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts:
            archive.writestr(name, change(content) if name.endswith("data.pkl") else content)


def test_a_tensor_of_terabytes_in_a_tiny_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"weight": torch.ones(1000)}}, path)
    rewritten(path, lambda raw: raw.replace(struct.pack("<H", 1000), struct.pack("<H", 65000)))
    refused(path, "declares a storage of 260,000 bytes, of which it has 4,000")


def test_a_stride_that_reaches_beyond_the_storage(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"weight": torch.ones(300, 300)[:3, :300]}}, path)
    # The size (3, 300) becomes (255, 300) in steps of 300, which is within; then of 60,000.
    stride = b"M" + struct.pack("<H", 300) + b"K\x01"
    rewritten(path, lambda raw: raw.replace(stride, b"M" + struct.pack("<H", 60000) + b"K\x01"))
    refused(path, "is damaged: a tensor of 900 elements lies on 90,000")


def test_a_million_views_of_one_storage(tmp_path: Path) -> None:
    base = torch.ones(100_000)
    path = tmp_path / "a.pt"
    torch.save({"model": {str(i): base[i:] for i in range(40)}}, path)
    refused(path, "bytes of tensors and has")


def test_a_zip_bomb(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(200 << 20))
    assert path.stat().st_size < 1 << 20
    refused(path, "holds a compressed record")


@pytest.mark.parametrize("depth", [200, 50_000])
def test_a_state_nested_without_end(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"model": {"weight": torch.ones(2)}, "deep": 0}, path)
    deep = b"]" * depth + b"a" * (depth - 1)

    def instead(raw: bytes) -> bytes:
        number = raw.index(b"K\x00", raw.index(b"deepq"))
        return raw[:number] + deep + raw[number + 2 :]

    rewritten(path, instead)
    refused(path, "nested more deeply than any training's state")


def test_a_state_that_holds_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {"model": {"weight": torch.tensor([1.0, float("nan")])}}
    state["self"] = state
    doubled: Any = [1.0]
    for _ in range(40):
        doubled = [doubled, doubled]  # 2^40 leaves
    state["doubled"] = doubled
    torch.save(state, tmp_path / "a.pt")
    with frugal():
        health = examine_state(tmp_path / "a.pt")
    assert [bad.name for bad in health.bad] == ["model.weight"]


def _of_dtype(dtype: str) -> bytes:
    header = json.dumps({"w": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (struct.pack("<Q", 1 << 63), "its header would have"),
        (struct.pack("<Q", 1 << 20), "cut off"),
        (struct.pack("<Q", 2) + b"[]", "damaged safetensors header"),
        (struct.pack("<Q", 4) + b"[[[[", "damaged safetensors header"),
        (struct.pack("<Q", 100_000) + b"[" * 100_000, "damaged safetensors header"),
        (b"\x00" * 7, "no safetensors file"),
        (_of_dtype("Q9"), "dtype 'Q9' is unknown"),
    ],
)
def test_headers_of_safetensors(header: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(header)
    refused(path, reason)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 1 << 50]},
        {"dtype": "F32", "shape": [1 << 60, 1 << 60], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [-2, -1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]},
        {"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2] * 100_000, "data_offsets": [0, 8]},
        {"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": [2], "data_offsets": [-8, 0]},
        {"dtype": "F32", "shape": [2]},
        "F32",
    ],
)
def test_entries_of_safetensors(entry: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    text = json.dumps({"a": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    refused(path)


def test_links_out_of_a_folder_are_not_followed(tmp_path: Path) -> None:
    torch.save(training_state(), tmp_path / "secret.pt")
    folder = tmp_path / "states"
    folder.mkdir()
    (folder / "step-1.pt").symlink_to(tmp_path / "secret.pt")
    (folder / "step-2.pt").symlink_to(folder / "step-2.pt")
    torch.save(training_state(), folder / "step-3.pt")
    (folder / "latest.pt").symlink_to("step-3.pt")
    refusals = {state.path.name: state.refused for state in find_states(folder)}
    assert refusals["step-1.pt"] == "leads out of its folder"
    assert "leads nowhere" in refusals["step-2.pt"]
    assert refusals["step-3.pt"] == refusals["latest.pt"] == ""
    assert judge_state(folder / "step-1.pt", root=folder).state is State.UNTESTABLE
    assert judge_state(folder / "step-1.pt").state is State.GOOD  # named by the user


def test_the_link_farm_of_the_hugging_face_cache_is_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    write_safetensors(blobs / "abc", {"weight": torch.ones(2)})
    (snapshot / "model.safetensors").symlink_to("../../blobs/abc")
    assert examine_state(snapshot).finite


def test_a_shard_that_is_a_link_elsewhere(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "secret", {"weight": torch.ones(2)})
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    (folder / "model.safetensors").symlink_to("../secret")
    refused(folder, "leads out of its folder")


@pytest.mark.parametrize("path", ["file", "..", "/etc/passwd", "a\0b", "../__0_0.distcp"])
def test_names_in_distributed_metadata(path: str, tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "dcp", {"weight": torch.ones(2)})
    (folder / "file").symlink_to(folder / "nowhere")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.relative_path = path
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(folder)


def test_sizes_in_distributed_metadata(tmp_path: Path) -> None:
    folder = write_distributed(tmp_path / "dcp", {"weight": torch.ones(2)})
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for info in metadata.storage_data.values():
        info.length = 1 << 50
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    refused(folder, "is cut off")


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step-1.pt")
    refused(tmp_path / "step-1.pt", "is no regular file")
    os.mkfifo(tmp_path / "step-1.health.json")
    refused(tmp_path / "step-1.pt", "is no regular file")


@pytest.mark.parametrize("name", ["missing.pt", "a\0b.pt", "a" * 5000])
def test_paths_that_cannot_be(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        open_state(tmp_path / name)


@pytest.mark.skipif(not LINUX, reason="no limit of the address space")
def test_the_limit_is_felt() -> None:
    with pytest.raises((MemoryError, RuntimeError)), frugal():
        bytearray(2 << 30)
