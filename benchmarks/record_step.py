"""What recording costs: the recorded step beside the same loop with ``clip_grad_norm_`` and no log.

Two copies of one training run in turn in one process, A B B A …, a step each, so that a machine
that slows down slows both. The ratio is the median over pairs of neighbouring steps; the bracket
is a 95 % bootstrap interval of it. The recorded side writes a real run directory: a flushed row a
step, and the default snapshots.

    python benchmarks/record_step.py [--pairs 400] [--model mlp gpt] [--threads 2] [--clock cpu]

``--clock cpu`` counts the processor's time instead of the wall's: for a machine that others use.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

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


def measure(
    make: Callable[[], tuple[nn.Module, Batch]], pairs: int, clock: Callable[[], float]
) -> tuple[str, list[float]]:
    """Ratios recorded ÷ plain of neighbouring steps, and a line about the training."""
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
            Path(folder) / "run", model, optimizer, max_norm=MAX_NORM, own_loop=False, say=print
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

        for _ in range(10):
            recorded()
            plain()
        ratios, base = [], []
        for i in range(pairs):
            if i % 2:
                b, a = timed(plain), timed(recorded)
            else:
                a, b = timed(recorded), timed(plain)
            ratios.append(a / b)
            base.append(b)
    count = sum(p.numel() for p in model.parameters())
    line = f"{count / 1e6:.1f} M parameters, plain step {statistics.median(base) * 1e3:.1f} ms"
    return line, ratios


def interval(ratios: list[float], rounds: int = 1000) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(rounds))
    return medians[rounds // 40], medians[-rounds // 40]


def main() -> None:
    """Measure and print, a line a model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=400, help="pairs of steps a model")
    parser.add_argument("--model", nargs="*", default=["mlp", "gpt"], choices=["mlp", "gpt"])
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    told = parser.parse_args()
    torch.set_num_threads(told.threads)
    targets = {"mlp": (mlp, 1.05), "gpt": (gpt, 1.02)}
    for name in told.model:
        make, target = targets[name]
        line, ratios = measure(make, told.pairs, CLOCKS[told.clock])
        low, high = interval(ratios)
        print(
            f"{name}: recorded ÷ plain {statistics.median(ratios):.3f} "
            f"[{low:.3f}, {high:.3f}], aim ≤ {target} ({line})"
        )


if __name__ == "__main__":
    main()
