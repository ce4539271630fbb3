"""What a recording takes on disk, and what of it a ``kill -9`` loses.

*Bytes*: a GPT of 10 million parameters trains for real with a snapshot a step until a hundred are
together and compacted. A value is one statistic that was taken; the counts of non-finite elements,
nearly all 0, are values too, so the size is also told per value of the other statistics alone.

*Kill*: a process records an MLP and is killed at a random moment, several times. It notes each
finished step in shared memory; what was finished and is neither in the log nor in a snapshot, in
steps and in the seconds that they took, is lost.

    python benchmarks/record_disk.py [--kills 10]
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Goal, Result, Table
from benchmarks.record_step import MAX_NORM, gpt, loss_of, mlp
from forensics.record.recorder import Recorder
from forensics.record.train_step import AmpTrainState
from forensics.runlog.params import COUNTS, KINDS, STATISTICS, ParamStore
from forensics.runlog.run import load_run

MOST_BYTES = 7.0


def train(out: Path, steps: int, finished: Synchronized[int] | None = None) -> None:
    """Record that many steps (GPT, or for a kill the MLP) with a snapshot each."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, batch = gpt() if finished is None else mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    with Recorder(
        out, model, optimizer, max_norm=MAX_NORM, snapshot_every=1, own_loop=False, say=print
    ) as recorder:
        state = AmpTrainState(model, [optimizer], loss_of, max_norm=MAX_NORM, recorder=recorder)
        for step in range(steps):
            state.step(*batch)
            if finished is not None:
                finished.value = step


def bytes_a_value(steps: int) -> tuple[float, float, float]:
    """Bytes of ``params/`` by all values, by those that are no counts, and values a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder) / "run", steps)
        directory = Path(folder) / "run" / "params"
        size = sum(path.stat().st_size for path in directory.iterdir())
        store = ParamStore(directory)
        taken = {
            name: sum(int(store.matrix(name, kind).present.sum()) for kind in KINDS)
            for name in STATISTICS
        }
    values = sum(taken.values())
    return (
        size / values,
        size / (values - sum(taken[name] for name in COUNTS)),
        values / steps,
    )


def lost_at_kill(draw: random.Random) -> tuple[int, int, int, float]:
    """Kill one recording: finished steps, those lost in the log and in snapshots, step seconds."""
    context = multiprocessing.get_context("spawn")
    finished: Synchronized[int] = context.Value("q", -1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        process = context.Process(target=train, args=(out, 10**6, finished))
        process.start()
        while finished.value < 5:
            time.sleep(0.01)
        began, first = time.perf_counter(), finished.value
        time.sleep(draw.uniform(0.5, 4.0))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        last = finished.value
        per_step = (time.perf_counter() - began) / max(last - first, 1)
        run = load_run(out)
        logged = int(run.steps.step[-1])
        shown = int(run.params.steps[-1]) if run.params is not None else -1
    return last + 1, max(last - logged, 0), max(last - shown, 0), per_step


def measure(steps: int, kills: int) -> Result:
    """Both tables."""
    every, floats, values = bytes_a_value(steps)
    size = Table(
        ("recording", "values a snapshot", "bytes a value", "bytes a value that is no count"),
        (("GPT, 10.1 M", f"{values:,.0f}", f"{every:.1f}", f"{floats:.1f}"),),
    )
    draw = random.Random(0)
    lost = [lost_at_kill(draw) for _ in range(kills)]
    most_rows, most_shots = (max(one[i] for one in lost) for i in (1, 2))
    seconds = max(max(one[1:3]) * one[3] for one in lost)
    killed = Table(
        ("kills", "steps recorded", "rows lost at most", "snapshots lost at most", "seconds lost"),
        (
            (
                str(kills),
                f"{sum(one[0] for one in lost):,}",
                str(most_rows),
                str(most_shots),
                f"{seconds:.2f} s",
            ),
        ),
    )
    goal = Goal(
        "bytes on disk of a value of a snapshot that is no count",
        f"≤ {MOST_BYTES:g}",
        f"{floats:.1f}",
        floats <= MOST_BYTES,
    )
    return Result((size, killed), (goal,))


def measure_all(quick: bool) -> Result:
    """For the page."""
    return measure(3, 1) if quick else measure(101, 10)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--kills", type=int, default=10)
    options = parser.parse_args()
    for table in measure(options.steps, options.kills).tables:
        print(table.markdown(), end="\n\n")


if __name__ == "__main__":
    main()
