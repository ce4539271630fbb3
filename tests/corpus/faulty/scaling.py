"""Loss scaling gone wrong: collapse, swings, frozen, broken policy, wrong precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.manifest import ScalerPolicy
from forensics.runlog.run import Run
from tests.corpus.assemble import Sheet, any_form, manifest, onset_slack, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import NONFINITE, SKIPS, STALL, SWINGS
from tests.corpus.faulty.nonfinite import sixteen
from tests.corpus.loop import Loop, megatron_policy, react, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import Bools, Training, pretraining

Made = tuple[Run, Label]
BY_SCALE = ("loss-scale-collapse", "nonfinite-gradient")
"""Overflow in every step whatever the scale: seen from the scaler or from the gradient."""


def _collapse(name: str, rows: int, low: float, high: float) -> None:
    @FAULTY_CASES.add(f"collapse-sudden-{name}")
    def make(rng: Rng) -> Made:
        """From one step on every batch overflows in backward, at any scale; the loss is fine."""
        made = sixteen(rng, rows)
        start = made.at(low, high)
        made.inf_grad[start:] = True
        loop = Loop("fp16", torch_policy())
        return run_of(made, loop, form=any_form(made)), fault(
            BY_SCALE,
            start,
            Expect("loss-scale-collapse", start, upto=start + 40, least=Severity.ERROR),
            may=SKIPS | NONFINITE,
        )


_collapse("300", 300, 0.3, 0.5)
_collapse("5k", 5000, 0.3, 0.8)
_collapse("100k", 100_000, 0.5, 0.95)


def _decline(name: str, rows: int, octaves: float) -> None:
    @FAULTY_CASES.add(f"collapse-slow-{name}")
    def make(rng: Rng) -> Made:
        """What backward survives shrinks over thousands of steps, until the scale is below 1."""
        made = sixteen(rng, rows).clean_noise()
        start = made.at(0.3, 0.5)
        later = (np.arange(rows) - start).clip(0) / (rows - start)
        # It starts from where the sawtooth has reached the limit, as it has in a long run.
        made.limit = 16.5 + 0.3 * rng.standard_normal(rows) - octaves * later
        interval = int(rng.choice([500, 1000]))
        loop = Loop("fp16", torch_policy(interval=interval))
        first = int(np.argmax(react(made, loop).scale[start:] <= 2.0**13)) + start
        return run_of(made, loop, form=any_form(made)), fault(
            "loss-scale-collapse",
            start,
            # A routine overflow up to an interval before it cannot be told from the first of it.
            slack=onset_slack(rows) + interval,
            upto=first,
            # At a scale below 1 small gradients fall out of fp16's range.
            may=SKIPS | SWINGS | {"nonfinite-gradient", "gradient-underflow"},
        )


_decline("10k", 10_000, 24.0)
_decline("40k", 40_000, 30.0)
_decline("150k", 150_000, 22.0)


@FAULTY_CASES.add("collapse-to-the-floor")
def at_floor(rng: Rng) -> Made:
    """The scale stands at its floor of 1 and most steps still overflow."""
    rows = int(rng.choice([2500, 15_000]))
    made = sixteen(rng, rows)
    start = made.at(0.2, 0.5)
    made.inf_grad[start:] = rng.random(rows - start) < 0.63
    loop = Loop("fp16", megatron_policy(2.0**16, patience=1))
    return run_of(made, loop, form=any_form(made)), fault(
        BY_SCALE,
        start,
        Expect("high-skip-rate", None),
        slack=10,
        upto=start + 40,
        may=SKIPS | SWINGS | NONFINITE,
    )


def _swings(name: str, rows: int, every: int, interval: int, depth: float) -> None:
    @FAULTY_CASES.add(f"oscillation-{name}")
    def make(rng: Rng) -> Made:
        """Every so often a stretch of hard batches takes the scale down by octaves; it climbs."""
        made = sixteen(rng, rows)
        made.limit[:] = 17.5 + 0.2 * rng.standard_normal(rows)
        starts = np.arange(made.at(0.05, 0.15), rows - 50, every)
        starts = starts + rng.integers(0, every // 10, len(starts))
        for start in starts:
            made.limit[start : start + 25] -= depth
        loop = Loop("fp16", torch_policy(interval=interval))
        return run_of(made, loop, form=any_form(made)), fault(
            "loss-scale-oscillation",
            int(starts[0]),
            slack=onset_slack(rows),
            upto=int(starts[1]),
            may=SWINGS | {"nonfinite-gradient"},
        )


_swings("of-a-thousand", 60_000, 4300, 1000, 6.5)
_swings("long", 200_000, 4500, 1000, 9.0)
_swings("often", 20_000, 1300, 200, 7.5)


@FAULTY_CASES.add("overflows-far-too-often")
def too_often(rng: Rng) -> Made:
    """One step in fifteen overflows at any scale: the scale never settles."""
    rows = int(rng.choice([4000, 20_000]))
    made = sixteen(rng, rows)
    start = made.at(0.2, 0.4)
    made.inf_grad[start:] = rng.random(rows - start) < 1 / 15
    loop = Loop("fp16", megatron_policy(2.0**16, 1000, 1))
    return run_of(made, loop, form=any_form(made)), fault(
        (*BY_SCALE, "loss-scale-oscillation"),
        start,
        Expect("high-skip-rate", None),
        slack=onset_slack(rows),
        may=SKIPS | SWINGS | NONFINITE,
    )


def _frozen(name: str, rows: int) -> None:
    @FAULTY_CASES.add(f"frozen-{name}")
    def make(rng: Rng) -> Made:
        """``update()`` is missing on the skip path: the scale never falls again."""
        made = sixteen(rng, rows)
        start = made.at(0.2, 0.5)
        made.limit[:start] = 18 + 0.2 * rng.standard_normal(start)
        made.limit[start:] = {"blatant": 14.0, "mild": 16.4}.get(name, 15.6) + 0.4 * (
            rng.standard_normal(rows - start)
        )
        made.limit[start] = 13.0
        loop = Loop("fp16", torch_policy(interval=10**6), update_on_skip=False)
        return run_of(made, loop, form=any_form(made)), fault(
            "loss-scale-frozen",
            start,
            may=SKIPS | NONFINITE | {"loss-scale-policy-broken"},
        )


_frozen("blatant", 1500)
_frozen("often", 6000)
_frozen("mild", 6000)


@FAULTY_CASES.add("frozen-on-nan-loss")
def frozen_on_loss(rng: Rng) -> Made:
    """A guard skips NaN losses before backward and forgets the scaler."""
    made = sixteen(rng, 3000)
    made.limit[:] = 30.0  # no overflow beside the planted losses
    hits = np.sort(rng.choice(np.arange(400, 2900), 7, replace=False))
    made.nan_loss[hits] = True
    loop = Loop("fp16", torch_policy(interval=10**6), guard=True, update_on_skip=False)
    return run_of(made, loop, form="recorded"), fault(
        ("nonfinite-loss", "loss-scale-frozen"),
        int(hits[0]),
        Expect("loss-scale-frozen", int(hits[0])),
        Expect("nonfinite-loss", int(hits[0])),
        may={"loss-scale-policy-broken"},
    )


@FAULTY_CASES.add("policy-halved-without-skip")
def halved_without_skip(rng: Rng) -> Made:
    """Half-way something else begins to lower the scale: it falls, and no step was skipped."""
    made = sixteen(rng, 8000)
    made.limit[:] = 16.6 + 0.2 * rng.standard_normal(made.rows)
    loop = Loop("fp16", torch_policy(interval=700))
    log = sheet(made, loop)
    hits = np.flatnonzero(log.values["skipped"])
    hits = hits[hits > 3000]
    log.values["skipped"][hits] = False
    log.values["skip_reason"] = np.where(log.values["skipped"], "nonfinite_grad", "")
    log.values["grad_l2_pre_clip"][hits] = 0.5
    log.values["grad_l2_post_clip"][hits] = 0.5
    log.written["grad_l2_post_clip"] = ~log.values["skipped"]
    return run_of(made, loop, log, form="canonical"), fault(
        "loss-scale-policy-broken", int(hits[0])
    )


@FAULTY_CASES.add("policy-skips-without-halving")
def skips_without_halving(rng: Rng) -> Made:
    """From one step on overflows are skipped and the scale stays, though it still grows."""
    made = sixteen(rng, 6000)
    made.limit[:] = 16.6 + 0.2 * rng.standard_normal(made.rows)
    start = made.at(0.4, 0.6)
    made.inf_grad[start : start + 9] = True
    policy = torch_policy(interval=400)
    log = sheet(made, Loop("fp16", policy))
    scale = np.array(log.values["scaler_scale"])
    scale[start : start + 40] = scale[start]
    log.values["scaler_scale"] = scale
    # What follows the stretch continues from the scale that was kept.
    log.values["scaler_scale"][start + 40 :] *= scale[start] / scale[start + 40]
    return run_of(made, Loop("fp16", policy), log), fault(
        ("loss-scale-policy-broken", "loss-scale-frozen"),
        start,
        may=SKIPS | {"nonfinite-gradient"},
    )


@FAULTY_CASES.add("policy-grew-early")
def grew_early(rng: Rng) -> Made:
    """The growth tracker is not reset on a skip: growth comes too soon after an overflow."""
    made = sixteen(rng, 12_000)
    made.limit[:] = 16.6 + 0.15 * rng.standard_normal(made.rows)
    policy = torch_policy(interval=1000)
    log = sheet(made, Loop("fp16", policy))
    skips = np.flatnonzero(log.values["skipped"])
    late = skips[skips > 4000][0]
    scale = np.array(log.values["scaler_scale"])
    early = int(late) + int(rng.integers(100, 400))
    scale[early : late + 1001] *= 2
    log.values["scaler_scale"] = scale
    return run_of(made, Loop("fp16", policy), log), fault("loss-scale-policy-broken", early)


@FAULTY_CASES.add("resume-without-scaler-state")
def without_state(rng: Rng) -> Made:
    """Resumed without the scaler's state: the scale jumps back to 2^16 and overflows."""
    made = sixteen(rng, 9000)
    made.limit[:] = 9.5 + 0.3 * rng.standard_normal(made.rows)
    half = 4000 + int(rng.integers(0, 400))
    loop = Loop("fp16", torch_policy())
    log = sheet(made, loop)
    again = sheet(made, loop).take(slice(0, made.rows - half))  # what a fresh scaler does
    for name in ("scaler_scale", "skipped", "skip_reason"):
        log.values[name] = np.concatenate([np.asarray(log.values[name])[:half], again.values[name]])
    norm = made.norm * np.exp(made.norm_noise)
    log.values["grad_l2_pre_clip"] = np.where(log.values["skipped"], np.inf, norm)
    log.values["grad_l2_post_clip"] = np.minimum(norm, 1.0)
    log.written["grad_l2_post_clip"] = ~log.values["skipped"]
    usual = manifest(made, loop)
    both = (usual.segments[0], replace(usual.segments[0], start_step=half, reason="resume"))
    return run_of(made, loop, log, manifest=replace(usual, segments=both)), fault(
        ("resume-seam", "loss-scale-policy-broken"), half, may={"high-skip-rate"}
    )


@FAULTY_CASES.add("runaway-zero-gradient")
def runaway(rng: Rng) -> Made:
    """Gradients are exactly 0 from one step on: nothing overflows, and the scale grows."""
    made = sixteen(rng, 60_000)
    start = made.at(0.1, 0.2)
    made.norm_factor[start:] = 0.0
    made.limit[start:] = 200.0
    made.loss[start:] = made.loss[start]
    loop = Loop("fp16", torch_policy())
    return run_of(made, loop, form=any_form(made)), fault(
        "gradient-vanishing",
        start,
        Expect("loss-scale-runaway", None),
        may=STALL | {"loss-scale-runaway", "gradient-underflow"},
    )


@FAULTY_CASES.add("runaway-from-the-start")
def runaway_from_start(rng: Rng) -> Made:
    """No gradient ever reaches a weight; the loss never moves."""
    made = sixteen(rng, 40_000)
    made.norm_factor[:] = 0.0
    made.limit[:] = 300.0
    made.loss[:] = 6.9
    loop = Loop("fp16", torch_policy(interval=1000))
    return run_of(made, loop, form=any_form(made)), fault(
        ("gradient-vanishing", "loss-scale-runaway"),
        0,
        Expect("loss-scale-runaway", None),
        slack=onset_slack(made.rows),
        may=STALL | {"gradient-underflow"},
    )


@FAULTY_CASES.add("runaway-unseen-overflows")
def runaway_unseen(rng: Rng) -> Made:
    """A scaler that never sees an overflow: the scale grows past all that fp16 can hold."""
    made = pretraining(rng, 6000)
    made.limit[:] = 1000.0
    interval = int(rng.choice([20, 50, 100]))
    loop = Loop("fp16", torch_policy(interval=interval))
    return run_of(made, loop, form="canonical"), fault(
        "loss-scale-runaway", 20 * interval, slack=5 * interval
    )


def _underflow(name: str, scale: float, norm: float, rows: int) -> None:
    @FAULTY_CASES.add(f"underflow-{name}")
    def make(rng: Rng) -> Made:
        """fp16 gradients below the format's range: a static scale that is far too small."""
        made = pretraining(rng, rows)
        made.norm[:] = norm
        made.limit[:] = 60.0
        made.loss[:] = made.loss[0] - 0.2 * np.linspace(0, 1, rows)
        loop = Loop("fp16", torch_policy(scale, interval=10**9))
        return run_of(made, loop, form="recorded"), fault(
            ("gradient-underflow", "precision-mismatch"),
            0,
            Expect("gradient-underflow", 0, slack=onset_slack(rows)),
            slack=onset_slack(rows),
            may=STALL | {"precision-mismatch"},
        )


_underflow("blatant", 1.0, 3e-5, 2000)
_underflow("mild", 2.0, 4e-4, 2000)
_underflow("long", 8.0, 2e-5, 30_000)


@FAULTY_CASES.add("mismatch-bf16-with-scaler")
def bf16_with_scaler(rng: Rng) -> Made:
    """bf16 with a moving loss scale."""
    made = sixteen(rng, 9000)
    loop = Loop("bf16", torch_policy())
    return run_of(made, loop), fault("precision-mismatch", 0, slack=made.rows)


@FAULTY_CASES.add("mismatch-fp32-with-scaler")
def fp32_with_scaler(rng: Rng) -> Made:
    """fp32 with a moving loss scale: autocast was forgotten."""
    made = sixteen(rng, 9000)
    loop = Loop("fp32", torch_policy())
    return run_of(made, loop), fault("precision-mismatch", 0, slack=made.rows)


@FAULTY_CASES.add("mismatch-fp16-without-scaler")
def fp16_without_scaler(rng: Rng) -> Made:
    """fp16 autocast and no scaler."""
    made = pretraining(rng, 3000)
    loop = Loop("fp16")
    usual = manifest(made, loop, scaler=ScalerPolicy())
    return run_of(made, loop, manifest=usual), fault(
        "precision-mismatch", 0, may=STALL | {"gradient-underflow"}
    )


@FAULTY_CASES.add("mismatch-autocast-device")
def autocast_device(rng: Rng) -> Made:
    """Autocast on the CPU, the optimizer on CUDA: autocast does nothing."""
    made = pretraining(rng, 1500)
    loop = Loop("bf16")
    usual = manifest(made, loop, autocast_device="cpu", device="cuda")
    return run_of(made, loop, manifest=usual), fault("precision-mismatch", 0)


def _skip(made: Training, log: Sheet, skipped: Bools) -> None:
    """Skip these steps; the scheduler stands still on them."""
    log.values["skipped"] = skipped
    log.values["lr"] = made.lr[np.cumsum(~skipped) - ~skipped]


@FAULTY_CASES.add("phantom-skips-fp32")
def phantom(rng: Rng) -> Made:
    """Steps skipped at random though loss and norm are finite and nothing says why."""
    made = pretraining(rng, 4000)
    log = sheet(made, Loop())
    start = made.at(0.2, 0.5)
    skipped = (np.arange(made.rows) >= start) & (rng.random(made.rows) < 0.08)
    skipped[start] = True
    _skip(made, log, skipped)
    log.written["grad_l2_post_clip"] = ~skipped
    return run_of(made, Loop(), log, form="canonical"), fault(
        "phantom-skip", start, may={"high-skip-rate"}
    )


@FAULTY_CASES.add("phantom-skips-few")
def phantom_few(rng: Rng) -> Made:
    """A dozen steps that were skipped for no reason, in bf16."""
    made = pretraining(rng, 4000)
    log = sheet(made, Loop("bf16"))
    hits = np.sort(rng.choice(np.arange(500, 3900), 12, replace=False))
    _skip(made, log, np.isin(np.arange(made.rows), hits))
    log.written["grad_l2_post_clip"] = ~log.values["skipped"]
    return run_of(made, Loop("bf16"), log, form="recorded"), fault("phantom-skip", int(hits[0]))


@FAULTY_CASES.add("phantom-dead")
def phantom_dead(rng: Rng) -> Made:
    """From one step on every step is skipped, and everything logged is finite."""
    made = pretraining(rng, 3000)
    start = made.at(0.3, 0.8)
    log = sheet(made, Loop("bf16"))
    _skip(made, log, np.arange(made.rows) >= start)
    log.written["grad_l2_post_clip"] = ~log.values["skipped"]
    return run_of(made, Loop("bf16"), log, form="canonical"), fault(
        "phantom-skip", start, Expect("dead-run", start), may=SKIPS
    )
