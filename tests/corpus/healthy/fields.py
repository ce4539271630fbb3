"""Healthy logs of particular fields and trainers: what each looks like when all is well."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, run_of, sheet
from tests.corpus.case import HEALTHY, HEALTHY_CASES, Label
from tests.corpus.healthy.shapes import any_loop
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng, student
from tests.corpus.training import fine_tuning, pretraining, training, vision

Made = tuple[Run, Label]


@HEALTHY_CASES.add("diffusion")
def diffusion(rng: Rng) -> Made:
    """The loss falls in a hundred steps and is noise of 40 % from then on; the samples improve."""
    made = pretraining(rng, int(rng.choice([2000, 20_000])))
    made.loss = 0.06 + 0.9 * np.exp(-np.arange(made.rows) / 60)
    made.loss_noise = 0.4 * rng.standard_normal(made.rows)
    made.norm_noise = 0.5 * rng.standard_normal(made.rows)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("preference-tuning")
def preference(rng: Rng) -> Made:
    """From ln 2 down to about 0.4, noisy; norms large."""
    made = fine_tuning(rng, 1200)
    made.loss = 0.4 + 0.293 * np.exp(-np.arange(1200) / 400)
    made.loss_noise = 0.2 * rng.standard_normal(1200)
    made.norm = 8 * np.ones(1200)
    return run_of(made, Loop("bf16"), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("contrastive")
def contrastive(rng: Rng) -> Made:
    """From ln(batch) down slowly, with a temperature that is learned; norms rise fourfold."""
    made = pretraining(rng, 8000)
    at = np.arange(made.rows)
    made.loss = 2.0 + 4.9 * np.exp(-at / 2500)
    made.norm = 0.5 * np.exp(1.4 * at / made.rows)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("adapter-from-zero")
def adapter(rng: Rng) -> Made:
    """A low-rank adapter that starts at zero: tiny norms in the first steps, rate 0 at step 0."""
    made = fine_tuning(rng, 900)
    made.norm = 0.3 + 0.5 * (1 - np.exp(-np.arange(900) / 30))
    made.norm[:3] = [1e-6, 0.01, 0.1]
    made.lr = 2e-4 * np.minimum(np.arange(900) / 30, 1.0)
    made.schedule, made.warmup = "constant", 30
    return run_of(made, Loop("bf16"), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("epoch-staircase")
def staircase(rng: Rng) -> Made:
    """Fine-tuning on little data: the loss steps down at the end of each of four epochs."""
    made = fine_tuning(rng, 2400)
    epoch = np.floor(4 * np.arange(2400) / 2400)
    made.loss = 1.4 * 0.72**epoch
    made.norm_factor = 1.2**epoch
    return run_of(made, Loop("bf16"), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("residual-net-step-decay")
def step_decay(rng: Rng) -> Made:
    """The loss drops by 40 % where the rate is cut, and creeps up a little in between."""
    made = vision(rng, 9000)
    part = np.floor(3 * np.arange(9000) / 9000)
    inside = (3 * np.arange(9000) / 9000) % 1
    made.rate("step-decay", 0.1)
    made.loss = 2.2 * 0.6**part * (1 + 0.06 * np.where(part > 0, inside, -inside * 4))
    made.norm_factor = 1.4**part
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("summed-loss")
def summed(rng: Rng) -> Made:
    """The loss is a sum over tokens: 30,000, with norms of thousands, clipped in every step."""
    made = pretraining(rng, 3000)
    made.loss = made.loss * 8192
    made.norm = made.norm * 8192
    made.limit -= 9
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("tiny-loss")
def tiny_loss(rng: Rng) -> Made:
    """A mean over very many outputs: a loss of 1e-5 that falls, norms of 1e-6."""
    made = training(rng, 3000, "regression")
    made.loss = made.loss * 1e-5
    made.norm = made.norm * 1e-6
    return run_of(made, Loop("fp32", max_norm=None), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("trainer-lines")
def trainer_lines(rng: Rng) -> Made:
    """A trainer's record every ten steps: four decimals, rate to zero, evaluation now and then."""
    made = training(rng, 6000, str(rng.choice(["fine-tuning", "vision", "pretraining"])))
    made.rate("linear", 5e-5, 300)
    log = sheet(made, Loop("fp16", torch_policy())).take(slice(9, None, 10))
    log.rounded(4, "loss", "grad_l2_pre_clip")
    log.values["epoch"] = np.round(log.values["step"] / 2000, 2)
    there = np.arange(log.rows) % 50 == 49
    log.values["val_loss"] = np.where(there, made.loss[log.values["step"]] * 1.02, np.nan)
    log.written["val_loss"] = there
    return run_of(made, Loop(), log.drop("skipped", "scaler_scale"), form="foreign"), HEALTHY


@HEALTHY_CASES.add("validation-best-early-then-flat")
def validation_flat(rng: Rng) -> Made:
    """The validation loss reaches its floor at 60 % and stays there within its noise."""
    made = pretraining(rng, 10_000)
    log = sheet(made, Loop("bf16"))
    there = np.arange(made.rows) % 400 == 399
    val = np.maximum(made.loss, made.loss[6000]) * np.exp(0.008 * rng.standard_normal(made.rows))
    log.values["val_loss"] = np.where(there, val, np.nan)
    log.written["val_loss"] = there
    return run_of(made, Loop("bf16"), log, form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("rate-cut-on-plateau")
def cut_on_plateau(rng: Rng) -> Made:
    """The rate is cut by ten whenever the loss stands still; each cut helps a little."""
    made = vision(rng, 6000)
    part = np.floor(3 * np.arange(6000) / 6000)
    made.rate("step-decay", 1e-3)
    made.loss = 1.8 * np.exp(-np.arange(6000) / 500) + 1.0 - 0.15 * part
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("student-noise-in-the-loss")
def heavy_loss(rng: Rng) -> Made:
    """Single samples of large loss in small batches: a heavy tail, no spikes."""
    made = training(rng, int(rng.choice([2000, 20_000])), "small-batch")
    made.loss_noise = np.log1p(0.15 * np.abs(student(rng, made.rows, 3)))
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("restart-bumps")
def restart_bumps(rng: Rng) -> Made:
    """Warm restarts: the loss rises by a tenth each time the rate does, and falls below before."""
    made = pretraining(rng, 8000)
    made.rate("restarts", 6e-4)
    made.loss = made.loss * (1 + 0.1 * made.lr / made.lr.max())
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("value-loss-follows-its-returns")
def value_loss(rng: Rng) -> Made:
    """A temporal-difference loss: it rises as the returns grow, and settles where they do."""
    made = training(rng, int(rng.choice([4000, 20_000])), "reinforcement")
    at = np.arange(made.rows)
    tau = made.rows * rng.uniform(0.15, 0.3)
    height = rng.uniform(0.1, 0.8)
    grown = height * (1 - np.exp(-(at - made.rows // 40).clip(0) / tau))
    made.loss[:] = 0.05 + 0.1 * np.exp(-at / (made.rows / 60)) + grown
    made.loss_shift[:] = 0.0
    made.loss_noise[:] = rng.uniform(0.3, 0.5) * rng.standard_normal(made.rows)
    made.norm[:] = 1.5 * (1 + grown)
    return run_of(made, Loop(), form=any_form(made)), HEALTHY
