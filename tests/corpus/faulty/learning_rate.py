"""Learning rates that are not what they should be."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, onset_slack, run_of
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, SKIPS, STALL
from tests.corpus.faulty.nonfinite import sixteen
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import pretraining, training

Made = tuple[Run, Label]


@FAULTY_CASES.add("lr-nan")
def lr_nan(rng: Rng) -> Made:
    """The schedule returns NaN: the weights are NaN after that step."""
    made = pretraining(rng, int(rng.choice([300, 3000])))
    start = made.at(0.2, 0.8)
    made.rate("constant", 1e-3)
    made.lr[start:] = np.nan
    made.nan_loss[start + 1 :] = True
    return run_of(made, Loop(), form=any_form(made)), fault(
        "learning-rate-fault", start, Expect("nonfinite-loss", start + 1), may=DAMAGE
    )


@FAULTY_CASES.add("lr-inf")
def lr_inf(rng: Rng) -> Made:
    """A division by zero in the schedule."""
    made = pretraining(rng, 2000)
    start = made.at(0.2, 0.8)
    made.rate("cosine", 1e-3)
    made.lr[start] = np.inf
    made.nan_loss[start + 1 :] = True
    return run_of(made, Loop("bf16"), form="canonical"), fault(
        "learning-rate-fault", start, Expect("nonfinite-loss", start + 1), may=DAMAGE
    )


@FAULTY_CASES.add("lr-negative")
def lr_negative(rng: Rng) -> Made:
    """A linear decay that runs through zero: the loss climbs from there."""
    made = pretraining(rng, 5000)
    end = made.at(0.6, 0.8)
    made.schedule, made.warmup = "linear", 0
    made.lr = 1e-3 * (1 - np.arange(made.rows) / end)
    made.lr[end] = -1e-7
    later = (np.arange(made.rows) - end).clip(0)
    made.loss_factor = np.exp(np.minimum((later / 1000) ** 2, 3))
    return run_of(made, Loop(), form=any_form(made)), fault("learning-rate-fault", end, may=BLOW_UP)


@FAULTY_CASES.add("lr-zero-from-the-start")
def lr_zero(rng: Rng) -> Made:
    """The rate is 0 throughout: nothing moves, and the norms are fine."""
    made = pretraining(rng, int(rng.choice([400, 4000])))
    made.rate("constant", 0.0)
    made.loss[:] = 6.9
    made.norm[:] = 0.7
    return run_of(made, Loop(), form=any_form(made)), fault(
        "learning-rate-fault", 0, may=STALL | {"frozen-parameter"}
    )


@FAULTY_CASES.add("lr-zero-midway")
def lr_zero_midway(rng: Rng) -> Made:
    """A schedule shorter than the run: the last third is trained at 0."""
    made = pretraining(rng, 9000)
    end = 6000
    made.schedule, made.warmup = "linear", 0
    made.lr = 1e-3 * np.maximum(0, 1 - np.arange(made.rows) / end)
    made.loss[end:] = made.loss[end]
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        "learning-rate-fault", end, may=STALL
    )


def _jump(name: str, rows: int, factor: float) -> None:
    @FAULTY_CASES.add(f"lr-jump-{name}")
    def make(rng: Rng) -> Made:
        """The rate jumps in one step, and the run pays for it."""
        made = pretraining(rng, rows)
        start = made.at(0.3, 0.7)
        made.rate("cosine", 3e-4, rows // 50)
        made.lr[start:] *= factor
        later = (np.arange(rows) - start).clip(0)
        made.norm_factor = np.exp(np.minimum(later * 0.05, 4.0))
        made.loss_factor = 1 + 1.5 * np.minimum(later / 60, 1)
        return run_of(made, Loop("bf16"), form=any_form(made)), fault(
            "learning-rate-fault", start, may=BLOW_UP
        )


_jump("x10", 4000, 10.0)
_jump("x100", 1500, 100.0)
_jump("x30-long", 80_000, 30.0)


@FAULTY_CASES.add("scheduler-steps-on-skips")
def on_skips(rng: Rng) -> Made:
    """A tenth of the steps is skipped and the schedule moves on with each of them."""
    made = sixteen(rng, 5000)
    made.rate("linear", 1e-3, 200)
    start = made.at(0.1, 0.3)
    made.inf_grad[start:] = rng.random(made.rows - start) < 0.08
    policy = torch_policy(interval=100, floor=1.0)
    loop = Loop("fp16", policy, scheduler_skips=False)
    return run_of(made, loop, form=any_form(made)), fault(
        (
            "loss-scale-oscillation",
            "loss-scale-collapse",
            "nonfinite-gradient",
            "learning-rate-fault",
        ),
        start,
        Expect("learning-rate-fault", None),
        slack=onset_slack(made.rows),
        may=SKIPS | {"loss-scale-oscillation"},
    )


def _too_high(name: str, rows: int, per_step: float) -> None:
    @FAULTY_CASES.add(f"lr-too-high-{name}")
    def make(rng: Rng) -> Made:
        """Far too high from the start: a smooth blow-up that ends in NaN."""
        made = training(rng, rows, "vision").clean_noise(0.03, 0.2)
        made.rate("constant", 10.0)
        growth = np.exp(np.minimum(np.arange(rows) * per_step, 85))
        made.loss, made.norm = 2.3 * growth, 1.0 * growth
        end = int(rng.uniform(10, 18) / per_step)
        made.nan_loss[end:] = True
        return run_of(made, Loop(max_norm=None), form=any_form(made)), fault(
            ("gradient-explosion", "loss-divergence"),
            0,
            Expect("nonfinite-loss", end),
            slack=max(8, end // 5),
            may=BLOW_UP | DAMAGE,
        )


_too_high("in-forty-steps", 200, 0.45)
_too_high("in-eighty-steps", 300, 0.18)
_too_high("in-two-hundred-steps", 1000, 0.07)
