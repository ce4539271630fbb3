"""What a bisection costs, beside plainly training the same steps.

A run is recorded that goes bad for one step at 5,400 of 10,000, with a checkpoint every 500. Then

- *detection*: the replay from the last good checkpoint to the bad step, over plain training of the
  same steps (the reference step on the same data, nobody watching);
- *whole*: all of ``bisect_run`` without what-ifs, from the first replayed step on (start-up and
  loading come before), over the same;
- *traced*: one step under the operator trace and what goes with it, over one plain step;
- *memory*: the most that the process grew over its size after the imports, in a process of its own
  and on a larger model: over what a checkpoint holds of it (parameters and Adam's moments), and
  over what training it holds (the gradients, too).

Ratios are of the processor's time, medians of pairs that run in turn.

    python benchmarks/bisect_speed.py [--steps 10000] [--bad 5400] [--pairs 5] [--memory]
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from forensics.record.assembly import to_device
from forensics.record.config import Config, OptimizerConfig
from forensics.record.null_recorder import NullRecorder
from forensics.record.options import RecordOptions
from forensics.record.recipe import Recipe, Training, recipe
from forensics.record.reference_loop import record_run
from forensics.record.train_step import AmpTrainState
from forensics.replay.bad import parse_bad
from forensics.replay.bisect import bisect_run
from forensics.replay.detection import Detector
from forensics.replay.row_judge import RowJudge
from forensics.replay.session import Session, open_session
from forensics.replay.tracing.step_forensics import examine_step
from forensics.runlog.run import load_run

EVERY = 500
BATCH, FEATURES = 64, 64


@recipe("bisect-speed", "an MLP; one batch holds a NaN")
class SpeedRecipe(Recipe):
    """``width`` and ``bad`` are set per measurement."""

    defaults = Config(
        steps=10_000,
        max_norm=1.0,
        optimizer=OptimizerConfig("adamw", lr=1e-4),
        model={"width": 256, "depth": 4},
        data={"bad": 5_400},
    )

    def build(self, config: Config) -> Training:
        """AdamW on a plain stack."""
        width, depth = config.model["width"], config.model["depth"]
        hidden = [part for _ in range(depth) for part in (nn.Linear(width, width), nn.ReLU())]
        model = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), *hidden, nn.Linear(width, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer.lr)

        def loss(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return nn.functional.mse_loss(module(batch[0]), batch[1])

        return Training(model, optimizer, loss)

    def batch(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """Random numbers of the step's own."""
        made = torch.Generator().manual_seed(step)
        inputs = torch.randn(BATCH, FEATURES, generator=made)
        if step == self.config.data["bad"]:
            inputs[7, 3] = torch.nan
        return [(inputs, inputs.sum(1, keepdim=True))]


def configured(steps: int, bad: int, width: int) -> Config:
    """The recipe's config."""
    changes = {"steps": steps, "data": {"bad": bad}, "model": {"width": width}}
    return Config.from_dict(changes, base=SpeedRecipe.defaults)


def record(out: Path, config: Config, every: int = EVERY) -> None:
    """A run on disk; every checkpoint is kept."""
    options = RecordOptions(
        out, checkpoint_every=every, keep="last:999", recipe_file=Path(__file__)
    )
    record_run(SpeedRecipe(config), config, options, say=lambda _: None)


def opened(run: Path) -> Session:
    """A session on the run."""
    return open_session(load_run(run), recipe=f"{__file__}:bisect-speed", say=lambda _: None)


def cpu(call: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def plain(session: Session, first: int, last: int) -> float:
    """Plain training from a checkpoint up to a step, not counting the load."""
    session.go_to(first)
    training, config = session.training, session.config
    state = AmpTrainState(
        training.model,
        training.optimizers,
        training.loss,
        max_norm=config.max_norm,
        recorder=NullRecorder(),
        first_step=first,
    )

    def train() -> None:
        for step in range(first, last):
            state.step_on([to_device(b, session.device) for b in session.recipe.batch(step)])

    taken = cpu(train)
    state.arrival.close()
    return taken


def detection(session: Session, first: int, bad: int) -> float:
    """The replay of the same steps, watched, with the bad step a suspect."""
    session.go_to(first)
    detector = Detector(session, RowJudge(parse_bad(None)))
    return cpu(lambda: detector.run(bad - 1, marks={bad}))


def whole(run: Path) -> float:
    """All of a bisection from its first replayed step on."""
    began: list[float] = []

    def progress(text: str, done: int, total: int) -> None:
        if not began and text.startswith("replaying"):
            began.append(time.process_time())

    result = bisect_run(run, recipe=f"{__file__}:bisect-speed", what_if=False, progress=progress)
    assert result.samples == (7,), result
    return time.process_time() - began[0]


def traced(session: Session, first: int) -> float:
    """One traced step over one plain one."""
    session.go_to(first)
    before = session.capture()
    session.run_step()
    steps, traces = [], []
    for _ in range(5):
        session.restore(before)
        steps.append(cpu(lambda: session.run_step(check_state=False)))
        session.restore(before)
        traces.append(cpu(lambda: examine_step(session)))
    return statistics.median(traces) / statistics.median(steps)


def speed(out: Path, steps: int, bad: int, pairs: int) -> None:
    """Print the three ratios of time."""
    record(out / "run", configured(steps, bad, 256))
    first = bad - bad % EVERY if bad % EVERY else bad - EVERY
    found: dict[str, list[float]] = {"detection": [], "whole": []}
    with opened(out / "run") as session:
        plain(session, first, min(first + 50, bad))
        for _ in range(pairs):
            base = plain(session, first, bad)
            found["detection"].append(detection(session, first, bad) / base)
            found["whole"].append(whole(out / "run") / base)
        print(f"plain training of {bad - first} steps: {base:.2f} s of processor time")
        print(f"traced     {traced(session, first):5.2f} x one step")
    for name, ratios in found.items():
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        print(f"{name:10} {statistics.median(ratios):5.3f} x plain training ({spread})")


def peak_memory(run: Path, width: int) -> None:
    """In a process of its own: record a large model for a few steps, bisect it, and tell the peak.

    The recording comes first and in another process, so that only the bisection is measured.
    """
    began = _rss()
    result = bisect_run(run, recipe=f"{__file__}:bisect-speed", what_if=False)
    assert result.samples == (7,), result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    config = configured(40, 30, width)
    model = SpeedRecipe(config).build(config).model
    state = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    grown = peak - began
    print(
        f"checkpoint {state / 1e6:.0f} MB; peak {grown / state:.2f} x that, "
        f"{grown / (state * 4 / 3):.2f} x parameters, gradients and moments"
    )


def _rss() -> int:
    """Bytes that the process takes now."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--bad", type=int, default=5_400)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="the peak memory instead")
    parser.add_argument("--width", type=int, default=2048, help="of the model of --memory")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.measure:
        peak_memory(given.measure, given.width)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if not given.memory:
            speed(out, given.steps, given.bad, given.pairs)
            return
        record(out / "run", configured(40, 30, given.width), every=20)
        own = [sys.executable, __file__, "--width", str(given.width), "--measure", str(out / "run")]
        subprocess.run(own, check=True)


if __name__ == "__main__":
    main()
