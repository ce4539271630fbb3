"""Clips that do nothing, clip the wrong thing, or spread what they should stop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, manifest, onset_slack, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, STALL
from tests.corpus.faulty.nonfinite import sixteen
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import pretraining, training

Made = tuple[Run, Label]
OBSERVED = frozenset({"clipping-every-step", "clipping-frequent"})


@FAULTY_CASES.add("clip-does-nothing")
def does_nothing(rng: Rng) -> Made:
    """A threshold of 1 is configured and norms of 3 go through unchanged."""
    made = training(rng, int(rng.choice([400, 4000])), "fine-tuning")
    made.norm = made.norm + 1.5
    log = sheet(made, Loop("bf16", clips=False))
    first = int(np.argmax(np.asarray(log.values["grad_l2_pre_clip"]) > 1.01))
    return run_of(made, Loop("bf16", clips=False), log, form="recorded"), fault(
        "clipping-ineffective", first, may=OBSERVED
    )


@FAULTY_CASES.add("clip-after-the-step")
def some_parameters(rng: Rng) -> Made:
    """Only some parameters are clipped: the norm afterwards is above the threshold."""
    made = training(rng, 3000, "fine-tuning")
    made.norm = made.norm + 2.0
    log = sheet(made, Loop())
    pre = np.asarray(log.values["grad_l2_pre_clip"])
    rest = 0.8 * pre
    log.values["grad_l2_post_clip"] = np.where(
        pre > 1, np.sqrt(rest**2 + np.minimum(0.6 * pre, 1.0) ** 2).clip(None, pre), pre
    )
    first = int(np.argmax(log.values["grad_l2_post_clip"] > 1.05))
    return run_of(made, Loop(), log, form="recorded"), fault(
        "clipping-ineffective", first, may=OBSERVED
    )


@FAULTY_CASES.add("clip-raises-the-norm")
def raises(rng: Rng) -> Made:
    """A hand-written clip without the minimum: small gradients are scaled up."""
    made = pretraining(rng, 3000)
    made.norm[:] = 0.4
    log = sheet(made, Loop())
    log.values["grad_l2_post_clip"] = np.ones(made.rows)
    first = int(np.argmax(np.asarray(log.values["grad_l2_pre_clip"]) < 0.99))
    return run_of(made, Loop(), log, form="recorded"), fault(
        "clipping-ineffective", first, may=OBSERVED
    )


@FAULTY_CASES.add("clip-breaks-midway")
def breaks_midway(rng: Rng) -> Made:
    """The clip works until a resume, and not from then on."""
    made = training(rng, 6000, "fine-tuning")
    made.norm = made.norm + 1.5
    log = sheet(made, Loop("bf16"))
    start = made.at(0.4, 0.6)
    pre = np.asarray(log.values["grad_l2_pre_clip"])
    log.values["grad_l2_post_clip"][start:] = pre[start:]
    return run_of(made, Loop("bf16"), log, form="recorded"), fault(
        "clipping-ineffective", start, may=OBSERVED
    )


def _before_unscale(name: str, optimizer: str, rows: int, flagged: bool) -> None:
    @FAULTY_CASES.add(f"clip-before-unscale-{name}")
    def make(rng: Rng) -> Made:
        """The clip sees gradients still times the loss scale."""
        made = sixteen(rng, rows).clean_noise(0.01, 0.25)
        made.limit[:] = 17.4 + 0.3 * rng.standard_normal(rows)
        interval = 2000 if rows > 5000 else 300
        loop = Loop("fp16", torch_policy(interval=interval), unscale_first=False)
        log = sheet(made, loop)
        if flagged:
            log.values["grads_scaled"] = np.ones(rows, dtype=bool)
        kind = "error" if optimizer == "sgd" else "warning"
        if optimizer == "sgd":
            # Updates are smaller by the loss scale: nothing is learned.
            log.values["loss"] = 6.9 * np.exp(0.01 * rng.standard_normal(rows))
        usual = manifest(made, loop, optimizer={"name": optimizer, "flavour": "foreach"})
        return run_of(made, loop, log, manifest=usual), fault(
            "clip-before-unscale",
            0,
            Expect("clip-before-unscale", None, least=Severity[kind.upper()]),
            slack=rows,  # it holds from the first row; when it shows depends on the scale's moves
            may=STALL | OBSERVED | {"gradient-spike"},
        )


_before_unscale("recorded-sgd", "sgd", 800, True)
_before_unscale("recorded-adam", "adamw", 800, True)
_before_unscale("inferred-sgd", "sgd", 12_000, False)
_before_unscale("inferred-adam", "adamw", 4000, False)


@FAULTY_CASES.add("clip-spreads-inf")
def spreads_inf(rng: Rng) -> Made:
    """One Inf element: the clip makes it NaN, zeroes the rest, and the step is taken."""
    made = pretraining(rng, 2000)
    start = made.at(0.3, 0.9)
    made.inf_grad[start] = True
    log = sheet(made, Loop())
    log.values["grad_l2_post_clip"][start] = np.nan
    return run_of(made, Loop(), log, form="recorded"), fault(
        ("nonfinite-step-applied", "nonfinite-gradient", "clip-contamination"),
        start,
        Expect("clip-contamination", start),
        Expect("nonfinite-loss", start + 1),
        may=DAMAGE,
    )


@FAULTY_CASES.add("clip-spreads-nan")
def spreads_nan(rng: Rng) -> Made:
    """One NaN element makes every gradient NaN in the clip."""
    made = pretraining(rng, 900)
    start = made.at(0.2, 0.9)
    made.nan_grad[start] = True
    return run_of(made, Loop("bf16"), form="recorded"), fault(
        ("nonfinite-step-applied", "nonfinite-gradient", "clip-contamination"),
        start,
        Expect("clip-contamination", start),
        may=DAMAGE,
    )


@FAULTY_CASES.add("always-clipped-and-never-learned")
def clipped_plateau(rng: Rng) -> Made:
    """Everything is clipped to 0.01 and the loss stays where it was."""
    made = pretraining(rng, 5000).clean_noise(0.01, 0.15)
    made.loss[:] = 6.9
    made.norm[:] = 2.0
    loop = Loop("bf16", max_norm=0.01)
    return run_of(made, loop, form=any_form(made, "foreign")), fault(
        ("loss-plateau", "clipping-every-step"),
        0,
        Expect("loss-plateau", None),
        Expect("clipping-every-step", None),
        slack=made.rows,
        undecided=True,
    )


@FAULTY_CASES.add("unscaled-twice")
def unscaled_twice(rng: Rng) -> Made:
    """The norm at the optimizer's entry is the one before the clip over the loss scale again."""
    made = pretraining(rng, int(rng.choice([120, 2000])))
    loop = Loop("fp16", scaler=torch_policy())
    log = sheet(made, loop)
    over = np.asarray(log.values["grad_l2_pre_clip"]) / np.asarray(log.values["scaler_scale"])
    log.values["grad_l2_post_clip"] = np.minimum(over, 1.0)
    taken = np.isfinite(over) & ~np.asarray(log.values["skipped"], dtype=bool)
    return run_of(made, loop, log, form="recorded"), fault(
        "double-unscale", int(np.argmax(taken)), may=OBSERVED | STALL
    )


@FAULTY_CASES.add("stepped-twice")
def stepped_twice(rng: Rng) -> Made:
    """The recorder saw the optimizer stepped again with the same gradients, from some step on."""
    made = pretraining(rng, 800)
    start = int(rng.choice([0, made.at(0.2, 0.8)]))
    seen = {"reapplied_steps": made.rows - start, "first_reapplied": start}
    known = replace(manifest(made, Loop()), loop=seen)
    return run_of(made, Loop(), form="recorded", manifest=known), fault("repeated-update", start)


@FAULTY_CASES.add("clipped-more-and-more")
def clipped_divergence(rng: Rng) -> Made:
    """Norms grow through the threshold and the loss turns up soon after."""
    made = pretraining(rng, 12_000)
    start = made.at(0.4, 0.6)
    later = (np.arange(made.rows) - start).clip(0)
    made.norm_factor = np.exp(np.minimum(later / 400, 4.5))
    made.loss_factor = 1 + 1.2 * (1 - np.exp(-((later - 500).clip(0)) / 2500))
    return run_of(made, Loop("bf16"), form="recorded"), fault(
        ("gradient-explosion", "loss-divergence"),
        start,
        Expect("loss-divergence", None),
        slack=onset_slack(made.rows),
        upto=start + 800,
        may=BLOW_UP | OBSERVED,
    )


@FAULTY_CASES.add("clip-starves-sgd")
def starves_sgd(rng: Rng) -> Made:
    """SGD under a threshold some hundred times below every norm: its steps are next to nothing."""
    made = pretraining(rng, int(rng.choice([600, 4000]))).clean_noise(0.01, 0.12)
    made.loss[:] = made.loss[0]
    loop = Loop("fp32", max_norm=float(made.norm.min() / rng.uniform(200, 2000)))
    plain = manifest(made, loop, optimizer={"name": "sgd", "flavour": "foreach"})
    return run_of(made, loop, form="recorded", manifest=plain), fault(
        "clipping-every-step",
        0,
        Expect("loss-plateau", None),
        slack=2 * made.warmup + 2,
        may=STALL | OBSERVED,
    )
