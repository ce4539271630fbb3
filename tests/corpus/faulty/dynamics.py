"""Faults of the network's dynamics, which snapshots and activation statistics show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import Run
from tests.corpus.assemble import manifest, network, onset_slack, ramp, run_of
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP, DAMAGE, SKIPS, STALL
from tests.corpus.faulty.nonfinite import sixteen
from tests.corpus.healthy.snapshots import healthy_activations, healthy_params, modules_of
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.snapshots import MemoryActivations
from tests.corpus.training import Training, pretraining

Made = tuple[Run, Label]
INNER = "blocks.2.mlp.up.weight"


@FAULTY_CASES.add("dominant-parameter-explodes")
def dominant(rng: Rng) -> Made:
    """One layer's gradient grows and takes the global norm along."""
    made = pretraining(rng, 6000)
    start = made.at(0.3, 0.5)
    growth = np.minimum(ramp(6000, start, 0.008), 3000)
    made.norm_factor = growth
    made.loss_factor = 1 + 1.5 * np.minimum((np.arange(6000) - start - 700).clip(0) / 600, 1)
    loop = Loop("bf16")
    usual = manifest(made, loop)
    params = healthy_params(made, usual)
    at = [info.name for info in usual.parameters].index(INNER)
    rest = np.arange(len(usual.parameters)) != at
    for statistic in ("grad_l2", "grad_absmax"):
        params.data[("param", statistic)][:, rest] /= growth[params.taken_at][:, None]
    return run_of(made, loop, manifest=usual, params=params), fault(
        "gradient-explosion",
        start,
        Expect("dominant-parameter", None, subject=INNER),
        slack=onset_slack(6000),
        may=BLOW_UP,
    )


def _frozen(name: str, statistic: str) -> None:
    @FAULTY_CASES.add(f"frozen-{name}")
    def make(rng: Rng) -> Made:
        """A weight matrix that never moves while the others do."""
        made = pretraining(rng, int(rng.choice([500, 5000])))
        loop = Loop("fp32")
        usual = manifest(made, loop)
        params = healthy_params(made, usual)
        at = [info.name for info in usual.parameters].index(INNER)
        params.data[("param", statistic)][:, at] = 0.0
        if statistic == "grad_l2":
            params.data[("param", "grad_absmax")][:, at] = 0.0
            params.data[("param", "update_l2")][:, at] = 0.0
        return run_of(made, loop, manifest=usual, params=params), fault(
            "frozen-parameter", 0, subject=INNER, may={"update-ratio"}
        )


_frozen("zero-gradient", "grad_l2")
_frozen("zero-update", "update_l2")


@FAULTY_CASES.add("frozen-bf16-rounding")
def rounding(rng: Rng) -> Made:
    """Pure bf16 weights: every update is below half the spacing and is rounded away."""
    made = pretraining(rng, 3000)
    made.loss[:] = made.loss[0] * (1 - 0.001 * np.linspace(0, 1, 3000))
    made.rate("constant", 1e-5)
    loop = Loop("bf16")
    infos = tuple(replace(info, dtype="bfloat16") for info in network(4))
    usual = manifest(made, loop, parameters=infos)
    params = healthy_params(made, usual)
    params.data[("param", "update_l2")][:] = 0.0
    return run_of(made, loop, manifest=usual, params=params), fault(
        "frozen-parameter", 0, may=STALL | {"update-ratio"}
    )


def _depth(name: str, growing: bool, decades: float, source: str) -> None:
    @FAULTY_CASES.add(f"depth-{name}")
    def make(rng: Rng) -> Made:
        """Gradients or activations change by a factor a layer from the first step on."""
        made = pretraining(rng, 1000)
        made.norm[:] = 0.5 if growing else 0.01
        if not growing:
            made.loss[:] = 2.3
        loop = Loop("fp32")
        usual = manifest(made, loop, parameters=network(12))
        params = healthy_params(made, usual)
        activations = healthy_activations(made, usual)
        layers = np.linspace(0, 1, 12)
        # Forward: towards the loss. Backward: towards the input.
        forward = 10 ** (decades * (layers if growing else -layers))
        backward = 10 ** (decades * ((1 - layers) if growing else -(1 - layers)))
        if source == "gradient":
            _by_layer(params.data[("param", "grad_l2")], usual, backward)
        else:
            for statistic in ("std", "absmax"):
                _by_layer(activations.data[statistic], usual, forward, modules_of(usual))
        rule = "depth-growth" if growing else "depth-decay"
        return run_of(made, loop, manifest=usual, params=params, activations=activations), fault(
            (rule, "loss-plateau") if not growing else rule,
            0,
            Expect(rule, 0),
            slack=50,
            may=STALL | BLOW_UP | {"update-ratio"},
        )


def _by_layer(
    values: np.ndarray, made: Manifest, factors: np.ndarray, names: tuple[str, ...] | None = None
) -> None:
    """Multiply each layer's columns by its factor."""
    for column, name in enumerate(names or [info.name for info in made.parameters]):
        if name.startswith("blocks."):
            values[:, column] *= factors[int(name.split(".")[1])]


_depth("decay-gradient", False, 5.0, "gradient")
_depth("decay-activation", False, 4.0, "activation")
_depth("decay-mild", False, 3.6, "gradient")
_depth("growth-gradient", True, 4.5, "gradient")
_depth("growth-activation", True, 4.0, "activation")
_depth("growth-mild", True, 3.6, "activation")


@FAULTY_CASES.add("update-too-large")
def update_large(rng: Rng) -> Made:
    """Every step replaces a third of a matrix; the loss cannot fall."""
    made = pretraining(rng, 4000)
    made.loss[:] = made.loss[0]
    loop = Loop("fp32")
    made.rate("constant", 0.3)
    usual = manifest(made, loop)
    params = healthy_params(made, usual)
    params.data[("param", "update_l2")][:] = 0.3 * params.data[("param", "value_l2")]
    return run_of(made, loop, manifest=usual, params=params), fault(
        ("update-ratio", "loss-plateau"), 0, Expect("update-ratio", None), slack=400, may=STALL
    )


@FAULTY_CASES.add("update-too-small")
def update_small(rng: Rng) -> Made:
    """A rate of 1e-11: no bit of a weight moves."""
    made = pretraining(rng, 3000)
    made.loss[:] = made.loss[0]
    made.rate("constant", 1e-11)
    loop = Loop("fp32")
    usual = manifest(made, loop)
    params = healthy_params(made, usual)
    params.data[("param", "update_l2")][:] = 1e-10 * params.data[("param", "value_l2")]
    return run_of(made, loop, manifest=usual, params=params), fault(
        ("update-ratio", "loss-plateau"), 0, Expect("update-ratio", None), slack=200, may=STALL
    )


@FAULTY_CASES.add("update-stale-bf16")
def update_stale(rng: Rng) -> Made:
    """bf16 weights without a master copy, updates below the spacing: most elements stay put."""
    made = pretraining(rng, 5000)
    made.rate("constant", 1e-4)
    loop = Loop("bf16")
    infos = tuple(replace(info, dtype="bfloat16") for info in network(4))
    usual = manifest(made, loop, parameters=infos)
    params = healthy_params(made, usual)
    params.data[("param", "update_l2")][:] = 2.0**-12 * params.data[("param", "value_l2")]
    return run_of(made, loop, manifest=usual, params=params), fault(
        "update-ratio", 0, slack=200, may=STALL
    )


def _weights(name: str, rows: int, factor: float) -> None:
    @FAULTY_CASES.add(f"weight-growth-{name}")
    def make(rng: Rng) -> Made:
        """One matrix grows at a steady pace and does not slow down."""
        made = pretraining(rng, rows)
        loop = Loop("bf16")
        usual = manifest(made, loop)
        params = healthy_params(made, usual)
        at = [info.name for info in usual.parameters].index("blocks.3.attn.qkv.weight")
        start = int(0.1 * rows)
        later = (params.taken_at - start).clip(0) / (rows - start)
        params.data[("param", "value_l2")][:, at] *= factor**later
        return run_of(made, loop, manifest=usual, params=params), fault(
            "weight-growth",
            0,
            slack=int(0.5 * rows),  # a steady growth has no sharp beginning
            subject="blocks.3.attn.qkv.weight",
        )


_weights("blatant", 8000, 200.0)
_weights("mild", 8000, 30.0)
_weights("long", 100_000, 60.0)


def _stale_moment(name: str, rows: int, count: int) -> None:
    @FAULTY_CASES.add(f"stale-second-moment-{name}")
    def make(rng: Rng) -> Made:
        """g²/v jumps in one layer, and the loss spikes some steps later, again and again."""
        made = pretraining(rng, rows).clean_noise(0.01, 0.1)
        first = made.at(0.3, 0.5)
        every = max(60, int(0.4 * rows / count))
        events = first + np.arange(count) * min(every, 150) + rng.integers(0, 40, count)
        loop = Loop("bf16")
        usual = manifest(made, loop)
        params = healthy_params(made, usual, np.arange(0, rows, 5 if rows < 10_000 else 25))
        at = [info.name for info in usual.parameters].index("embed.weight")
        for event in events:
            near = int(np.searchsorted(params.taken_at, event))
            params.data[("param", "v_ratio")][near, at] = rng.uniform(15, 40)
            hit = int(params.taken_at[near]) + int(rng.integers(2, 7))
            made.loss_factor[hit : hit + 6] += 0.9 * np.exp(-np.arange(6) / 2)
            made.norm_factor[hit] *= 12
        return run_of(made, loop, manifest=usual, params=params), fault(
            ("stale-second-moment", "loss-spike", "gradient-spike"),
            int(params.taken_at[np.searchsorted(params.taken_at, events[0])]),
            Expect("stale-second-moment", None, least=Severity.WARNING),
            slack=10,
            may={"loss-spike", "gradient-spike"},
        )


_stale_moment("2k", 2000, 6)
_stale_moment("20k", 20_000, 9)


def _growing(
    made: Training, rows: int, module: int, end: int, usual: Manifest
) -> MemoryActivations:
    """Activations of one module that grow to the fp16 limit at a step."""
    activations = healthy_activations(made, usual, np.arange(0, rows, max(1, rows // 200)))
    at = activations.taken_at
    growth = np.exp(np.log(8000) * (at / end).clip(0, 1) ** 2)
    for statistic in ("std", "absmax"):
        activations.data[statistic][:, module] *= growth
    return activations


def _overflow_ahead(name: str, rows: int, happens: bool) -> None:
    @FAULTY_CASES.add(f"activation-growth-{name}")
    def make(rng: Rng) -> Made:
        """Attention scores grow until fp16 ends at 65,504; the loss is NaN from there."""
        made = sixteen(rng, rows)
        end = int(0.85 * rows) if happens else rows
        loop = Loop("fp16", torch_policy(), guard=True)
        usual = manifest(made, loop)
        modules = modules_of(usual)
        at = modules.index("blocks.3.attn.qkv")
        activations = _growing(made, rows, at, end, usual)
        absmax = activations.data["absmax"]
        steps = activations.taken_at
        risky = int(steps[np.argmax(absmax[:, at] >= 65_504 / 8)])
        must = [Expect("activation-overflow-risk", risky, max(3, rows // 100), modules[at])]
        if happens:
            made.nan_loss[end:] = True
            must += [Expect("nonfinite-loss", end), Expect("dead-run", end)]
        return run_of(made, loop, manifest=usual, activations=activations), fault(
            "activation-overflow-risk",
            risky,
            *must,
            slack=max(3, rows // 100),
            may=SKIPS | DAMAGE | {"weight-growth"},
        )


_overflow_ahead("overflows", 4000, True)
_overflow_ahead("late", 20_000, True)
_overflow_ahead("not-yet", 4000, False)


@FAULTY_CASES.add("activation-dead-units")
def dead_units(rng: Rng) -> Made:
    """All units of one layer are 0 from some step to the end."""
    made = pretraining(rng, 3000)
    loop = Loop("fp32")
    usual = manifest(made, loop)
    activations = healthy_activations(made, usual)
    at = modules_of(usual).index("blocks.1.mlp.up")
    first = int(rng.integers(20, 70))
    activations.data["zero_share"][first:, at] = 1.0
    for statistic in ("mean", "std", "absmax"):
        activations.data[statistic][first:, at] = 0.0
    start = int(activations.taken_at[first])
    return run_of(made, loop, manifest=usual, activations=activations), fault(
        "activation-overflow-risk", start, slack=35, subject="blocks.1.mlp.up"
    )
