"""Long chains and innocent oddities beside the fault: what a real log looks like."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import PATH, as_text, manifest, onset_slack, run_of, sheet, through_csv
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, SKIPS, SWINGS
from tests.corpus.faulty.nonfinite import APPLIED, GUARDED16, sixteen
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import headroom, pretraining

Made = tuple[Run, Label]


@FAULTY_CASES.add("messy-calibration-spike-then-overflow")
def calibration_first(rng: Rng) -> Made:
    """A calibration, a benign skip, a recovered spike; then forward overflows for good."""
    made = sixteen(rng, 12_000).clean_noise(0.01, 0.15)
    made.limit[:] = 15.2 + 0.3 * rng.standard_normal(made.rows)
    spike = made.at(0.3, 0.4)
    made.norm_factor[spike] *= 8
    made.loss_factor[spike : spike + 4] += 0.4
    start = made.at(0.6, 0.8)
    made.nan_loss[start:] = True
    loop = Loop("fp16", torch_policy(2.0**24), guard=True)
    return run_of(made, loop, form="full"), fault(
        "nonfinite-loss", start, Expect("dead-run", start), may=SKIPS | DAMAGE
    )


@FAULTY_CASES.add("messy-torn-line-after-nan")
def torn_after_nan(rng: Rng) -> Made:
    """NaN applied, and the log ends in half a line."""
    made = pretraining(rng, 2500)
    start = made.at(0.4, 0.8)
    made.nan_grad[start] = True
    text = as_text(sheet(made, Loop()))
    table = through_csv(text, lambda data: data[:-11])
    return Run(PATH, table, manifest=manifest(made, Loop(), ended=None)), fault(
        APPLIED,
        start,
        Expect("nonfinite-step-applied", start),
        Expect("nonfinite-loss", start + 1),
        may=DAMAGE,
    )


@FAULTY_CASES.add("messy-explosion-to-poison")
def whole_chain(rng: Rng) -> Made:
    """Growth of the norm, overflows, a collapsing scale, NaN in forward, a dead run."""
    made = sixteen(rng, 10_000).clean_noise(0.01, 0.15)
    start = made.at(0.4, 0.5)
    later = (np.arange(made.rows) - start).clip(0)
    made.norm_factor = np.exp(np.minimum(later * 0.01, 14))
    made.loss_factor = 1 + 2 * np.minimum((later - 500).clip(0) / 600, 1)
    end = start + 1500
    made.nan_loss[end:] = True
    return run_of(made, GUARDED16, form="full"), fault(
        "gradient-explosion",
        start,
        Expect("nonfinite-loss", end),
        Expect("dead-run", end),
        slack=onset_slack(made.rows),
        may=BLOW_UP | SKIPS | SWINGS | DAMAGE,
    )


@FAULTY_CASES.add("messy-sawtooth-then-nan-batch")
def sawtooth_then_nan(rng: Rng) -> Made:
    """Twenty routine overflows, then NaN losses for good."""
    made = pretraining(rng, 40_000)
    made.limit = headroom(rng, made.rows, "t3", 15)
    start = made.at(0.7, 0.95)
    made.nan_loss[start:] = True
    return run_of(made, GUARDED16, form="recorded"), fault(
        "nonfinite-loss", start, Expect("dead-run", start), may=SKIPS
    )


@FAULTY_CASES.add("messy-spikes-long-before-nan")
def spikes_before(rng: Rng) -> Made:
    """Recovered spikes early on have nothing to do with the NaN gradient at the end."""
    made = pretraining(rng, 20_000).clean_noise(0.01, 0.15)
    for hit in (made.at(0.1, 0.15), made.at(0.3, 0.35)):
        made.norm_factor[hit] *= 12
        made.loss_factor[hit : hit + 3] += 0.3
    start = made.at(0.8, 0.95)
    made.nan_grad[start] = True
    return run_of(made, Loop(), form="full"), fault(
        APPLIED,
        start,
        Expect("nonfinite-step-applied", start),
        Expect("nonfinite-loss", start + 1),
        Expect("dead-run", start, upto=start + 1),
        may=DAMAGE,
    )


@FAULTY_CASES.add("messy-two-unrelated")
def two_faults(rng: Rng) -> Made:
    """The scheduler moves on skipped steps, and much later a NaN is applied: the NaN is what
    killed the run."""
    made = pretraining(rng, 9000)
    early = np.sort(rng.choice(np.arange(1000, 4000), 5, replace=False))
    made.nan_loss[early] = True
    start = made.at(0.7, 0.9)
    made.nan_loss[start:] = True
    return run_of(made, Loop("bf16", guard=True), form="recorded"), fault(
        "nonfinite-loss",
        int(early[0]),
        Expect("nonfinite-loss", start),
        Expect("dead-run", start),
        slack=made.rows,  # the early batches or the last episode: either is the loss's own
        may=SKIPS,
    )


@FAULTY_CASES.add("messy-noisy-collapse")
def noisy_collapse(rng: Rng) -> Made:
    """A small batch, every tenth step logged: forward overflow is still told."""
    made = sixteen(rng, 20_000, "small-batch")
    start = made.at(0.5, 0.8)
    made.nan_loss[start:] = True
    log = sheet(made, Loop("fp16", torch_policy())).take(slice(0, None, 10))
    return run_of(made, Loop("fp16", torch_policy()), log, form="foreign"), fault(
        "nonfinite-loss", start, upto=start + 10, may=SKIPS | DAMAGE
    )
