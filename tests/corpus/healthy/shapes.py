"""Healthy shapes of loss, norm and learning rate."""

from __future__ import annotations

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, run_of, sheet
from tests.corpus.case import HEALTHY, HEALTHY_CASES, Expect, Label, healthy
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng, correlated, student
from tests.corpus.schedules import NAMES
from tests.corpus.training import KINDS, power_law, pretraining, training, vision

Made = tuple[Run, Label]
LOOPS = (Loop(), Loop("bf16"), Loop("fp16", torch_policy()), Loop("fp32", guard=True))


def any_loop(rng: Rng) -> Loop:
    """One of the usual loops."""
    return LOOPS[int(rng.integers(len(LOOPS)))]


def _kind(kind: str) -> None:
    @HEALTHY_CASES.add(f"kind-{kind}")
    def make(rng: Rng) -> Made:
        made = training(rng, int(rng.choice([400, 2000, 20_000])), kind)
        return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


for _name in KINDS:
    _kind(_name)


def _schedule(name: str) -> None:
    @HEALTHY_CASES.add(f"schedule-{name}")
    def make(rng: Rng) -> Made:
        made = pretraining(rng, int(rng.choice([1000, 5000, 20_000])))
        warmup = int(rng.choice([0, 0.02, 0.1]) * made.rows)
        made.rate(name, 3e-4, warmup)
        if name in ("restarts", "step-decay"):
            # The loss follows the rate: up a little at a restart, down at a decay.
            made.loss = made.loss * (1 + 0.02 * (made.lr / made.lr.max() - 0.5))
        return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


for _name in NAMES:
    _schedule(_name)


@HEALTHY_CASES.add("200k-fp32")
def long_fp32(rng: Rng) -> Made:
    made = training(rng, 200_000, str(rng.choice(["pretraining", "small-batch", "vision"])))
    return run_of(made, Loop(), form="foreign"), HEALTHY


@HEALTHY_CASES.add("heavy-tailed-norms")
def heavy_tails(rng: Rng) -> Made:
    """Norms with heavy tails around a stable level: large values, never a change of level."""
    made = pretraining(rng, int(rng.choice([2000, 20_000])))
    made.norm_noise = 0.3 * student(rng, made.rows, 3)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("norm-follows-loss")
def norm_follows_loss(rng: Rng) -> Made:
    """Hard batches have both a high loss and a high norm."""
    made = vision(rng, 5000)
    made.norm_noise = made.norm_noise + 3 * made.loss_noise
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("correlated-loss")
def correlated_loss(rng: Rng) -> Made:
    """Data that is not shuffled well: the loss wanders for hundreds of steps."""
    made = pretraining(rng, 10_000)
    made.loss_noise = 0.03 * correlated(rng, made.rows, 200) + made.loss_noise
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("curriculum-jump")
def curriculum(rng: Rng) -> Made:
    """Harder data from a step on: the loss jumps once and falls again."""
    made = pretraining(rng, int(rng.choice([3000, 12_000])))
    start = made.at(0.3, 0.6)
    later = np.arange(made.rows) - start
    rise = rng.uniform(0.08, 0.3)
    made.loss_factor = np.where(later >= 0, 1 + rise * (1 + later.clip(0) / 800) ** -0.4, 1.0)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("new-data-mix-easier")
def easier_mix(rng: Rng) -> Made:
    """Easier data from a step on: loss and norm drop at once."""
    made = pretraining(rng, 6000)
    start = made.at(0.3, 0.7)
    made.loss_factor[start:] *= 0.8
    made.norm_factor[start:] *= 0.7
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("loss-reaches-floor")
def floor(rng: Rng) -> Made:
    """Converged half-way: flat since, because there is nothing left to learn."""
    made = pretraining(rng, int(rng.choice([1500, 10_000])))
    made.loss = power_law(made.rows, 2.3, 0.35, 0.02 * made.rows, 3.0)
    made.norm = made.norm * (0.15 + 0.85 * (made.loss - 0.35) / 1.95)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("perfect-fit")
def perfect_fit(rng: Rng) -> Made:
    """A small problem solved exactly: the loss falls by six decades, and the norm with it."""
    made = training(rng, 4000, "regression")
    made.loss = np.maximum(np.exp(-np.arange(4000) / rng.uniform(150, 400)), 1e-7)
    made.norm = 2 * np.sqrt(made.loss)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("negative-loss")
def negative(rng: Rng) -> Made:
    """A likelihood of a density: starts above zero and falls below it."""
    made = pretraining(rng, 5000)
    made.loss_shift = 0.05 * rng.standard_normal(made.rows) - 4.0
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("adversarial")
def adversarial(rng: Rng) -> Made:
    """A generator's loss: wanders and does not fall."""
    made = training(rng, 8000, "reinforcement")
    made.loss_shift = 0.7 + 0.08 * correlated(rng, 8000, 300) + 0.05 * rng.standard_normal(8000)
    return run_of(made, Loop(max_norm=None), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("always-clipped")
def always_clipped(rng: Rng) -> Made:
    """Fine-tuning with norms above the threshold from start to end: an observation, no fault."""
    made = training(rng, 3000, "fine-tuning")
    made.norm = made.norm + 3.0
    run = run_of(made, Loop("bf16"), form=any_form(made, "foreign"))
    return run, healthy(Expect("clipping-every-step"))


@HEALTHY_CASES.add("often-clipped")
def often_clipped(rng: Rng) -> Made:
    """A quarter of the steps are clipped."""
    made = pretraining(rng, 5000).clean_noise(0.01, 0.3)
    made.norm = np.full(made.rows, 0.8) * (1 + 3 * np.exp(-np.arange(made.rows) / 30))
    run = run_of(made, Loop("bf16"), form=any_form(made, "foreign"))
    return run, healthy(Expect("clipping-frequent"))


@HEALTHY_CASES.add("batch-grows")
def batch_grows(rng: Rng) -> Made:
    """The batch size doubles three times: noise and norm fall in steps."""
    made = pretraining(rng, 8000)
    quarter = np.floor(4 * np.arange(made.rows) / made.rows)
    made.norm_factor = 0.75**quarter
    made.norm_noise = made.norm_noise * 0.8**quarter
    made.loss_noise = made.loss_noise * 0.8**quarter
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("norm-grows-late")
def norm_grows_late(rng: Rng) -> Made:
    """The norm triples over the last half while the loss falls: common as the rate decays."""
    made = pretraining(rng, 20_000)
    made.norm_factor = np.exp(np.linspace(-1.2, 1.1, made.rows).clip(0))
    made.rate("cosine", 6e-4, 400)
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("double-descent-step")
def late_drop(rng: Rng) -> Made:
    """Flat for a third of the run, then a sudden drop (induction heads, grokking)."""
    made = pretraining(rng, 9000)
    at = np.arange(made.rows)
    made.loss = 10.5 - 3.5 * np.minimum(1, at / 600) - 3 / (1 + np.exp(-(at - 4000) / 150))
    made.norm = 0.6 + 1.2 * np.exp(-(((at - 4000) / 250.0) ** 2))
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("validation-sparse")
def validation(rng: Rng) -> Made:
    """Validation every 500 steps, a little above the training loss and falling with it."""
    made = pretraining(rng, 10_000)
    log = sheet(made, Loop("bf16"))
    there = np.arange(made.rows) % 500 == 499
    noisy = made.loss * (1.03 + 0.005 * rng.standard_normal(made.rows))
    log.values["val_loss"] = np.where(there, noisy, np.nan)
    log.written["val_loss"] = there
    return run_of(made, Loop("bf16"), log, form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("return-as-loss")
def return_as_loss(rng: Rng) -> Made:
    """The negative of a return that grows all along, from 20 to some hundreds: no end to it yet."""
    made = pretraining(rng, int(rng.choice([500, 4000])))
    at = np.linspace(0, 1, made.rows)
    made.loss = np.full(made.rows, 1e-3)
    made.loss_shift = -20 - rng.uniform(100, 480) * at ** rng.uniform(0.9, 1.6)
    made.loss_shift += 8 * rng.standard_normal(made.rows)
    made.norm = made.norm * (1 + 4 * at)
    return run_of(made, Loop(), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("likelihood-narrows")
def likelihood_narrows(rng: Rng) -> Made:
    """A Gaussian likelihood whose width follows the error down: the loss falls as a logarithm."""
    made = pretraining(rng, 6000)
    at = np.arange(made.rows)
    made.loss = np.full(made.rows, 1e-3)
    made.loss_shift = 1.4 - rng.uniform(0.8, 1.5) * np.log1p(at / 10)
    made.loss_shift += 0.1 * rng.standard_normal(made.rows)
    made.norm = made.norm * (1 + at / 10) ** 0.4
    return run_of(made, Loop(), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("bump-at-the-start")
def early_bump(rng: Rng) -> Made:
    """No warm-up: the first updates throw loss and norm up, and then it learns, little or much."""
    made = training(rng, int(rng.choice([300, 3000])), str(rng.choice(["fine-tuning", "vision"])))
    at = np.arange(made.rows)
    bump = np.where(at > 0, np.exp(-at / rng.uniform(3, 20)), 0.0)
    made.loss_factor = 1 + rng.uniform(0.4, 1.5) * bump
    made.norm_factor = 1 + rng.uniform(3, 10) * bump
    return run_of(made, Loop("bf16"), form=any_form(made)), HEALTHY
