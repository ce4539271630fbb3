"""Healthy logs with innocent oddities: short, coarse, resumed, repaired, with a benign blip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.runlog.run import Run
from tests.corpus.assemble import (
    PATH,
    any_form,
    as_text,
    manifest,
    run_of,
    sheet,
    through_csv,
)
from tests.corpus.case import HEALTHY, HEALTHY_CASES, Label
from tests.corpus.healthy.shapes import any_loop
from tests.corpus.healthy.snapshots import healthy_activations, healthy_params, overflowed
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import pretraining, training

Made = tuple[Run, Label]
SHORT = Label(status=("healthy", "insufficient-data"))


def _short(name: str, low: int, high: int) -> None:
    @HEALTHY_CASES.add(name)
    def make(rng: Rng) -> Made:
        rows = int(rng.integers(low, high))
        kind = str(rng.choice(["pretraining", "fine-tuning", "vision", "regression"]))
        made = training(rng, rows, kind)
        loop = replace(any_loop(rng), precision="fp32", scaler=None)
        return run_of(made, loop, form=any_form(made)), SHORT


_short("very-short-1-to-9", 1, 10)
_short("very-short-10-to-40", 10, 41)
_short("very-short-41-to-300", 41, 300)


@HEALTHY_CASES.add("few-digits")
def few_digits(rng: Rng) -> Made:
    """A logger that prints two decimals: many rows look alike, small norms look like zero."""
    made = training(rng, 3000, str(rng.choice(["pretraining", "regression", "vision"])))
    log = sheet(made, Loop("bf16")).rounded(2, "loss", "grad_l2_pre_clip", "grad_l2_post_clip")
    return run_of(made, Loop("bf16"), log, form="foreign"), HEALTHY


@HEALTHY_CASES.add("four-digits-converged")
def four_digits(rng: Rng) -> Made:
    """Four decimals on a loss that has converged: equal rows by rounding alone."""
    made = training(rng, 4000, "regression")
    log = sheet(made, Loop()).rounded(4, "loss", "grad_l2_pre_clip", "grad_l2_post_clip")
    return run_of(made, Loop(), log, form="foreign"), HEALTHY


@HEALTHY_CASES.add("loss-every-tenth-row")
def sparse_loss(rng: Rng) -> Made:
    """Loss and norm written every tenth row only: missing is not NaN."""
    made = pretraining(rng, 5000)
    log = sheet(made, Loop("bf16"))
    there = np.arange(made.rows) % 10 == 9
    for name in ("loss", "grad_l2_pre_clip", "grad_l2_post_clip"):
        log.written[name] = there
        log.values[name] = np.where(there, log.values[name], np.nan)
    return run_of(made, Loop("bf16"), log, form="canonical"), HEALTHY


@HEALTHY_CASES.add("losses-alone")
def losses_alone(rng: Rng) -> Made:
    made = training(rng, 2000, str(rng.choice(["pretraining", "fine-tuning", "vision"])))
    log = sheet(made, Loop()).drop("grad_l2_pre_clip")
    return run_of(made, Loop(), log, form="bare"), HEALTHY


@HEALTHY_CASES.add("logged-every-50")
def every_fifty(rng: Rng) -> Made:
    """One line every fifty steps, as trainers print by default."""
    made = pretraining(rng, 20_000)
    loop = any_loop(rng)
    return run_of(made, loop, sheet(made, loop).take(slice(None, None, 50)), form="bare"), HEALTHY


@HEALTHY_CASES.add("one-recovered-spike")
def one_spike(rng: Rng) -> Made:
    """One hard batch: loss and norm jump, and are back within a few steps."""
    made = pretraining(rng, int(rng.choice([1500, 10_000])))
    start = made.at(0.2, 0.8)
    decay = np.exp(-np.arange(made.rows - start) / rng.uniform(1, 5))
    made.loss_factor[start:] += rng.uniform(0.3, 1.5) * decay
    made.norm_factor[start] *= rng.uniform(6, 30)
    loop = any_loop(rng)
    if loop.scaler is not None:
        made.limit += 10  # the spike itself is not what this case is about
    return run_of(made, loop, form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("few-recovered-spikes")
def few_spikes(rng: Rng) -> Made:
    """Three recovered norm spikes, thousands of steps apart."""
    made = pretraining(rng, 12_000)
    for start in (made.at(0.1, 0.2), made.at(0.4, 0.5), made.at(0.7, 0.8)):
        made.norm_factor[start] *= rng.uniform(8, 15)
    return run_of(made, Loop("bf16"), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("torn-last-line")
def torn(rng: Rng) -> Made:
    """Killed while a line was written."""
    made = pretraining(rng, 1500)
    log = sheet(made, Loop("bf16"))
    table = through_csv(as_text(log), lambda text: text[: -int(rng.integers(5, 25))])
    return Run(PATH, table, manifest=manifest(made, Loop("bf16"), ended=None)), HEALTHY


@HEALTHY_CASES.add("resumed-without-gap")
def resumed(rng: Rng) -> Made:
    """Two segments, no row missing or repeated; the clock starts again."""
    made = pretraining(rng, 6000)
    half = made.rows // 2 + 137
    log = sheet(made, Loop("bf16"))
    log.values["time_s"] = 0.4 * (np.arange(made.rows) % half)
    usual = manifest(made, Loop("bf16"))
    both = (usual.segments[0], replace(usual.segments[0], start_step=half, reason="resume"))
    return run_of(made, Loop("bf16"), log, manifest=replace(usual, segments=both)), HEALTHY


@HEALTHY_CASES.add("starts-late")
def starts_late(rng: Rng) -> Made:
    """A log that begins at step 40,000: the second part of a longer run."""
    made = pretraining(rng, 30_000)
    loop = Loop("fp16", torch_policy())
    log = sheet(made, loop).take(slice(12_000, None))
    log.values["step"] = log.values["step"] + 28_000
    return run_of(made, loop, log, form="canonical"), HEALTHY


@HEALTHY_CASES.add("starts-at-one")
def starts_at_one(rng: Rng) -> Made:
    """Steps counted from 1, learning rate 0 at the first."""
    made = pretraining(rng, 2000)
    log = sheet(made, Loop())
    log.values["step"] = log.values["step"] + 1
    log.values["lr"][0] = 0.0
    return run_of(made, Loop(), log, form="foreign"), HEALTHY


@HEALTHY_CASES.add("warmup-from-zero-linear-to-zero")
def to_zero(rng: Rng) -> Made:
    """The rate starts at 0 and ends at 0, as trainers do it."""
    made = pretraining(rng, 3000)
    at = np.arange(made.rows)
    made.schedule, made.warmup = "linear", 300
    made.lr = 5e-5 * np.minimum(at / 300, (made.rows - 1 - at) / (made.rows - 301))
    return run_of(made, any_loop(rng), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("with-snapshots")
def with_snapshots(rng: Rng) -> Made:
    """Snapshots and activation statistics of a sound network beside a sound log."""
    made = pretraining(rng, int(rng.choice([400, 4000, 20_000])))
    loop = any_loop(rng)
    usual = manifest(made, loop)
    log = sheet(made, loop)
    params = healthy_params(made, usual)
    overflowed(params, log)
    return run_of(
        made,
        loop,
        log,
        params=params,
        activations=healthy_activations(made, usual),
        manifest=usual,
    ), HEALTHY


@HEALTHY_CASES.add("two-ranks")
def two_ranks(rng: Rng) -> Made:
    """Four ranks whose local losses and norms differ as their batches do."""
    made = pretraining(rng, 3000)
    loop = any_loop(rng)
    log = sheet(made, loop)
    ranks = []
    for _ in range(3):
        local = sheet(made, loop)
        for name, sigma in (("loss", 0.03), ("grad_l2_pre_clip", 0.2)):
            local.values[name] = local.values[name] * np.exp(sigma * rng.standard_normal(made.rows))
        ranks.append(local.drop("grad_l2_post_clip", "scaler_scale", "lr").table())
    usual = manifest(made, loop, world_size=4)
    return run_of(made, loop, log, manifest=usual, ranks=tuple(ranks)), HEALTHY


@HEALTHY_CASES.add("two-groups-one-at-zero")
def two_groups(rng: Rng) -> Made:
    """A frozen backbone in a group of its own: its rate is 0 throughout."""
    made = pretraining(rng, 2500)
    log = sheet(made, Loop("bf16"))
    log.values["lr_1"] = np.zeros(made.rows)
    return run_of(made, Loop("bf16"), log, form="canonical"), HEALTHY


@HEALTHY_CASES.add("guard-skips-one-batch-for-norm")
def guard_for_norm(rng: Rng) -> Made:
    """A guard that skips batches of extreme norm, as some trainers have it: three in the run."""
    made = pretraining(rng, 8000)
    made.norm_noise = made.norm_noise.clip(-0.5, 0.5)
    hard = rng.choice(np.arange(500, 7500, 700), 3, replace=False)
    made.norm_factor[hard] *= 12
    log = sheet(made, Loop("bf16"))
    log.values["skipped"] = np.asarray(log.values["skipped"]) | np.isin(np.arange(8000), hard)
    log.values["skip_reason"] = [
        "other:norm above 5" if skip else "" for skip in log.values["skipped"]
    ]
    log.written["grad_l2_post_clip"] = ~log.values["skipped"]
    return run_of(made, Loop("bf16"), log, form="canonical"), HEALTHY


@HEALTHY_CASES.add("batches-without-labels")
def without_labels(rng: Rng) -> Made:
    """One batch in five has nothing to learn from: loss and norm are exactly 0 there."""
    made = pretraining(rng, int(rng.choice([400, 4000])))
    empty = rng.random(made.rows) < 0.2
    empty[-4:] = True
    made.loss_factor[empty] = 0.0
    made.norm_factor[empty] = 0.0
    return run_of(made, Loop("bf16"), form=any_form(made)), HEALTHY
