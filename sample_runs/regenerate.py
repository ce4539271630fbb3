"""Record the sample runs anew: ``python sample_runs/regenerate.py [NAME…]``.

Everything but times, versions and the commit is the same each time on the same machine. Another
processor or torch computes other last bits, which no expectation depends on. The ``expected.json``
of a run is written by hand and left alone.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from forensics.cli import main
from forensics.errors import ExitCode

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Sample:
    """One run: what ``forensics record`` is given, and how it must exit.

    Attributes:
        name: of the directory; the recipe's name unless ``recipe`` says otherwise.
        options: of the verb; snapshots are few, so that all runs together stay small.
        recipe: where it differs from the name.
        resumed: further options of a second part, which resumes the first.
        exit_code: what the recording must end with.
    """

    name: str
    options: str = ""
    recipe: str = ""
    resumed: str = ""
    exit_code: int = ExitCode.DONE


SAMPLES = (
    Sample("healthy-fp16", "--steps 620 --snapshot-every 200"),
    Sample("healthy-gpt", "--steps 200"),
    Sample("healthy-resumed", "--steps 70", "healthy-mlp", "--steps 140"),
    Sample("inf-gradient"),
    Sample("bad-sample"),
    Sample("target-spike", "--steps 150 --snapshot-every 50"),
    Sample("where-trap", "--snapshot-every 20"),
    Sample("nan-applied", "--snapshot-every 20"),
    Sample("vanishing", "--steps 300 --snapshot-every 40"),
    Sample("batchnorm-poisoned", "--snapshot-every 10"),
    Sample("lr-too-high", "--steps 120 --snapshot-every 20"),
    Sample("clip-every-step", "--steps 340"),
    Sample("clip-before-unscale", "--steps 240"),
    Sample("fp16-overflow", "--steps 240"),
    Sample("scaler-oscillation", "--steps 300"),
    Sample("scaler-frozen", "--steps 160"),
    Sample("update-forgotten", exit_code=ExitCode.TRAINING_RAISED),
)


def record(sample: Sample, home: Path = HERE) -> None:
    """Record one sample run into ``home``; SystemExit where it does not end as it must."""
    out = home / sample.name
    command = f"record {sample.recipe or sample.name} --device cpu --keep last:1 {sample.options}"
    if not sample.resumed:
        command += " --checkpoint-every 0"
    code = main([*command.split(), "--out", str(out), "--overwrite"])
    if sample.resumed and code == sample.exit_code:
        command += f" {sample.resumed} --resume"
        code = main([*command.split(), "--out", str(out)])
    if code != sample.exit_code:
        raise SystemExit(f"{sample.name}: exit code {code}, not {sample.exit_code}")
    shutil.rmtree(out / "checkpoints", ignore_errors=True)  # large, and no report reads the states


if __name__ == "__main__":
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for entry in SAMPLES:
        if not wanted or entry.name in wanted:
            record(entry)
