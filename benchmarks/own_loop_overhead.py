"""What the three lines cost in a loop of one's own, beside the same loop without them.

The loop clips with ``clip_grad_norm_``, as most do, and once more by the norm that the recorder
returns. Steps are taken in turn with those of a bare copy, as in ``record_step.py``.

    python benchmarks/own_loop_overhead.py [--pairs 100] [--model mlp gpt gpt-100m]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Table
from benchmarks.record_step import (
    MAX_NORM,
    MODELS,
    WARM_UP,
    Batch,
    interval,
    loss_of,
    plain_step,
    ratio_of,
)
from forensics.record.recorder import Recorder


def recorded_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    recorder: Recorder,
    *,
    reuse: bool,
) -> None:
    """The same step with the recorder's lines; ``reuse``: and its norm for the clip."""
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(model, batch)
    loss.backward()
    norm = recorder.gradients(loss)
    if reuse:
        nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, torch.tensor(norm))
    else:
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    recorder.end_step()


def measure_pairs(
    make: Callable[[], tuple[nn.Module, Batch]], pairs: int, *, reuse: bool
) -> list[tuple[float, float]]:
    """Seconds of the processor, (recorded, plain), of neighbouring steps."""
    sides = []
    for _ in range(2):
        torch.manual_seed(0)
        model, batch = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        sides.append((model, optimizer, batch))
    (model, optimizer, batch), bare = sides
    with (
        tempfile.TemporaryDirectory() as folder,
        Recorder(Path(folder) / "run", model, optimizer, max_norm=MAX_NORM, say=print) as recorder,
    ):

        def seconds(step: Callable[[], object]) -> float:
            started = time.process_time()
            step()
            return time.process_time() - started

        def both(first: bool) -> tuple[float, float]:
            steps: list[Callable[[], object]] = [
                lambda: recorded_step(model, optimizer, batch, recorder, reuse=reuse),
                lambda: plain_step(*bare),
            ]
            if first:
                return seconds(steps[0]), seconds(steps[1])
            plain = seconds(steps[1])
            return seconds(steps[0]), plain

        for i in range(WARM_UP):
            both(i % 2 == 0)
        return [both(i % 2 == 0) for i in range(pairs)]


def main() -> None:
    """Measure and print, a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=100, help="MLP: thrice, 100 M: a tenth")
    parser.add_argument("--model", nargs="*", default=["mlp", "gpt"], choices=list(MODELS))
    told = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for key in told.model:
        name, make, share, _ = MODELS[key]
        cells = []
        for reuse in (False, True):
            taken = measure_pairs(make, max(2, round(told.pairs * share)), reuse=reuse)
            low, high = interval(taken)
            cells.append(f"{ratio_of(taken):.3f} ({low:.3f} to {high:.3f})")
        plain = statistics.median(b for _, b in taken)
        rows.append((f"{name} ({key})", f"{plain * 1e3:.0f} ms", *cells))
    head = ("model", "plain step", "clip_grad_norm_", "clipped by the recorder's norm")
    print(Table(head, tuple(rows)).markdown())


if __name__ == "__main__":
    main()
