"""Bad parameters and bad state beside them, as snapshots and checkpoints show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from forensics.runlog.manifest import Manifest
from forensics.runlog.run import CheckpointInfo, Run
from tests.corpus.assemble import manifest, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import DAMAGE, SKIPS
from tests.corpus.faulty.nonfinite import APPLIED
from tests.corpus.healthy.snapshots import (
    healthy_params,
    snapshot_steps,
)
from tests.corpus.loop import Loop
from tests.corpus.noise import Rng
from tests.corpus.snapshots import MemoryParams
from tests.corpus.training import pretraining

Made = tuple[Run, Label]
INNER = "blocks.2.mlp.up.weight"


def _with_step(rows: int, *steps: int) -> np.ndarray:
    """The usual snapshot steps, and those of bad steps."""
    return np.unique([*snapshot_steps(rows), *[s for s in steps if s < rows]])


def _poison(params: MemoryParams, made: Manifest, start: int, source: str) -> None:
    """From a step on: first the source and what is nearer the input, then everything."""
    names = [info.name for info in made.parameters]
    at = names.index(source)
    first = int(np.searchsorted(params.taken_at, start))
    for statistic in ("grad_l2", "grad_absmax"):
        values = params.data[("param", statistic)]
        values[first, : at + 1] = np.nan
        values[first + 1 :] = np.nan
    params.data[("param", "grad_nonfinite")][first, : at + 1] = 100
    params.data[("param", "grad_nonfinite")][first + 1 :] = 1000
    params.data[("param", "value_nonfinite")][first + 1 :] = 1000
    params.data[("param", "value_l2")][first + 1 :] = np.nan


def _arrival(made: Manifest) -> Manifest:
    """Gradients arrive from the loss to the input."""
    names = tuple(info.name for info in reversed(made.parameters))
    return replace(made, arrival_order=names)


def _bad_gradient(name: str, rows: int) -> None:
    @FAULTY_CASES.add(f"parameter-nan-gradient-{name}")
    def make(rng: Rng) -> Made:
        """A NaN is born in backward of one layer, and applied; the snapshot of that step tells."""
        made = pretraining(rng, rows)
        start = made.at(0.3, 0.8)
        made.nan_grad[start] = True
        loop = Loop("bf16")
        usual = _arrival(manifest(made, loop))
        params = healthy_params(made, usual, _with_step(rows, start, start + 1))
        _poison(params, usual, start, INNER)
        log = sheet(made, loop)
        return run_of(made, loop, log, manifest=usual, params=params), fault(
            (*APPLIED, "nonfinite-parameter"),
            start,
            Expect("nonfinite-parameter", start, subject=INNER),
            Expect("nonfinite-step-applied", start),
            Expect("nonfinite-loss", start + 1),
            may=DAMAGE,
        )


_bad_gradient("400", 400)
_bad_gradient("20k", 20_000)


def _bad_weight(name: str, rows: int) -> None:
    @FAULTY_CASES.add(f"parameter-bad-weight-{name}")
    def make(rng: Rng) -> Made:
        """A bit flips in one weight between two steps: the forward pass is NaN from then on."""
        made = pretraining(rng, rows)
        start = made.at(0.3, 0.8)
        made.nan_loss[start:] = True
        loop = Loop("bf16", guard=True)
        usual = _arrival(manifest(made, loop))
        params = healthy_params(made, usual, _with_step(rows, start, start + 1))
        first = int(np.searchsorted(params.taken_at, start))
        at = [info.name for info in usual.parameters].index(INNER)
        params.data[("param", "value_nonfinite")][first:, at] = 1
        params.data[("param", "value_l2")][first:, at] = np.nan
        for statistic in ("grad_l2", "grad_absmax", "update_l2", "v_ratio"):
            params.data[("param", statistic)][first:] = np.nan
        return run_of(made, loop, manifest=usual, params=params), fault(
            "nonfinite-parameter",
            start,
            Expect("nonfinite-parameter", start, subject=INNER),
            Expect("nonfinite-loss", start),
            Expect("dead-run", start),
            may=SKIPS | DAMAGE,
        )


_bad_weight("500", 500)
_bad_weight("10k", 10_000)


@FAULTY_CASES.add("parameter-from-skip-reason")
def from_reason(rng: Rng) -> Made:
    """No snapshots: the skip reason names the parameter."""
    made = pretraining(rng, 2000)
    hits = np.sort(rng.choice(np.arange(300, 1900), 4, replace=False))
    made.nan_grad[hits] = True
    loop = Loop("bf16", guard=True)
    log = sheet(made, loop)
    log.values["skip_reason"] = [
        f"nonfinite_grad:{INNER}" if skip else "" for skip in log.values["skipped"]
    ]
    return run_of(made, loop, log), fault(
        ("nonfinite-gradient", "nonfinite-parameter"),
        int(hits[0]),
        Expect("nonfinite-parameter", int(hits[0]), subject=INNER),
        Expect("nonfinite-gradient", int(hits[0])),
    )


@FAULTY_CASES.add("norm-overflow-in-snapshots")
def overflow_in_snapshot(rng: Rng) -> Made:
    """The norm is Inf while the snapshot counts no bad element: only the norm overflowed."""
    made = pretraining(rng, 3000)
    start = made.at(0.3, 0.8)
    loop = Loop("fp32")
    usual = manifest(made, loop)
    params = healthy_params(made, usual, _with_step(3000, start))
    first = int(np.searchsorted(params.taken_at, start))
    params.data[("param", "grad_l2")][first, 3] = np.inf
    params.data[("param", "grad_absmax")][first, 3] = 2e20
    log = sheet(made, loop)
    log.values["grad_l2_pre_clip"][start] = np.inf
    log.values["grad_l2_post_clip"][start] = 0.0
    return run_of(made, loop, log, manifest=usual, params=params), fault(
        "norm-overflow", start, may={"clip-contamination", "nonfinite-step-applied"}
    )


def _state(name: str, kind: str, subject: str) -> None:
    @FAULTY_CASES.add(f"poisoned-{name}")
    def make(rng: Rng) -> Made:
        """State beside the weights goes bad, and the weights stay finite."""
        made = pretraining(rng, 4000)
        loop = Loop("bf16")
        usual = manifest(made, loop)
        at = snapshot_steps(4000)
        first = int(rng.integers(20, 80))
        params = healthy_params(made, usual, at)
        names = (subject, f"{subject}.other")
        values = np.ones((len(at), 2))
        values[first:, 0] = np.inf if kind == "optimizer" else np.nan
        counts = np.zeros((len(at), 2))
        counts[first:, 0] = 7
        params.kinds = {**params.kinds, kind: names}
        params.data = {
            **params.data,
            (kind, "value_l2"): values,
            (kind, "value_nonfinite"): counts,
        }
        return run_of(made, loop, manifest=usual, params=params), fault(
            "poisoned-state", int(at[first]), subject=subject
        )


_state("second-moment", "optimizer", "blocks.1.attn.qkv.weight.exp_avg_sq")
_state("ema", "ema", "blocks.0.mlp.up.weight")
_state("batchnorm", "buffer", "blocks.1.norm.running_var")


@FAULTY_CASES.add("poisoned-ema-in-checkpoints")
def poisoned_checkpoint(rng: Rng) -> Made:
    """No snapshots; the checkpoints' health files name a bad EMA tensor from one step on."""
    made = pretraining(rng, 3000)
    loop = Loop("bf16")
    start = 500 * int(rng.integers(2, 5))
    checkpoints = tuple(
        _checkpoint(step, [] if step < start else ["ema.blocks.0.mlp.up.weight"])
        for step in range(500, 3001, 500)
    )
    return run_of(made, loop, manifest=manifest(made, loop), checkpoints=checkpoints), fault(
        "poisoned-state",
        start,
        slack=500,  # a checkpoint every 500 steps dates it no better
    )


def _checkpoint(step: int, bad: list[str]) -> CheckpointInfo:
    health = {"step": step, "healthy": not bad, "bad": [_bad_tensor(name) for name in bad]}
    return CheckpointInfo(step, Path(f"step-{step:08d}.pt"), not bad, health)


def _bad_tensor(name: str) -> dict[str, object]:
    """One bad tensor as the health file lists it."""
    kind, _, rest = name.partition(".")
    return {"name": name, "kind": kind, "parameter": rest, "nan": 7, "inf": 0, "numel": 262_144}
