"""Where each held-out fault comes into which step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.fault_answers import ALL, Answer

_HOME = Path(__file__).parent


def _at(file: str, name: str) -> str:
    return f"{_HOME / file}.py:{name}"


SOUND: tuple[str, ...] = tuple(
    _at("healthy", name)
    for name in (
        "ok-zero-init",
        "ok-warm-up-from-zero",
        "ok-checkpointed",
        "ok-straight-through",
        "ok-gradient-noise",
        "ok-clip-by-value",
        "ok-fused-overflow",
        "ok-scaler-late-overflow",
        "ok-two-rates",
        "ok-dead-units",
        "ok-bf16-parameters",
        "ok-unused-rows",
        "ok-inner-penalty",
        "ok-two-optimizers",
        "ok-masked-nan",
        "ok-accumulated-fp16",
        "ok-large-finite",
    )
) + tuple(
    _at("fourth", name)
    for name in ("ok-average-warms-up", "ok-mean-of-weights", "ok-one-optimizer-two-losses")
)
"""Sound trainings that do something unusual."""

UNSEEN: tuple[Answer, ...] = (
    Answer(
        recipe=_at("sequences", "gpt-empty-sequence"),
        step=17,
        phase=("forward",),
        operators=("aten._softmax",),
        module="pool",
    ),
    Answer(
        recipe=_at("sequences", "gpt-recompute"),
        step=0,
        phase=("backward",),
        operators=("recompute",),
        module="blocks.1",
        parameter=ALL,
        persistence="persistent",
    ),
    Answer(
        recipe=_at("sequences", "gpt-hand-softmax"),
        step=21,
        phase=("forward",),
        operators=("aten.exp",),
        module="mixer.weights",
    ),
    Answer(
        recipe=_at("sequences", "lstm-empty-mask"),
        step=23,
        phase=("loss",),
        operators=("aten.div",),
    ),
    Answer(
        recipe=_at("sequences", "lstm-root-penalty"),
        step=0,
        phase=("backward",),
        operators=("PowBackward0",),
        parameter="head.bias",
        persistence="persistent",
    ),
    Answer(
        recipe=_at("sequences", "gpt-tiny-loss-weight"),
        step=0,
        phase=("backward",),
        operators=("aten.mm", "aten._to_copy"),
        module="body",
        parameter="body.weight",
        persistence="persistent",
    ),
    Answer(
        recipe=_at("images", "cnn-acos-at-one"),
        step=12,
        phase=("backward",),
        operators=("AcosBackward0",),
        module="head",
        parameter="head.directions",
    ),
    Answer(
        recipe=_at("images", "cnn-bn-deep"),
        step=19,
        phase=("forward",),
        operators=("aten.native_batch_norm",),
        module="blocks.0.bn_1",
        parameter="blocks.0.bn_1.running_var",
        persistence="persistent",
    ),
    Answer(
        recipe=_at("images", "cnn-nan-pixel"),
        step=9,
        phase=("input",),
        operators=("input",),
        module="stem",
        persistence="persistent",
    ),
    Answer(
        recipe=_at("images", "cnn-sigmoid-edited"),
        step=0,
        phase=("backward",),
        operators=("SigmoidBackward0",),
        module="head.1",
        parameter="head.0.weight",
        persistence="persistent",
    ),
    Answer(
        recipe=_at("loops", "rate-inf"),
        step=14,
        phase=("optimizer",),
        operators=("aten.add", "aten._foreach_addcdiv", "aten.addcdiv", "aten._foreach_mul"),
        parameter=ALL,
        persistence="persistent",
    ),
    Answer(
        recipe=_at("loops", "moment-bit-flip"),
        step=13,
        phase=("outside",),
        operators=("outside",),
        module="layers.1",
        parameter="layers.1.weight",
        reproduces=False,
    ),
    Answer(
        recipe=_at("loops", "momentum-lost"),
        step=60,
        phase=("optimizer",),
        operators=("resume",),
        parameter=ALL,
    ),
    Answer(
        recipe=_at("loops", "momentum-lr-too-high"),
        step=54,
        phase=("forward", "loss"),
        operators=("growth",),
        parameter=ALL,
        persistence="persistent",
    ),
    Answer(
        recipe=_at("loops", "gpt-clip-first"),
        step=0,
        phase=("clip",),
        operators=("clip",),
        parameter=ALL,
        persistence="persistent",
    ),
    Answer(
        recipe=_at("loops", "half-stored-layer"),
        step=0,
        phase=("optimizer",),
        operators=("optimizer rounding",),
        module="first",
        parameter="first.weight",
        persistence="persistent",
    ),
)
"""Sixteen recordings of recipes that are not registered."""


def _numeric(name: str, operators: tuple[str, ...], module: str = "special", **more: Any) -> Answer:
    known: dict[str, Any] = {"step": 11, "phase": ("forward",), "module": module}
    return Answer(recipe=_at("numerics", name), operators=operators, **{**known, **more})


NUMERICS: tuple[Answer, ...] = (
    _numeric("norm-without-eps", ("aten.native_layer_norm",)),
    _numeric("unit-vector-of-zero", ("aten.div",)),
    _numeric("logit-of-one", ("aten.logit",)),
    _numeric("root-of-negative", ("aten.pow",)),
    _numeric("class-weight-zero", ("aten.nll_loss_forward",), "", phase=("loss",)),
    _numeric("sum-in-fp16", ("aten.sum",)),
    _numeric("mask-added-twice", ("aten.add", "aten._softmax"), ""),
    _numeric("fill-too-low", ("F.masked_fill", "aten.masked_fill", "Tensor.masked_fill")),
    _numeric("index-out-of-range", ("F.embedding", "aten.embedding"), "encoder.tokens"),
    _numeric(
        "weight-norm-of-zero",
        ("aten._weight_norm_interface", "aten.div"),
        "head.parametrizations.weight.0",
        step=0,
        persistence="persistent",
    ),
    _numeric(
        "eigen-degenerate",
        ("LinalgEighBackward0",),
        "",
        phase=("backward",),
        parameter="body.weight",
    ),
    _numeric(
        "variance-by-moments", ("SqrtBackward0",), phase=("backward",), parameter="body.weight"
    ),
    _numeric("penalty-at-zero", ("SqrtBackward0",), "", phase=("backward",), parameter=ALL),
    _numeric("softplus-inverse", ("aten.expm1",)),
    _numeric("infinite-attention-bias", ("aten.log",)),
    _numeric("ema-poisoned", ("input",), "body", phase=("input",), persistence="persistent"),
)
"""Sixteen more, made after the first sixteen were seen."""


def _third(name: str, operators: tuple[str, ...], module: str = "", **more: Any) -> Answer:
    known: dict[str, Any] = {"step": 14, "phase": ("forward",), "module": module}
    return Answer(recipe=_at("third", name), operators=operators, **{**known, **more})


THIRD: tuple[Answer, ...] = (
    _third(
        "strict-clip-raises",
        ("SqrtBackward0",),
        "distance",
        phase=("backward",),
        parameter="encoder.weight",
    ),
    _third("nan-target", ("input",), "", phase=("input",)),
    _third("in-place-division", ("aten.div",), "scale"),
    _third("normalize-fp16", ("aten.div",), "unit"),
    _third("loss-in-fp16", ("aten.square", "aten.pow"), "", phase=("loss",)),
    _third(
        "adam-eps-zero",
        ("aten.addcdiv", "aten._foreach_addcdiv"),
        step=0,
        phase=("optimizer",),
        parameter="embedding.weight",
        persistence="persistent",
    ),
    _third(
        "late-rate",
        ("growth",),
        step=73,
        phase=("loss",),
        parameter=ALL,
        persistence="persistent",
    ),
    _third(
        "ema-diverges",
        ("aten.mul", "aten.add"),
        step=41,
        phase=("ema",),
        parameter=ALL,
        persistence="persistent",
    ),
    _third(
        "gpt-input-edited",
        ("MulBackward0",),
        step=0,
        phase=("backward",),
        parameter="first.weight",
        persistence="persistent",
    ),
    _third(
        "accumulated-recompute",
        ("recompute",),
        "blocks.1",  # of two, the one that backward reaches first
        step=0,
        phase=("backward",),
        parameter=ALL,
        persistence="persistent",
    ),
    _third(
        "gradients-never-cleared",
        ("zero_grad",),
        step=1,
        phase=("backward", "optimizer"),
        parameter=ALL,
        persistence="persistent",
    ),
    _third(
        "shared-scaler",
        ("SqrtBackward0",),
        phase=("backward",),
        parameter="layers.0.bias",
    ),
)
"""Twelve more; nothing was changed for them after they were tried."""


def _fourth(name: str, operators: tuple[str, ...], **more: Any) -> Answer:
    known: dict[str, Any] = {"step": 14, "parameter": ALL}
    return Answer(recipe=_at("fourth", name), operators=operators, **{**known, **more})


FOURTH: tuple[Answer, ...] = (
    _fourth(
        "scaler-updated-by-hand",
        ("GradScaler.update",),
        step=0,
        phase=("unscale",),
        persistence="persistent",
    ),
    _fourth(
        "head-swapped",
        ("optimizer.param_groups",),
        step=0,
        phase=("optimizer",),
        module="head",
        parameter="head.weight",
        persistence="persistent",
    ),
    _fourth(
        "stepped-in-a-helper",
        ("optimizer.step",),
        step=0,
        phase=("optimizer",),
        persistence="persistent",
    ),
    _fourth(
        "bias-rate-nan",
        ("aten.add", "aten._foreach_add"),
        phase=("optimizer",),
        parameter="head.bias",
        persistence="persistent",
    ),
    _fourth(
        "average-that-grows", ("ema.update",), step=0, phase=("ema",), persistence="persistent"
    ),
    _fourth(
        "average-turned-round", ("ema.update",), step=10, phase=("ema",), persistence="persistent"
    ),
    _fourth("smoothed-over-a-mask", ("aten.masked_fill",), phase=("loss",), parameter=""),
    _fourth("too-short-for-its-target", ("aten._ctc_loss",), phase=("loss",), parameter=""),
)
"""Eight more, of kinds that came up later."""
