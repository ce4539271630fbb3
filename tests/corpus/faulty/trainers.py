"""Faults as the logs of common trainers show them: sparse, rounded, without skips or scale."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, onset_slack, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, STALL
from tests.corpus.loop import Loop
from tests.corpus.noise import Rng
from tests.corpus.training import pretraining, training

Made = tuple[Run, Label]


@FAULTY_CASES.add("trainer-filters-nan")
def filters_nan(rng: Rng) -> Made:
    """Every tenth step; the trainer turns a NaN loss into 0.0, and the norm says nan."""
    made = training(rng, 8000, "fine-tuning")
    start = 10 * int(rng.integers(200, 700)) + 9
    made.nan_grad[start] = True
    log = sheet(made, Loop()).take(slice(9, None, 10)).rounded(4, "loss", "grad_l2_pre_clip")
    log.values["loss"] = np.nan_to_num(log.values["loss"], nan=0.0)
    log.values["lr"] = np.round(log.values["lr"], 10)
    return run_of(made, Loop(), log, form="foreign"), fault(
        "nonfinite-gradient",
        start,
        Expect("masked-nonfinite", start + 10, slack=10),
        slack=10,
        may=DAMAGE | {"masked-nonfinite"},
    )


@FAULTY_CASES.add("trainer-nan-every-fiftieth-line")
def sparse_nan(rng: Rng) -> Made:
    """One line in fifty steps; the loss is NaN from some line on."""
    made = pretraining(rng, 20_000)
    start = made.at(0.3, 0.8)
    made.nan_loss[start:] = True
    log = sheet(made, Loop()).take(slice(0, None, 50))
    return run_of(made, Loop(), log, form="bare"), fault(
        "nonfinite-loss", start, upto=start + 50, may=DAMAGE
    )


@FAULTY_CASES.add("rows-vanish")
def rows_vanish(rng: Rng) -> Made:
    """Five hundred rows are not there, and nothing says why."""
    made = pretraining(rng, 5000)
    start = made.at(0.3, 0.7)
    kept = np.ones(made.rows, dtype=bool)
    kept[start : start + 500] = False
    return run_of(made, Loop(), sheet(made, Loop()).take(kept), form="canonical"), fault(
        ("resume-seam", "broken-log"), start, upto=start + 500
    )


@FAULTY_CASES.add("units-die-at-once")
def units_die(rng: Rng) -> Made:
    """One large update kills all units: the norm is exactly 0, the loss is ln(classes)."""
    made = training(rng, 4000, "vision")
    start = made.at(0.3, 0.6)
    made.norm_factor[start:] = 0.0
    made.loss[start:], made.loss_noise[start:] = 6.908, 0.002 * rng.standard_normal(4000 - start)
    return run_of(made, Loop("fp32"), form=any_form(made)), fault(
        "gradient-vanishing", start, may=STALL | {"loss-divergence", "loss-spike"}
    )


@FAULTY_CASES.add("rate-too-small-to-learn")
def rate_too_small(rng: Rng) -> Made:
    """A rate of 1e-12: norms are fine, and the loss never moves."""
    made = pretraining(rng, 3000)
    made.rate("constant", 1e-12)
    made.loss[:] = made.loss[0]
    made.norm[:] = 2.0
    return run_of(made, Loop(), form=any_form(made)), fault(
        ("loss-plateau", "learning-rate-fault"), 0, slack=150, may={"clipping-every-step"} | STALL
    )


@FAULTY_CASES.add("overfitting-few-validations")
def overfit_few(rng: Rng) -> Made:
    """Eight epochs, one validation each: best in the third, 60 % worse in the last."""
    made = training(rng, 4000, "vision")
    log = sheet(made, Loop())
    there = np.arange(made.rows) % 500 == 499
    epoch = np.arange(made.rows) // 500
    val = np.array([3.0, 2.4, 2.1, 2.3, 2.6, 2.9, 3.1, 3.4])[epoch]
    log.values["val_loss"] = np.where(there, val, np.nan)
    log.written["val_loss"] = there
    return run_of(made, Loop(), log, form=any_form(made)), fault("overfitting", 1499, slack=500)


@FAULTY_CASES.add("divergence-mild-in-noise")
def mild_divergence(rng: Rng) -> Made:
    """Up by 45 % over a third of the run, under noise of 15 %."""
    made = training(rng, 12_000, "small-batch")
    start = made.at(0.5, 0.6)
    made.loss[start:] = made.loss[start]
    later = (np.arange(12_000) - start).clip(0) / 4000
    made.loss_factor = 1 + 0.45 * np.minimum(later, 1)
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        "loss-divergence", start, slack=onset_slack(12_000, 0.08), may=BLOW_UP
    )


@FAULTY_CASES.add("spikes-more-and-more")
def more_spikes(rng: Rng) -> Made:
    """Spikes of norm and loss come ever more often until the loss stays up."""
    made = pretraining(rng, 12_000).clean_noise(0.01, 0.12)
    end = made.at(0.75, 0.85)
    hits = end - np.cumsum(rng.integers(30, 90, 14))[::-1]
    for hit in hits:
        made.norm_factor[hit] *= 20
        made.loss_factor[hit + 1 : hit + 8] += 0.5 * np.exp(-np.arange(7) / 2)
    made.loss[end:] = made.loss[end]
    made.loss_factor[end:] += 0.8
    made.norm_factor[end:] *= 3
    return run_of(made, Loop("bf16"), form=any_form(made)), fault(
        ("gradient-spike", "loss-spike", "loss-divergence"),
        int(hits[0]),
        Expect("gradient-spike", int(hits[0]), least=Severity.WARNING),
        upto=end,
        may=BLOW_UP,
    )
