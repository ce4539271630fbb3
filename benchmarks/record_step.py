"""What recording costs: the recorded step beside the same loop with ``clip_grad_norm_`` and no log.

Two copies of one training run in turn in one process, A B B A …, a step each, so that a machine
that slows down slows both. The ratio is all recorded steps over all plain ones, so that rare dear
steps (a snapshot, the compaction of a hundred of them) weigh what they cost; the bracket is a 95 %
bootstrap interval of it over pairs of neighbouring steps. The recorded side writes a real run
directory: a flushed row a step, and snapshots every so many steps.

    python benchmarks/record_step.py [--pairs 200] [--model mlp gpt gpt-100m] [--every 1 10 100]

``--clock cpu`` (the default) counts the processor's time of one thread: for a machine that others
use. ``--clock wall --threads 2`` is what a user waits for on a quiet one.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Goal, Result, Table
from forensics.record.models import TinyGpt
from forensics.record.recorder import Recorder
from forensics.record.train_step import AmpTrainState

Batch = tuple[Tensor, Tensor]
MAX_NORM = 1.0


def mlp() -> tuple[nn.Module, Batch]:
    """1.05 million parameters, 128 samples of 256 features."""
    hidden = [layer for _ in range(3) for layer in (nn.Linear(544, 544), nn.ReLU())]
    model = nn.Sequential(nn.Linear(256, 544), nn.ReLU(), *hidden, nn.Linear(544, 10))
    return model, (torch.randn(128, 256), torch.randint(0, 10, (128,)))


def gpt() -> tuple[nn.Module, Batch]:
    """10 million parameters, 4 sequences of 128 tokens."""
    model = TinyGpt(vocabulary=512, context=128, width=320, heads=8, depth=8)
    tokens = torch.randint(0, 512, (4, 129))
    return model, (tokens[:, :-1], tokens[:, 1:])


def large_gpt() -> tuple[nn.Module, Batch]:
    """91 million parameters, one sequence of 64 tokens: little work, so that recording shows."""
    model = TinyGpt(vocabulary=8192, context=64, width=768, heads=12, depth=12)
    tokens = torch.randint(0, 8192, (1, 65))
    return model, (tokens[:, :-1], tokens[:, 1:])


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Cross entropy over the last dimension."""
    scores = model(batch[0])
    return nn.functional.cross_entropy(scores.flatten(0, -2), batch[1].flatten())


def plain_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> None:
    """The loop that most people have; it reads the loss, as a progress bar does."""
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(model, batch)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    loss.item()


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}
MODELS = {
    "mlp": ("MLP", mlp, 3.0, {100: 1.05}),
    "gpt": ("GPT", gpt, 0.6, {10: 1.02}),
    "gpt-100m": ("GPT", large_gpt, 0.1, {}),
}
"""Name, maker, share of the pairs asked for, and goals by the steps between snapshots."""
WARM_UP = 5


def measure_pairs(
    make: Callable[[], tuple[nn.Module, Batch]],
    pairs: int,
    clock: Callable[[], float],
    every: int,
) -> tuple[float, list[tuple[float, float]]]:
    """Millions of parameters, and seconds (recorded, plain) of neighbouring steps."""
    sides = []
    for _ in range(2):
        torch.manual_seed(0)
        model, batch = make()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        sides.append((model, optimizer, batch))
    (model, optimizer, batch), (other, others_optimizer, _) = sides
    with (
        tempfile.TemporaryDirectory() as folder,
        Recorder(
            Path(folder) / "run",
            model,
            optimizer,
            max_norm=MAX_NORM,
            snapshot_every=every,
            own_loop=False,
            say=print,
        ) as recorder,
    ):
        state = AmpTrainState(model, [optimizer], loss_of, max_norm=MAX_NORM, recorder=recorder)

        def recorded() -> None:
            state.step(*batch)

        def plain() -> None:
            plain_step(other, others_optimizer, batch)

        def timed(step: Callable[[], object]) -> float:
            started = clock()
            step()
            return clock() - started

        for _ in range(WARM_UP):
            recorded()
            plain()
        taken = []
        for i in range(pairs):
            if i % 2:
                b, a = timed(plain), timed(recorded)
            else:
                a, b = timed(recorded), timed(plain)
            taken.append((a, b))
    return sum(p.numel() for p in model.parameters()) / 1e6, taken


def ratio_of(pairs: Sequence[tuple[float, float]]) -> float:
    """All recorded steps over all plain ones."""
    return sum(a for a, _ in pairs) / sum(b for _, b in pairs)


def interval(pairs: Sequence[tuple[float, float]], rounds: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the ratio."""
    draw = random.Random(0)
    found = sorted(ratio_of(draw.choices(pairs, k=len(pairs))) for _ in range(rounds))
    return found[rounds // 40], found[-rounds // 40]


def measure(models: Sequence[str], pairs: int, every_of: Sequence[int], clock: str) -> Result:
    """A row a model, a pair of columns a frequency of snapshots."""
    rows, goals = [], []
    for key in models:
        name, make, share, most_of = MODELS[key]
        cells: list[str] = []
        for every in every_of:
            count = max(2, round(pairs * share))
            millions, taken = measure_pairs(make, count, CLOCKS[clock], every)
            low, high = interval(taken)
            if not cells:
                plain = statistics.median(b for _, b in taken)
                cells = [f"{name}, {millions:.1f} M", f"{plain * 1e3:.0f} ms", str(count)]
            cells.append(f"{ratio_of(taken):.3f} ({low:.3f} to {high:.3f})")
            if every in most_of:
                told = f"recorded ÷ plain step, {name} of {millions:.0f} M, a snapshot in {every}"
                ratio, most = ratio_of(taken), most_of[every]
                goals.append(Goal(told, f"≤ ×{most}", f"×{ratio:.3f}", ratio <= most))
        rows.append(tuple(cells))
    head = ("model", "plain step", "pairs", *(f"snapshot every {n}" for n in every_of))
    return Result((Table(head, tuple(rows)),), tuple(goals))


def measure_all(quick: bool) -> Result:
    """For the page."""
    torch.set_num_threads(1)
    if quick:
        return measure(["mlp"], 4, (1, 10), "cpu")
    return measure(list(MODELS), 100, (1, 10, 100), "cpu")


def main() -> None:
    """Measure and print, a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=100, help="MLP: thrice, 100 M: a tenth")
    parser.add_argument("--model", nargs="*", default=["mlp", "gpt"], choices=list(MODELS))
    parser.add_argument("--every", nargs="+", type=int, default=[1, 10, 100])
    parser.add_argument("--clock", default="cpu", choices=list(CLOCKS))
    parser.add_argument("--threads", type=int, default=1)
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    for table in measure(told.model, told.pairs, told.every, told.clock).tables:
        print(table.markdown())


if __name__ == "__main__":
    main()
