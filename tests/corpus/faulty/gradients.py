"""Gradient norms that spike, explode, vanish."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, onset_slack, ramp, run_of
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, SKIPS, STALL, SWINGS
from tests.corpus.faulty.nonfinite import sixteen
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import pretraining, training

Made = tuple[Run, Label]


def _explosion(name: str, rows: int, loop: Loop, per_step: float) -> None:
    @FAULTY_CASES.add(f"explosion-{name}")
    def make(rng: Rng) -> Made:
        """The norm grows exponentially; the loss follows; in the end everything is NaN."""
        made = sixteen(rng, rows)
        start = made.at(0.25, 0.55)
        made.norm_factor = ramp(rows, start, per_step)
        grown = made.norm_factor > 300
        made.loss_factor = np.where(grown, (made.norm_factor / 300) ** 0.4, 1.0).clip(None, 30)
        end = start + int(np.log(1e7) / per_step)
        if end < rows:
            made.nan_loss[end:] = True
        return run_of(made, loop, form=any_form(made)), fault(
            "gradient-explosion",
            start,
            slack=onset_slack(rows),
            may=BLOW_UP | DAMAGE | SKIPS | SWINGS,
        )


_explosion("fast", 3000, Loop("fp32"), 0.02)
_explosion("slow", 20_000, Loop("bf16"), 0.008)
_explosion("slowest", 100_000, Loop("fp32"), 0.0085)
_explosion("fp16", 8000, Loop("fp16", torch_policy()), 0.01)
_explosion("guarded", 5000, Loop("bf16", guard=True), 0.015)


@FAULTY_CASES.add("explosion-without-nan")
def level_stays(rng: Rng) -> Made:
    """The norm grows by three decades and stays there; the loss is worse for good."""
    made = pretraining(rng, 10_000)
    start = made.at(0.3, 0.5)
    made.norm_factor = np.minimum(ramp(made.rows, start, 0.01), 1000)
    made.loss_factor = 1 + 0.6 * np.minimum((np.arange(made.rows) - start).clip(0) / 1500, 1)
    return run_of(made, Loop("bf16", max_norm=None), form=any_form(made)), fault(
        ("gradient-explosion", "loss-divergence"),
        start,
        Expect("gradient-explosion", start, onset_slack(made.rows)),
        slack=onset_slack(made.rows),
        may=BLOW_UP,
    )


def _vanishing(name: str, rows: int, kind: str) -> None:
    @FAULTY_CASES.add(f"vanishing-{name}")
    def make(rng: Rng) -> Made:
        """The norm falls by many decades and stays while the loss stops falling."""
        made = training(rng, rows, kind)
        start = made.at(0.2, 0.4)
        fall = {"sudden": 5.0, "slow": rows / 40}.get(name, 30.0)
        made.norm_factor = np.maximum(np.exp(-(np.arange(rows) - start).clip(0) / fall), 1e-6)
        made.loss[start:] = made.loss[start]
        return run_of(made, Loop("fp32"), form=any_form(made)), fault(
            "gradient-vanishing",
            start,
            slack=onset_slack(rows),
            upto=start + int(9 * fall),
            may=STALL,
        )


_vanishing("sudden", 3000, "pretraining")
_vanishing("quick", 1200, "vision")
_vanishing("slow", 30_000, "pretraining")


@FAULTY_CASES.add("vanishing-from-the-start")
def from_start(rng: Rng) -> Made:
    """Saturated from the start: norms of 1e-9, a loss that never moves."""
    made = pretraining(rng, int(rng.choice([300, 3000])))
    made.norm[:] = 3e-9
    made.loss[:] = 2.3
    return run_of(made, Loop("fp32"), form=any_form(made)), fault(
        ("gradient-vanishing", "loss-plateau"),
        0,
        Expect("gradient-vanishing", 0),
        slack=onset_slack(made.rows),
        may=STALL,
    )


@FAULTY_CASES.add("vanishing-exact-zero")
def exact_zero(rng: Rng) -> Made:
    """A norm of exactly 0 from the first record: nothing is trained."""
    made = pretraining(rng, 2000)
    made.norm[:] = 0.0
    made.loss[:] = 10.8
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        ("gradient-vanishing", "loss-plateau"),
        0,
        Expect("gradient-vanishing", 0),
        slack=onset_slack(made.rows),
        may=STALL,
    )


def _spikes(name: str, rows: int, low: float, height: float) -> None:
    @FAULTY_CASES.add(f"gradient-spikes-{name}")
    def make(rng: Rng) -> Made:
        """Norm spikes again and again: eight or more within a thousand steps."""
        made = pretraining(rng, rows).clean_noise(0.01, 0.12)
        start = made.at(low, low + 0.15)
        count = int(rng.integers(9, 14))
        hits = start + np.sort(rng.choice(np.arange(1, 900), count, replace=False))
        hits = np.concatenate(([start], hits[np.diff(hits, prepend=start) > 10]))
        hits = hits[hits < rows]
        made.norm_factor[hits] *= height * np.exp(0.2 * rng.standard_normal(len(hits)))
        return run_of(made, Loop("bf16"), form=any_form(made)), fault(
            "gradient-spike",
            start,
            Expect("gradient-spike", start, least=Severity.WARNING),
            may={"clipping-every-step"},
        )


_spikes("2k", 2000, 0.2, 25)
_spikes("20k", 20_000, 0.6, 12)
_spikes("100k", 100_000, 0.8, 40)


@FAULTY_CASES.add("gradient-level-stays")
def level_jump(rng: Rng) -> Made:
    """The norm jumps by a factor of 30 in one step and does not come back; the loss suffers."""
    made = pretraining(rng, 6000).clean_noise(0.01, 0.12)
    start = made.at(0.4, 0.6)
    made.norm_factor[start:] = 30
    made.loss_factor[start + 2 :] = 1.5
    return run_of(made, Loop("bf16", max_norm=None), form=any_form(made)), fault(
        ("gradient-spike", "gradient-explosion", "loss-spike", "loss-divergence"),
        start,
        slack=onset_slack(made.rows),
        may=BLOW_UP,
    )


@FAULTY_CASES.add("nan-inside-the-explosion")
def nan_inside(rng: Rng) -> Made:
    """Skipped NaN batches inside the windows of the trend detector do not blind it."""
    made = pretraining(rng, 6000)
    start = made.at(0.3, 0.5)
    made.norm_factor = np.minimum(ramp(made.rows, start, 0.012), 3e4)
    made.loss_factor = 1 + 1.5 * np.minimum((np.arange(made.rows) - start - 400).clip(0) / 800, 1)
    nan = start + np.sort(rng.choice(np.arange(20, 600, 12), 7, replace=False))
    made.nan_grad[nan] = True
    return run_of(made, Loop("bf16", guard=True), form="recorded"), fault(
        ("gradient-explosion", "nonfinite-gradient"),
        start,
        Expect("gradient-explosion", start, onset_slack(made.rows)),
        Expect("nonfinite-gradient", int(nan[0])),
        Expect("loss-divergence", None),
        slack=onset_slack(made.rows),
        may=BLOW_UP | {"recurring-sample", "nonfinite-parameter"},
    )


@FAULTY_CASES.add("loss-switched-off")
def switched_off(rng: Rng) -> Made:
    """Batches without a single label from one step on: loss and norm are exactly 0 for good."""
    made = training(rng, int(rng.choice([400, 3000, 20_000])), "pretraining")
    start = made.at(0.3, 0.8)
    made.loss_factor[start:] = 0.0
    made.norm_factor[start:] = 0.0
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        ("gradient-vanishing", "masked-nonfinite"), start, may=STALL, undecided=True
    )
