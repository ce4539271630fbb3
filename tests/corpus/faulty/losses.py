"""Losses that spike, diverge, stand still, swing, over-fit."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, onset_slack, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import headroom, pretraining, training

Made = tuple[Run, Label]
LOOPS = (Loop(), Loop("bf16"), Loop("fp16", torch_policy()))


def _loop(rng: Rng) -> Loop:
    return LOOPS[int(rng.integers(len(LOOPS)))]


def _divergence(name: str, rows: int, rise: float, over: float, kind: str) -> None:
    @FAULTY_CASES.add(f"divergence-{name}")
    def make(rng: Rng) -> Made:
        """The loss turns and rises for good."""
        made = training(rng, rows, kind)
        start = made.at(0.4, 0.6)
        made.loss[start:] = made.loss[start]  # what turns stops learning
        later = (np.arange(rows) - start).clip(0) / (over * rows)
        made.loss_factor = 1 + rise * np.minimum(later, 1 + 0.1 * later)
        made.norm_factor = 1 + np.minimum(later, 1) * 1.5
        return run_of(made, _loop(rng), form=any_form(made)), fault(
            "loss-divergence",
            start,
            slack=onset_slack(rows, 0.08),  # the turn itself is hidden in the noise at first
            may=BLOW_UP,
        )


_divergence("fast", 2000, 1.5, 0.05, "pretraining")
_divergence("slow", 20_000, 0.8, 0.3, "pretraining")
_divergence("noisy", 8000, 2.0, 0.2, "small-batch")
_divergence("late-long", 200_000, 0.7, 0.2, "pretraining")
_divergence("vision", 5000, 1.0, 0.2, "vision")


@FAULTY_CASES.add("divergence-in-400-steps")
def short_divergence(rng: Rng) -> Made:
    """A learning rate far too high in a short run: down for fifty steps, then up and up."""
    made = pretraining(rng, 400).clean_noise(0.02, 0.2)
    start = int(rng.integers(40, 80))
    made.loss[start:] = made.loss[start]
    later = (np.arange(400) - start).clip(0)
    made.loss_factor = np.exp(np.minimum(later * 0.012, 3.0))
    made.norm_factor = np.exp(np.minimum(later * 0.02, 3.0))
    return run_of(made, Loop(), form=any_form(made)), fault(
        ("loss-divergence", "gradient-explosion"),
        start,
        Expect("loss-divergence", start, 25),
        slack=25,
        may=BLOW_UP,
    )


@FAULTY_CASES.add("divergence-at-warmup-end")
def warmup_end(rng: Rng) -> Made:
    """The peak of the learning rate is too high: trouble begins as warm-up ends."""
    made = pretraining(rng, 10_000)
    made.rate("cosine", 3e-3, 1500)
    start = made.warmup + int(rng.integers(-150, 150))
    made.loss[start:] = made.loss[start]
    later = (np.arange(made.rows) - start).clip(0)
    made.loss_factor = 1 + 1.2 * (1 - np.exp(-later / 500))
    made.norm_factor = 1 + 4 * (1 - np.exp(-later / 300))
    return run_of(made, Loop("bf16"), form="recorded"), fault(
        ("loss-divergence", "gradient-explosion"),
        start,
        Expect("instability-at-warmup-end", None),
        Expect("loss-divergence", start, onset_slack(made.rows)),
        slack=onset_slack(made.rows),
        may=BLOW_UP,
    )


@FAULTY_CASES.add("explosion-at-warmup-end")
def warmup_explosion(rng: Rng) -> Made:
    """The norm grows exponentially from the end of warm-up, and the loss follows."""
    made = pretraining(rng, 5000)
    made.rate("linear", 2e-3, 600)
    start = made.warmup + int(rng.integers(0, 120))
    made.loss[start:] = made.loss[start]
    later = (np.arange(made.rows) - start).clip(0)
    made.norm_factor = np.exp(np.minimum(later * 0.012, 8.0))
    made.loss_factor = 1 + 2.0 * np.minimum((later - 300).clip(0) / 600, 1)
    return run_of(made, Loop("bf16"), form="recorded"), fault(
        ("gradient-explosion", "loss-divergence"),
        start,
        Expect("instability-at-warmup-end", None),
        Expect("gradient-explosion", start, onset_slack(made.rows)),
        slack=onset_slack(made.rows),
        upto=start + 300,
        may=BLOW_UP,
    )


def _plateau(name: str, rows: int, kind: str) -> None:
    @FAULTY_CASES.add(f"never-learned-{name}")
    def make(rng: Rng) -> Made:
        """The loss is at the end where it was at the start."""
        made = training(rng, rows, kind)
        made.loss[:] = {"pretraining": 10.8, "vision": 6.9}.get(kind, 2.3)
        made.norm[:] = 0.5
        return run_of(made, Loop(), form=any_form(made)), fault(
            "loss-plateau", 0, slack=onset_slack(rows)
        )


_plateau("short", 500, "pretraining")
_plateau("vision", 8000, "vision")
_plateau("long", 100_000, "pretraining")


def _oscillation(name: str, rows: int, depth: float) -> None:
    @FAULTY_CASES.add(f"loss-swings-{name}")
    def make(rng: Rng) -> Made:
        """Period two: the rate is at the edge of stability, and the loss falls no more."""
        made = pretraining(rng, rows).clean_noise(0.005, 0.1)
        start = made.at(0.1, 0.3)
        at = np.arange(rows)
        made.loss[start:] = made.loss[start]
        made.loss_factor = np.where(at >= start, 1 + depth * (-1.0) ** at, 1.0)
        made.norm_factor = np.where(at >= start, 1 + 0.5 * (-1.0) ** at, 1.0)
        return run_of(made, Loop(), form=any_form(made)), fault(
            "loss-oscillation",
            start,
            slack=onset_slack(rows),
            may={"loss-plateau", "clipping-every-step"},
        )


_oscillation("blatant", 1000, 0.3)
_oscillation("mild", 6000, 0.06)
_oscillation("long", 60_000, 0.1)


def _stuck_spike(name: str, rows: int, height: float) -> None:
    @FAULTY_CASES.add(f"loss-spike-not-recovered-{name}")
    def make(rng: Rng) -> Made:
        """A spike that takes thousands of steps to come down, if it does."""
        made = pretraining(rng, rows).clean_noise(0.01, 0.12)
        start = made.at(0.4, 0.6)
        later = (np.arange(rows) - start).astype(float)
        slow = 0.75 + 0.25 * np.exp(-later.clip(0) / 50)
        made.loss_factor = np.where(later >= 0, 1 + height * slow, 1.0)
        made.norm_factor[start] *= 10
        made.norm_factor[start:] *= 1.5
        return run_of(made, Loop("bf16"), form=any_form(made)), fault(
            ("loss-spike", "gradient-spike", "loss-divergence"),
            start,
            slack=8,
            may=BLOW_UP,
        )


_stuck_spike("mild", 6000, 0.5)
_stuck_spike("blatant", 20_000, 1.2)
_stuck_spike("short", 1500, 0.8)


@FAULTY_CASES.add("loss-spikes-repeated")
def repeated_spikes(rng: Rng) -> Made:
    """Ten spikes within a thousand steps, each recovered in a few."""
    made = pretraining(rng, 8000).clean_noise(0.01, 0.12)
    start = made.at(0.4, 0.7)
    hits = start + np.sort(rng.choice(np.arange(20, 900, 20), 10, replace=False))
    hits = np.concatenate(([start], hits + rng.integers(0, 9, 10)))  # nothing recurs
    for hit in hits:
        made.loss_factor[hit : hit + 5] += 0.8 * np.exp(-np.arange(5) / 1.5)
        made.norm_factor[hit] *= 12
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        ("loss-spike", "gradient-spike"),
        start,
        Expect("loss-spike", start, least=Severity.WARNING),
    )


@FAULTY_CASES.add("spikes-one-step-after-the-norm")
def norm_then_loss(rng: Rng) -> Made:
    """A spike in the norm, and the loss pays for it three steps later, without coming back."""
    made = pretraining(rng, 5000).clean_noise(0.01, 0.1)
    start = made.at(0.3, 0.6)
    made.norm_factor[start] *= 60
    made.loss_factor[start + 3 :] = 1.7
    return run_of(made, Loop("bf16", max_norm=None), form=any_form(made)), fault(
        ("gradient-spike", "loss-spike", "loss-divergence"),
        start,
        slack=10,
        may=BLOW_UP,
    )


def _overfitting(name: str, rows: int, every: int, rise: float) -> None:
    @FAULTY_CASES.add(f"overfitting-{name}")
    def make(rng: Rng) -> Made:
        """The validation loss turns while the training loss falls on."""
        made = pretraining(rng, rows)
        log = sheet(made, Loop("bf16"))
        turn = made.at(0.35, 0.5)
        later = (np.arange(rows) - turn).clip(0) / (rows - turn)
        there = np.arange(rows) % every == every - 1
        val = made.loss * 1.05
        val = np.where(later > 0, val[turn], val)
        val = val * (1 + rise * later) * np.exp(0.004 * rng.standard_normal(rows))
        log.values["val_loss"] = np.where(there, val, np.nan)
        log.written["val_loss"] = there
        return run_of(made, Loop("bf16"), log, form=any_form(made)), fault(
            "overfitting", turn, slack=max(3 * every, onset_slack(rows, 0.1))
        )


_overfitting("mild", 10_000, 250, 0.25)
_overfitting("blatant", 4000, 100, 0.8)
_overfitting("long", 100_000, 2000, 0.4)


@FAULTY_CASES.add("validation-nan")
def validation_nan(rng: Rng) -> Made:
    """Validation is NaN from some step on while training is fine."""
    made = pretraining(rng, 6000)
    log = sheet(made, Loop("bf16"))
    there = np.arange(made.rows) % 200 == 199
    start = int(rng.integers(8, 25)) * 200 + 199
    bad = (np.arange(made.rows) >= start) & there
    val = made.loss * 1.04
    log.values["val_loss"] = np.where(bad, np.nan, val)
    log.written["val_loss"] = there
    return run_of(made, Loop("bf16"), log, form=any_form(made)), fault(
        "nonfinite-validation", start
    )


@FAULTY_CASES.add("validation-inf-always")
def validation_inf(rng: Rng) -> Made:
    """Every validation is Inf from the first one on."""
    made = pretraining(rng, 3000)
    log = sheet(made, Loop())
    there = np.arange(made.rows) % 300 == 299
    log.values["val_loss"] = np.where(there, np.inf, np.nan)
    log.written["val_loss"] = there
    return run_of(made, Loop(), log, form=any_form(made)), fault("nonfinite-validation", 299)


@FAULTY_CASES.add("validation-nan-once")
def validation_once(rng: Rng) -> Made:
    """One validation of twenty is NaN."""
    made = pretraining(rng, 4000)
    log = sheet(made, Loop("bf16"))
    there = np.arange(made.rows) % 200 == 0
    start = 200 * int(rng.integers(4, 18))
    log.values["val_loss"] = np.where(np.arange(made.rows) == start, np.nan, made.loss)
    log.written["val_loss"] = there
    return run_of(made, Loop("bf16"), log, form=any_form(made)), fault(
        "nonfinite-validation", start
    )


@FAULTY_CASES.add("divergence-with-nan-batches")
def nan_in_windows(rng: Rng) -> Made:
    """NaN batches all through the run, skipped, do not hide that the loss turns."""
    made = pretraining(rng, 8000)
    made.limit = headroom(rng, made.rows, level=20)
    start = made.at(0.4, 0.55)
    later = (np.arange(made.rows) - start).clip(0)
    made.loss_factor = 1 + 1.5 * np.minimum(later / 1500, 1)
    hits = np.sort(rng.choice(np.arange(100, 7900), 30, replace=False))
    made.nan_loss[hits] = True
    return run_of(made, Loop("bf16", guard=True), form="recorded"), fault(
        ("loss-divergence", "nonfinite-loss"),
        start,
        Expect("loss-divergence", start, onset_slack(made.rows)),
        Expect("nonfinite-loss", int(hits[0])),
        slack=made.rows,  # either may open the story
        may=BLOW_UP | DAMAGE,
    )


@FAULTY_CASES.add("loss-plunges-once")
def plunge(rng: Rng) -> Made:
    """One logged loss of minus a billion, between two ordinary ones."""
    made = pretraining(rng, int(rng.choice([600, 5000])))
    at = made.at(0.2, 0.9)
    made.loss_shift[at] = -(10.0 ** rng.uniform(5, 12))
    return run_of(made, _loop(rng), form=any_form(made)), fault("loss-spike", at)
