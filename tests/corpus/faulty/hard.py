"""Faults at the edge of what a log shows: mild, late, short, noisy, or among others' noise."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, manifest, onset_slack, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, SKIPS, STALL
from tests.corpus.faulty.nonfinite import APPLIED, GUARDED16, sixteen
from tests.corpus.healthy.snapshots import healthy_params, snapshot_steps
from tests.corpus.loop import Loop, megatron_policy, torch_policy
from tests.corpus.noise import Rng, student
from tests.corpus.training import headroom, pretraining, training

Made = tuple[Run, Label]


@FAULTY_CASES.add("hard-overflow-in-calibration")
def in_calibration(rng: Rng) -> Made:
    """The calibration never ends: backward overflows at any scale from the first step on."""
    made = sixteen(rng, int(rng.choice([300, 3000])))
    made.inf_grad[:] = True
    loop = Loop("fp16", torch_policy())
    return run_of(made, loop, form=any_form(made)), fault(
        ("nonfinite-gradient", "loss-scale-collapse"),
        0,
        Expect("dead-run", 0),
        slack=20,
        may=SKIPS | DAMAGE | STALL,
    )


@FAULTY_CASES.add("hard-megatron-at-scale-one")
def megatron_stuck(rng: Rng) -> Made:
    """Megatron's scaler at its floor of 1: 40 % of the steps overflow there, for thousands."""
    made = sixteen(rng, 8000)
    start = made.at(0.3, 0.5)
    made.inf_grad[start:] = rng.random(8000 - start) < 0.4
    loop = Loop("fp16", megatron_policy())
    return run_of(made, loop, form=any_form(made)), fault(
        ("loss-scale-collapse", "nonfinite-gradient"),
        start,
        Expect("high-skip-rate", None),
        slack=40,
        upto=start + 120,
        may=SKIPS | {"loss-scale-oscillation"},
    )


@FAULTY_CASES.add("hard-nan-two-steps-before-the-end")
def near_the_end(rng: Rng) -> Made:
    """NaN gradient applied, and the job is killed two steps later."""
    made = pretraining(rng, 900)
    start = 897
    made.nan_grad[start] = True
    return run_of(made, Loop(), form=any_form(made, "foreign")), fault(
        APPLIED, start, Expect("nonfinite-step-applied", start), may=DAMAGE
    )


@FAULTY_CASES.add("hard-nan-at-step-three")
def at_step_three(rng: Rng) -> Made:
    """NaN loss at the fourth step of a long run; every step since is skipped."""
    made = sixteen(rng, 5000)
    made.nan_loss[3:] = True
    return run_of(made, GUARDED16, form=any_form(made)), fault(
        "nonfinite-loss", 3, Expect("dead-run", 3), may=SKIPS | DAMAGE
    )


@FAULTY_CASES.add("hard-thirty-rows")
def thirty_rows(rng: Rng) -> Made:
    """Thirty rows, NaN from the twentieth."""
    made = pretraining(rng, 30)
    start = int(rng.integers(12, 25))
    made.nan_loss[start:] = True
    return run_of(made, Loop(), form=any_form(made)), fault("nonfinite-loss", start, may=DAMAGE)


@FAULTY_CASES.add("hard-nan-gradient-among-routine-overflows")
def among_routine(rng: Rng) -> Made:
    """A sawtooth of routine overflows; then NaN gradients in every step."""
    made = pretraining(rng, 30_000)
    made.limit = headroom(rng, made.rows, "t3", 14)
    start = made.at(0.5, 0.9)
    made.nan_grad[start:] = True
    return run_of(made, Loop("fp16", torch_policy()), form=any_form(made)), fault(
        ("nonfinite-gradient", "loss-scale-collapse"),
        start,
        Expect("dead-run", start),
        may=SKIPS | DAMAGE,
    )


@FAULTY_CASES.add("hard-skip-rate-creeps-up")
def creeping(rng: Rng) -> Made:
    """Overflows at any scale, rarer than the alarm at first, six per cent at the end."""
    made = sixteen(rng, 20_000)
    start = made.at(0.3, 0.4)
    share = 0.06 * ((np.arange(20_000) - start).clip(0) / (20_000 - start)) ** 0.5
    made.inf_grad = rng.random(20_000) < share
    loop = Loop("fp16", torch_policy(floor=1.0))
    return run_of(made, loop, form=any_form(made)), fault(
        ("loss-scale-collapse", "nonfinite-gradient", "loss-scale-oscillation"),
        start,
        Expect("high-skip-rate", None),
        slack=onset_slack(20_000),
        upto=start + 2500,
        may=SKIPS | {"loss-scale-oscillation", "nonfinite-gradient"},
    )


@FAULTY_CASES.add("hard-explosion-in-heavy-noise")
def noisy_explosion(rng: Rng) -> Made:
    """Exponential growth under norms with t3 tails and a loss of 20 % noise."""
    made = training(rng, 8000, "small-batch")
    made.norm_noise = 0.4 * student(rng, 8000, 3)
    start = made.at(0.3, 0.5)
    later = (np.arange(8000) - start).clip(0)
    made.norm_factor = np.exp(np.minimum(later * 0.006, 8))
    made.loss[start:] = made.loss[start]
    made.loss_factor = 1 + 2.5 * np.minimum((later - 500).clip(0) / 1500, 1)
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        ("gradient-explosion", "loss-divergence"),
        start,
        Expect("gradient-explosion", start, onset_slack(8000)),
        slack=onset_slack(8000),
        upto=start + 700,
        may=BLOW_UP,
    )


@FAULTY_CASES.add("hard-divergence-after-a-spike")
def after_spike(rng: Rng) -> Made:
    """A spike half-way that recovers, and a thousand steps later the loss turns for good."""
    made = pretraining(rng, 10_000).clean_noise(0.015, 0.15)
    spike = made.at(0.4, 0.5)
    made.norm_factor[spike] *= 15
    made.loss_factor[spike : spike + 6] += 0.5 * np.exp(-np.arange(6) / 2)
    start = spike + 1500
    made.loss[start:] = made.loss[start]
    later = (np.arange(10_000) - start).clip(0)
    made.loss_factor += 0.9 * np.minimum(later / 1500, 1)
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        "loss-divergence", start, slack=onset_slack(10_000, 0.08), may=BLOW_UP
    )


@FAULTY_CASES.add("hard-slow-vanishing-among-decay")
def slow_vanishing(rng: Rng) -> Made:
    """Norms fall by seven decades over half the run while the loss has stopped at two thirds."""
    made = pretraining(rng, 20_000)
    start = made.at(0.2, 0.3)
    made.norm_factor = np.exp(-np.minimum((np.arange(20_000) - start).clip(0) / 550, 18))
    made.loss[start:] = made.loss[start]
    return run_of(made, Loop("fp32"), form=any_form(made)), fault(
        "gradient-vanishing", start, slack=onset_slack(20_000), upto=start + 9000, may=STALL
    )


@FAULTY_CASES.add("hard-lr-constant-where-cosine-is-named")
def lr_constant(rng: Rng) -> Made:
    """run.json names a cosine; the scheduler is never stepped and the rate stays where it was."""
    made = pretraining(rng, 6000)
    made.rate("constant", 3e-4)
    loop = Loop("bf16")
    usual = manifest(
        made, loop, schedule={"name": "cosine", "warmup_steps": 100, "total_steps": 6000}
    )
    return run_of(made, loop, manifest=usual), fault("learning-rate-fault", 0, slack=150)


@FAULTY_CASES.add("hard-one-step-at-a-thousandfold-rate")
def one_step(rng: Rng) -> Made:
    """The rate is a thousand times too large in one single step; the loss never comes back."""
    made = pretraining(rng, 5000).clean_noise(0.01, 0.15)
    start = made.at(0.3, 0.7)
    made.rate("cosine", 3e-4, 100)
    made.lr[start] *= 1000
    made.loss[start:] = made.loss[start]
    made.loss_factor[start + 1 :] = 1.9
    made.norm_factor[start + 1 :] = 4
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        "learning-rate-fault", start, may=BLOW_UP
    )


@FAULTY_CASES.add("hard-poisoned-batchnorm-kills-validation")
def batchnorm(rng: Rng) -> Made:
    """Running statistics turn Inf in one batch: training goes on, every validation is NaN."""
    made = pretraining(rng, 4000)
    loop = Loop("fp32")
    usual = manifest(made, loop)
    at = snapshot_steps(4000)
    first = int(rng.integers(20, 60))
    params = healthy_params(made, usual, at)
    bad = (np.arange(len(at)) >= first)[:, None]
    params.kinds = {**params.kinds, "buffer": ("stem.bn.running_var",)}
    params.data[("buffer", "value_l2")] = np.where(bad, np.inf, 1.0)
    params.data[("buffer", "value_nonfinite")] = np.where(bad, 3, 0)
    log = sheet(made, loop)
    there = np.arange(4000) % 200 == 199
    dead = np.arange(4000) >= at[first]
    log.values["val_loss"] = np.where(dead, np.nan, made.loss * 1.03)
    log.written["val_loss"] = there
    later = int(np.flatnonzero(there & dead)[0])
    return run_of(made, loop, log, manifest=usual, params=params), fault(
        "poisoned-state",
        int(at[first]),
        Expect("nonfinite-validation", later),
        subject="stem.bn.running_var",
    )


@FAULTY_CASES.add("hard-two-nan-batches-a-million-times-apart")
def two_batches(rng: Rng) -> Made:
    """Two NaN batches, far apart in 200,000 steps, both skipped by the scaler."""
    made = sixteen(rng, 200_000)
    made.limit = headroom(rng, made.rows, "gaussian", 15)
    first, second = made.at(0.1, 0.2), made.at(0.7, 0.9)
    made.nan_loss[[first, second]] = True
    return run_of(made, Loop("fp16", torch_policy()), form=any_form(made)), fault(
        "nonfinite-loss", first, Expect("nonfinite-loss", second)
    )


@FAULTY_CASES.add("hard-guard-hides-a-dead-run")
def guard_dead(rng: Rng) -> Made:
    """bf16 with a guard: from one step on every gradient is NaN and skipped; the loss is flat."""
    made = pretraining(rng, 7000)
    start = made.at(0.3, 0.8)
    made.nan_grad[start:] = True
    return run_of(made, Loop("bf16", guard=True), form=any_form(made)), fault(
        "nonfinite-gradient", start, Expect("dead-run", start), may=SKIPS | DAMAGE | STALL
    )


@FAULTY_CASES.add("hard-clip-off-in-some-steps")
def clip_sometimes(rng: Rng) -> Made:
    """Accumulation steps are clipped, one in eight is not."""
    made = training(rng, 3000, "fine-tuning")
    made.norm = made.norm + 1.5
    log = sheet(made, Loop("bf16"))
    off = np.arange(3000) % 8 == 7
    pre = np.asarray(log.values["grad_l2_pre_clip"])
    log.values["grad_l2_post_clip"] = np.where(off, pre, log.values["grad_l2_post_clip"])
    first = int(np.flatnonzero(off & (pre > 1.01))[0])
    return run_of(made, Loop("bf16"), log, form="recorded"), fault("clipping-ineffective", first)
