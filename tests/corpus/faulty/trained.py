"""Faults in a network that really trains: their consequences are computed, not drawn."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import PATH
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, SKIPS, STALL
from tests.corpus.healthy.trained import trained
from tests.corpus.noise import Rng
from tests.corpus.tiny import BATCH, SAMPLES, Tiny

Made = tuple[Run, Label]


@FAULTY_CASES.add("trained-rate-too-high")
def rate_too_high(rng: Rng) -> Made:
    """SGD on a squared error beyond its stable rate: ever faster growth to Inf, then NaN."""
    log = trained(Tiny(rng, lr=rng.uniform(2.3, 2.7), squared=True), 400)
    while np.isfinite(log.values["loss"]).all():  # some networks stand even this rate
        log = trained(Tiny(rng, lr=rng.uniform(2.3, 2.7), squared=True), 400)
    bad = int(np.argmax(~np.isfinite(log.values["loss"])))
    return Run(PATH, log.table()), fault(
        ("gradient-explosion", "loss-divergence"),
        0,
        Expect("nonfinite-loss", bad),
        upto=bad,
        may=BLOW_UP | DAMAGE | {"norm-overflow"},
    )


@FAULTY_CASES.add("trained-bad-sample-applied")
def bad_sample(rng: Rng) -> Made:
    """One sample has a NaN feature; the first batch that draws it ends the run."""
    log = trained(Tiny(rng, bad_sample=5), 900)
    bad = int(np.argmax(~np.isfinite(log.values["loss"])))
    return Run(PATH, log.table()), fault(
        "nonfinite-loss",
        bad,
        Expect("nonfinite-step-applied", bad),
        Expect("dead-run", bad),
        may=DAMAGE,
    )


@FAULTY_CASES.add("trained-bad-sample-every-epoch")
def bad_sample_again(rng: Rng) -> Made:
    """The same, skipped and not shuffled: NaN once an epoch of 32 steps."""
    sample = int(rng.integers(SAMPLES))
    log = trained(Tiny(rng, bad_sample=sample, guard=True, shuffle=False), 700)
    first = sample // BATCH
    return Run(PATH, log.table()), fault(
        ("recurring-sample", "nonfinite-loss"),
        first,
        Expect("recurring-sample", first),
        Expect("nonfinite-loss", first),
        may={"high-skip-rate"},
    )


@FAULTY_CASES.add("trained-fp16-weights-blow-up")
def weights_blow_up(rng: Rng) -> Made:
    """fp16 gradients of a diverging fit: overflow follows overflow, and the scale collapses."""
    log = trained(Tiny(rng, lr=rng.uniform(2.5, 4), half=True, squared=True), 1200)
    skipped = np.flatnonzero(log.values["skipped"])
    return Run(PATH, log.table()), fault(
        ("gradient-explosion", "loss-divergence", "loss-scale-collapse", "nonfinite-gradient"),
        0,
        Expect("dead-run", None),
        slack=max(60, int(skipped[0])),
        may=BLOW_UP | SKIPS | DAMAGE | {"loss-scale-oscillation", "stuck-log", "loss-plateau"},
    )


@FAULTY_CASES.add("trained-thrown-off")
def thrown_off(rng: Rng) -> Made:
    """Adam's first updates are far too large: from then on it guesses, as it did at the start."""
    rate = float(np.exp(rng.uniform(np.log(0.5), np.log(5))))
    log = trained(Tiny(rng, lr=rate, adam=True, max_norm=1.0), 800)
    return Run(PATH, log.table()), fault(
        ("loss-plateau", "loss-divergence"), 0, slack=40, may=BLOW_UP | STALL
    )


@FAULTY_CASES.add("trained-wrong-sign")
def wrong_sign(rng: Rng) -> Made:
    """A minus before the cross-entropy: the loss falls below zero, faster and faster."""
    adam = bool(rng.random() < 0.5)
    rate = rng.uniform(0.002, 0.006) if adam else rng.uniform(0.03, 0.1)
    log = trained(Tiny(rng, lr=rate, adam=adam, max_norm=1.0, climbs=True), 800)
    return Run(PATH, log.table()), fault("unbounded-loss", 0, may=BLOW_UP)
