"""Healthy mixed precision: calibration, sawtooth, hysteresis, and scales that never move."""

from __future__ import annotations

from dataclasses import replace

from forensics.runlog.run import Run
from tests.corpus import noise
from tests.corpus.assemble import any_form, manifest, run_of
from tests.corpus.case import HEALTHY, HEALTHY_CASES, Label
from tests.corpus.loop import Loop, megatron_policy, torch_policy
from tests.corpus.training import headroom, pretraining, small_batch, training, vision

Made = tuple[Run, Label]


@HEALTHY_CASES.add("fp32")
def fp32(rng: noise.Rng) -> Made:
    made = pretraining(rng, int(rng.choice([300, 2000, 20_000])))
    return run_of(made, Loop(), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("bf16")
def bf16(rng: noise.Rng) -> Made:
    made = pretraining(rng, int(rng.choice([300, 2000, 20_000])))
    return run_of(made, Loop("bf16", max_norm=None), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("fp16-from-2^16")
def from_16(rng: noise.Rng) -> Made:
    made = pretraining(rng, int(rng.choice([500, 2000, 20_000])))
    made.limit = headroom(rng, made.rows, level=rng.uniform(3, 15))
    return run_of(made, Loop("fp16", torch_policy()), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("fp16-from-2^32")
def from_32(rng: noise.Rng) -> Made:
    made = pretraining(rng, int(rng.choice([500, 2000, 20_000])))
    loop = Loop("fp16", torch_policy(2.0**32))
    made.limit = headroom(rng, made.rows, level=rng.uniform(8, 18))
    return run_of(made, loop, form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("fp16-hysteresis")
def hysteresis(rng: noise.Rng) -> Made:
    made = pretraining(rng, int(rng.choice([1000, 5000, 20_000])))
    loop = Loop("fp16", megatron_policy(2.0 ** int(rng.choice([16, 32]))))
    return run_of(made, loop, form=any_form(made)), HEALTHY


def _sawtooth(kind: str) -> None:
    @HEALTHY_CASES.add(f"fp16-sawtooth-{kind}")
    def make(rng: noise.Rng) -> Made:
        rows = int(rng.choice([2000, 20_000, 20_000, 60_000]))
        made = training(rng, rows, str(rng.choice(["pretraining", "vision", "small-batch"])))
        made.limit = headroom(rng, rows, kind)
        loop = Loop("fp16", torch_policy(interval=int(rng.choice([1000, 2000]))))
        return run_of(made, loop, form=any_form(made)), HEALTHY


for _kind in noise.KINDS:
    _sawtooth(_kind)


@HEALTHY_CASES.add("fp16-short-interval")
def short_interval(rng: noise.Rng) -> Made:
    """A growth interval of 100: one overflow in a hundred steps is its normal rate."""
    made = vision(rng, 6000)
    made.limit = headroom(rng, made.rows, level=14)
    loop = Loop("fp16", torch_policy(interval=100))
    return run_of(made, loop, form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("fp16-200k")
def long_fp16(rng: noise.Rng) -> Made:
    made = pretraining(rng, 200_000)
    made.limit = headroom(rng, made.rows, str(rng.choice(noise.KINDS)))
    return run_of(made, Loop("fp16", torch_policy()), form="canonical"), HEALTHY


@HEALTHY_CASES.add("fp16-never-overflows")
def never_overflows(rng: noise.Rng) -> Made:
    """The scale doubles every interval and no batch has tested it yet."""
    made = pretraining(rng, 9000)
    made.limit = headroom(rng, made.rows, level=40)
    return run_of(made, Loop("fp16", torch_policy()), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("fp16-all-calibration")
def all_calibration(rng: noise.Rng) -> Made:
    """A short log that begins with ten to fifteen skips."""
    made = pretraining(rng, int(rng.integers(60, 200)))
    made.limit = headroom(rng, made.rows, level=rng.uniform(2, 5))
    return run_of(made, Loop("fp16", torch_policy()), form=any_form(made)), HEALTHY


@HEALTHY_CASES.add("fp16-static-scale")
def static_scale(rng: noise.Rng) -> Made:
    """A fixed loss scale with headroom: never an overflow, never a change."""
    made = pretraining(rng, 4000)
    made.limit = headroom(rng, made.rows, level=20)
    policy = torch_policy(1024.0, interval=10**9)
    loop = Loop("fp16", policy)
    return run_of(made, loop, form="canonical"), HEALTHY


@HEALTHY_CASES.add("fp16-resumed-with-state")
def resumed_with_state(rng: noise.Rng) -> Made:
    """Resumed half-way with the scaler's state; time starts again, nothing else does."""
    made = pretraining(rng, 8000)
    loop = Loop("fp16", torch_policy())
    first = manifest(made, loop).segments[0]
    both = (first, replace(first, start_step=3863, reason="resume"))
    return run_of(made, loop, manifest=manifest(made, loop, segments=both)), HEALTHY


@HEALTHY_CASES.add("fp16-log-of-every-tenth-step")
def every_tenth(rng: noise.Rng) -> Made:
    """Only every tenth step is logged: most overflows happen between the lines."""
    from tests.corpus.assemble import sheet

    made = small_batch(rng, 40_000)
    loop = Loop("fp16", torch_policy())
    thin = sheet(made, loop).take(slice(9, None, 10))
    return run_of(made, loop, thin, form="foreign"), HEALTHY


@HEALTHY_CASES.add("fp16-scale-logged-after-update")
def after_update(rng: noise.Rng) -> Made:
    """A foreign logger that reads the scale after ``update()``."""
    from tests.corpus.assemble import sheet

    made = pretraining(rng, 12_000)
    loop = Loop("fp16", torch_policy())
    late = sheet(made, loop)
    scale = late.values["scaler_scale"]
    late.values["scaler_scale"] = [*scale[1:], scale[-1]]
    return run_of(made, loop, late, form="foreign"), HEALTHY
