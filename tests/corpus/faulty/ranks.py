"""Faults of one rank among several."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.corpus.assemble import Sheet, manifest, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import DAMAGE
from tests.corpus.loop import Loop
from tests.corpus.noise import Rng
from tests.corpus.training import Training, pretraining

Made = tuple[Run, Label]
LOCAL = ("grad_l2_post_clip", "scaler_scale", "lr", "skipped", "skip_reason")


def _local(training: Training, loop: Loop) -> Sheet:
    """One rank's own log: its losses and norms, taken before the reduction."""
    rng, log = training.rng, sheet(training, loop)
    for name, sigma in (("loss", 0.03), ("grad_l2_pre_clip", 0.2)):
        log.values[name] = log.values[name] * np.exp(sigma * rng.standard_normal(training.rows))
    log.written.pop("grad_l2_pre_clip", None)
    return log.drop(*LOCAL)


def _run(training: Training, loop: Loop, log: Sheet, ranks: list[Sheet]) -> Run:
    usual = manifest(training, loop, world_size=1 + len(ranks))
    tables: tuple[StepTable, ...] = tuple(rank.table() for rank in ranks)
    return run_of(training, loop, log, manifest=usual, ranks=tables)


def _one_rank(name: str, applied: bool) -> None:
    @FAULTY_CASES.add(f"rank-nan-{name}")
    def make(rng: Rng) -> Made:
        """Rank 2 has a NaN batch; rank 0's loss is fine and its reduced gradient is NaN."""
        made = pretraining(rng, 3000)
        start = made.at(0.3, 0.8)
        calm = pretraining(rng, 3000)
        made.nan_grad[start] = True
        loop = Loop("bf16", guard=not applied)
        log = sheet(made, loop)
        ranks = [_local(calm, Loop()) for _ in range(3)]
        for rank in ranks:
            dead = ~np.isfinite(np.asarray(log.values["loss"]))
            rank.values["loss"] = np.where(dead, np.nan, rank.values["loss"])
            rank.values["grad_l2_pre_clip"] = np.where(
                dead, np.nan, rank.values["grad_l2_pre_clip"]
            )
        ranks[1].values["loss"][start] = np.nan
        ranks[1].values["grad_l2_pre_clip"][start] = np.nan
        must = [Expect("nonfinite-step-applied", start)] if applied else []
        return _run(made, loop, log, ranks), fault("rank-divergence", start, *must, may=DAMAGE)


_one_rank("guarded", False)
_one_rank("applied", True)


@FAULTY_CASES.add("rank-nan-gradient-only")
def gradient_only(rng: Rng) -> Made:
    """Rank 1's local norm is NaN several times, every loss is finite."""
    made = pretraining(rng, 2000)
    hits = np.sort(rng.choice(np.arange(300, 1900), 3, replace=False))
    made.nan_grad[hits] = True
    loop = Loop("fp32", guard=True)
    ranks = [_local(pretraining(rng, 2000), Loop()) for _ in range(2)]
    ranks[0].values["grad_l2_pre_clip"][hits] = np.nan
    return _run(made, loop, sheet(made, loop), ranks), fault(
        "rank-divergence", int(hits[0]), may={"nonfinite-gradient", "nonfinite-parameter"}
    )


def _drift(name: str, rows: int, growth: float) -> None:
    @FAULTY_CASES.add(f"replica-drift-{name}")
    def make(rng: Rng) -> Made:
        """The replicas' weights are alike until one step, and drift apart from there."""
        made = pretraining(rng, rows)
        loop = Loop("bf16")
        start = made.at(0.2, 0.7)
        log = sheet(made, loop)
        weights = 80 + 5 * np.linspace(0, 1, rows) + np.cumsum(1e-4 * rng.standard_normal(rows))
        log.values["param_l2"] = weights
        ranks = [_local(pretraining(rng, rows), Loop()) for _ in range(3)]
        later = (np.arange(rows) - start + 1).clip(0)
        for rank in ranks:
            rank.values["param_l2"] = weights.copy()
        ranks[2].values["param_l2"] = weights * (1 + growth * np.sqrt(later))
        return _run(made, loop, log, ranks), fault("replica-drift", start)


_drift("slow", 4000, 1e-5)
_drift("fast", 1000, 1e-3)
_drift("long", 50_000, 1e-5)
