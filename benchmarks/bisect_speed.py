"""What a bisection costs, beside plainly training the same steps.

A run is recorded that goes bad for one step at 5,400 of 10,000, with a checkpoint every 500. Then

- *detection*: the replay from the last good checkpoint to the bad step, over plain training of the
  same steps (the reference step on the same data, nobody watching);
- *whole*: all of ``bisect_run`` without what-ifs, from the first replayed step on (start-up and
  loading come before), over the same;
- *traced*: one step under the operator trace and what goes with it, over one plain step;
- *memory*: the most that the process grew over its size after the imports, in a process of its own
  and on a larger model: over what a checkpoint holds of it (parameters and Adam's moments), and
  over what training it holds (the gradients, too);
- *thousand*: of 1,000 saved states, and of a recorded run with 1,000 checkpoints, those that are
  looked into before the answer is there, and the time that the whole answer takes.

Ratios are of the processor's time, medians of pairs that run in turn.

    python benchmarks/bisect_speed.py [--steps 10000] [--bad 5400] [--memory] [--thousand]
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measured import Goal, Result, Table, goal_of_ratio, times
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
        out, checkpoint_every=every, keep=f"last:{STATES}", recipe_file=Path(__file__)
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


def speed(out: Path, steps: int, bad: int, pairs: int) -> dict[str, list[float]]:
    """The ratios of time: ``detection`` and ``whole`` a pair each, and ``traced`` once."""
    record(out / "run", configured(steps, bad, 256))
    first = bad - bad % EVERY if bad % EVERY else bad - EVERY
    found: dict[str, list[float]] = {"detection": [], "whole": []}
    with opened(out / "run") as session:
        plain(session, first, min(first + 50, bad))
        for _ in range(pairs):
            base = plain(session, first, bad)
            found["detection"].append(detection(session, first, bad) / base)
            found["whole"].append(whole(out / "run") / base)
        found["traced"] = [traced(session, first)]
    return found


TOLD = {
    "detection": ("replay up to the bad step", "plain training of the same steps", 1.05),
    "whole": ("whole bisection, without what-ifs", "plain training of the same steps", 1.3),
    "traced": ("the traced step", "one plain step", 10.0),
}
"""What each ratio is of, beside what, and its goal."""


def speed_table(found: dict[str, list[float]]) -> tuple[Table, list[Goal]]:
    """The ratios of time as they are told."""
    rows, goals = [], []
    for name, ratios in found.items():
        told, beside, most = TOLD[name]
        rows.append((told, beside, *times(ratios)))
        goals.append(goal_of_ratio(f"{told} ÷ {beside}", ratios, most))
    return Table(("", "beside", "ratio, processor", "spread"), tuple(rows)), goals


STATES = 1_000
MOST_LOADS = math.ceil(math.log2(STATES)) + 2
"""Both ends, and halving between them."""


def thousand(out: Path) -> tuple[Table, Goal]:
    """How many of 1,000 states are looked into."""
    states = out / "states"
    states.mkdir()
    for i in range(STATES):
        weight = torch.ones(64, 64)
        if i >= 613:
            weight[3, 4] = torch.nan
        torch.save({"model": {"head.weight": weight}, "step": i}, states / f"step-{i:08d}.pt")
    record(out / "run", configured(STATES, 613, 16), every=1)
    rows = []
    for name, path, trained_by in (
        ("saved states alone", states, None),
        ("a recorded run, with its log", out / "run", f"{__file__}:bisect-speed"),
    ):
        began = time.process_time()
        with counted_loads() as loaded:
            result = bisect_run(path, recipe=trained_by, what_if=False)
        taken = time.process_time() - began
        judged = sum(str(one.verdict) != "untested" for one in result.checkpoints)
        looked = judged if trained_by is None else len(loaded)
        rows.append((name, f"{len(result.checkpoints):,}", str(looked), f"{taken:.1f} s"))
    loads = int(rows[0][2])
    told = f"states looked into, of {STATES:,}"
    goal = Goal(told, f"≤ {MOST_LOADS}", str(loads), loads <= MOST_LOADS)
    head = ("bisected", "states", "looked into", "whole bisection, processor")
    return Table(head, tuple(rows)), goal


@contextmanager
def counted_loads() -> Iterator[set[str]]:
    """The state files that a replay loads meanwhile, by ``torch.load``.

    (A state without a recipe is only looked into; health files say the same of a recorded one.)
    """
    loaded: set[str] = set()
    plain_load = torch.load

    def counting(file: Any, *arguments: Any, **named: Any) -> Any:
        loaded.add(str(getattr(file, "name", file)))
        return plain_load(file, *arguments, **named)

    torch.load = counting
    try:
        yield loaded
    finally:
        torch.load = plain_load


def memory(out: Path, width: int) -> tuple[float, float, float]:
    """MB of a checkpoint; the growth of the process over it, and over all that training holds."""
    record(out / "run", configured(40, 30, width), every=20)
    own = [sys.executable, __file__, "--width", str(width), "--measure", str(out / "run")]
    done = subprocess.run(own, check=True, capture_output=True, text=True)
    size, grown = (float(text) for text in done.stdout.split())
    return size / 1e6, grown / size, grown / (size * 4 / 3)


def peak_memory(run: Path, width: int) -> None:
    """In a process of its own: bisect a run of a large model; print the state's bytes and growth.

    The recording came first and in another process, so that only the bisection is measured.
    """
    began = _rss()
    result = bisect_run(run, recipe=f"{__file__}:bisect-speed", what_if=False)
    assert result.samples == (7,), result
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    config = configured(40, 30, width)
    model = SpeedRecipe(config).build(config).model
    state = 3 * sum(p.numel() * p.element_size() for p in model.parameters())
    print(state, peak - began)


def _rss() -> int:
    """Bytes that the process takes now."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def measure_all(quick: bool) -> Result:
    """For the page."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        found = speed(out, *((600, 550, 1) if quick else (6_000, 5_400, 5)))
        ratios, goals = speed_table(found)
    with tempfile.TemporaryDirectory() as folder:
        size, over, training = memory(Path(folder), 256 if quick else 4_096)
    with tempfile.TemporaryDirectory() as folder:
        states, goal = thousand(Path(folder))
    head = ("a checkpoint", "growth ÷ checkpoint", "growth ÷ what training holds")
    taken = Table(head, ((f"{size:,.0f} MB", f"×{over:.2f}", f"×{training:.2f}"),))
    goals += [goal_of_ratio("memory of a bisection ÷ checkpoint", [over], 2.2), goal]
    return Result((ratios, taken, states), tuple(goals))


def main() -> None:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--bad", type=int, default=5_400)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--memory", action="store_true", help="the peak memory instead")
    parser.add_argument("--thousand", action="store_true", help="1,000 states instead")
    parser.add_argument("--width", type=int, default=2048, help="of the model of --memory")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.measure:
        peak_memory(given.measure, given.width)
        return
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        if given.memory:
            size, over, training = memory(out, given.width)
            print(f"checkpoint {size:.0f} MB; peak {over:.2f} x that, {training:.2f} x training")
        elif given.thousand:
            print(thousand(out)[0].markdown())
        else:
            print(speed_table(speed(out, given.steps, given.bad, given.pairs))[0].markdown())


if __name__ == "__main__":
    main()
