"""What looking into a saved state costs: time beside plainly reading the file, and memory.

One state (parameters and two moments, AdamW) is written a format each; every look runs in a fresh
process, warm files first read once. Memory is the process's own (anonymous) beyond what it had
with everything imported: mapped pages of the file are the kernel's to take back.

    python benchmarks/inspect_speed.py [--megabytes 64] [--repeats 3] [--formats torch safetensors]

The files lie in a temporary folder (``--folder`` chooses where) and are removed at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Goal, Result, Table

WIDTH = 2048
FORMATS = ("torch", "bfloat16", "nonfinite", "safetensors", "distributed")

LOOK = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import forensics.cli.inspect
from forensics.replay.checkpoint_health import examine_state

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(l.split()[1]) for l in lines if l.startswith("RssAnon")), 0)

class Peak:
    value = 0
    def __call__(self, seen, total):
        self.value = max(self.value, anonymous())

examine_state(Path(sys.argv[2]))
before, peak = anonymous(), Peak()
start = time.perf_counter()
health = examine_state(Path(sys.argv[1]), progress=peak)
seconds = time.perf_counter() - start
print(seconds, max(peak.value - before, 0) / 1024, len(health.bad))
"""

READ = """
import sys, time
from pathlib import Path
root = Path(sys.argv[1])
files = [p for p in root.rglob("*") if p.is_file()] if root.is_dir() else [root]
buffer = bytearray(16 << 20)
start = time.perf_counter()
for path in files:
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
print(time.perf_counter() - start, 0, 0)
"""


def state_of(megabytes: int, dtype: torch.dtype) -> dict[str, Tensor]:
    """Named tensors of so many megabytes: weights and both moments."""
    rows = megabytes * 1_000_000 // (dtype.itemsize * WIDTH * 3)
    names = [f"layers.{i}.{part}" for i in range(24) for part in ("weight", "m", "v")]
    return {name: torch.rand(max(rows // 24, 1), WIDTH).to(dtype) for name in names}


def nested(tensors: dict[str, Tensor]) -> dict[str, object]:
    """The tensors as a training saves them."""
    weights = {name: value for name, value in tensors.items() if name.endswith("weight")}
    state = {
        i: {"exp_avg": tensors[name[:-6] + "m"], "exp_avg_sq": tensors[name[:-6] + "v"]}
        for i, name in enumerate(weights)
    }
    groups = [{"lr": 1e-3, "params": list(state)}]
    return {"model": weights, "optimizer": {"state": state, "param_groups": groups}, "step": 1}


def write_torch(path: Path, megabytes: int) -> None:
    """float32, all finite."""
    torch.save(nested(state_of(megabytes, torch.float32)), path)


def write_bfloat16(path: Path, megabytes: int) -> None:
    """The same in bfloat16."""
    torch.save(nested(state_of(megabytes, torch.bfloat16)), path)


def write_nonfinite(path: Path, megabytes: int) -> None:
    """Everything NaN: every tensor is looked at twice."""
    tensors = state_of(megabytes, torch.float32)
    torch.save(nested({name: value.fill_(float("nan")) for name, value in tensors.items()}), path)


def write_safetensors(path: Path, megabytes: int) -> None:
    """The format of the ``safetensors`` package, which need not be installed."""
    tensors = state_of(megabytes, torch.float32)
    header, at = {}, 0
    for name, value in tensors.items():
        end = at + value.nbytes
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for value in tensors.values():
            file.write(value.numpy().tobytes())


def write_distributed(path: Path, megabytes: int) -> None:
    """A folder of torch.distributed.checkpoint."""
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state_of(megabytes, torch.float32)), checkpoint_id=path)


WRITERS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "torch": ("state.pt", write_torch),
    "bfloat16": ("half.pt", write_bfloat16),
    "nonfinite": ("bad.pt", write_nonfinite),
    "safetensors": ("state.safetensors", write_safetensors),
    "distributed": ("distributed", write_distributed),
}


def run(code: str, *arguments: str) -> tuple[float, float, int]:
    """Seconds, MiB and bad values that a fresh process printed."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    seconds, memory, bad = done.stdout.split()
    return float(seconds), float(memory), int(bad)


def measure(path: Path, small: Path, repeats: int) -> tuple[float, float, float, int]:
    """Medians of reading and looking in seconds, the largest memory in MiB, and bad values."""
    run(READ, str(path))  # into the page cache
    pairs = [(run(READ, str(path)), run(LOOK, str(path), str(small))) for _ in range(repeats)]
    reading = statistics.median(read[0] for read, _ in pairs)
    looking = statistics.median(look[0] for _, look in pairs)
    return reading, looking, max(look[1] for _, look in pairs), pairs[0][1][2]


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    return sum(p.stat().st_size for p in files)


def measure_formats(
    megabytes: int, repeats: int, formats: Sequence[str], at: str | None = None
) -> Result:
    """A row a format; the goals are those of the slowest and of the greediest."""
    rows, shares, most = [], [], []
    for name in formats:
        with tempfile.TemporaryDirectory(dir=at) as folder:
            file, write = WRITERS[name]
            path, small = Path(folder) / file, Path(folder) / "small.pt"
            torch.save({"model": {"weight": torch.ones(8)}}, small)
            write(path, megabytes)
            reading, looking, memory, bad = measure(path, small, repeats)
            size = size_of(path)
        shares.append(reading / looking)
        most.append(memory)
        speeds = (f"{size / seconds / 1e9:.2f} GB/s" for seconds in (reading, looking))
        told = (f"{size / 1e6:,.0f} MB", *speeds, f"×{reading / looking:.2f}")
        rows.append((name, *told, f"{memory:.1f} MiB", str(bad)))
    head = ("state", "size", "reading", "inspecting", "inspecting ÷ reading speed", "own memory")
    goals = (
        Goal("slowest look ÷ reading speed", "≥ ×0.5", f"×{min(shares):.2f}", min(shares) >= 0.5),
        Goal("own memory of a look", "≤ 500 MiB", f"{max(most):.1f} MiB", max(most) <= 500),
    )
    return Result((Table((*head, "bad tensors"), tuple(rows)),), goals)


def measure_all(quick: bool) -> Result:
    """For the page."""
    return measure_formats(20, 1, FORMATS) if quick else measure_formats(2_000, 3, FORMATS)


def main() -> None:
    """Measure and print a line for each format."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--folder", help="where the files lie meanwhile")
    chosen = parser.parse_args()
    for table in measure_formats(
        chosen.megabytes, chosen.repeats, chosen.formats, chosen.folder
    ).tables:
        print(table.markdown())


if __name__ == "__main__":
    main()
