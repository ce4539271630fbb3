"""Healthy logs of a network that really trained."""

from __future__ import annotations

from typing import Any

from forensics.runlog.run import Run
from tests.corpus.assemble import PATH, Sheet
from tests.corpus.case import HEALTHY, HEALTHY_CASES, Label
from tests.corpus.noise import Rng
from tests.corpus.tiny import BATCH, Tiny

Made = tuple[Run, Label]


def trained(tiny: Tiny, steps: int) -> Sheet:
    """The log of a tiny training; no norm after the clip where a step was skipped."""
    log = Sheet(tiny.run(steps))
    log.written["grad_l2_post_clip"] = ~log.values["skipped"]
    return log


def _case(name: str, steps: int, **how: Any) -> None:
    @HEALTHY_CASES.add(f"trained-{name}")
    def make(rng: Rng) -> Made:
        return Run(PATH, trained(Tiny(rng, **how), steps).table()), HEALTHY


_case("sgd", 1500, lr=0.05)
_case("sgd-clipped", 1500, lr=0.1, max_norm=1.0)
_case("adam", 1500, lr=0.003, adam=True)
_case("adam-high-rate", 800, lr=0.03, adam=True, max_norm=1.0)
_case("fp16", 3000, lr=0.02, half=True, scale=2.0**20)
_case("fp16-adam", 2000, lr=0.002, half=True, adam=True, scale=2.0**24, interval=200)
_case("squared", 1500, lr=0.02, squared=True)
_case("short", 120, lr=0.05)
_case("not-shuffled", 1200, lr=0.05, shuffle=False)
_case("one-batch", 700, lr=0.02, samples=BATCH, shuffle=False)
