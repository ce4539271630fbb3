"""Small runs to lay into a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from forensics.runlog.params import ParamWriter

ROWS = 60


def write_run(directory: Path, *, bad_from: int = 1000, rows: int = ROWS, names: int = 3) -> Path:
    """A run with a log, a manifest, snapshots, and a checkpoint with its health."""
    directory.mkdir(parents=True)
    cells = [
        f"{i},{'nan' if i >= bad_from else 3 - i / 100},{int(i >= bad_from)}" for i in range(rows)
    ]
    (directory / "steps.csv").write_text("\n".join(["step,loss,skipped", *cells]) + "\n")
    (directory / "run.json").write_text('{"schema_version": 1, "max_norm": 1.0}')
    with ParamWriter(directory / "params", group=2) as writer:
        for step in range(0, 6):
            subjects = [f"layer{i}.weight" for i in range(names)]
            writer.append(step, subjects, "param", {"grad_l2": np.linspace(1, 2, names)})
    checkpoints = directory / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "step-00000040.pt").write_bytes(b"PK\x03\x04" + bytes(3_000_000))
    (checkpoints / "step-00000040.health.json").write_text('{"healthy": true}')
    return directory


def twins(scheme: str, name: str) -> tuple[Path, str]:
    """A path below the current folder and a URI as long and as short, so that lines break alike."""
    bucket = f"{scheme}://bucket"
    return Path("r" * len(bucket)) / name, f"{bucket}/{name}"
