"""The right answers of the fault benchmark: where each fault comes into which step.

A step and an operator were established by hand: from the recipe's own text, from the step log, and
from the operators that ran. Where one and the same operation has several names (the foreach and the
single-tensor form of an optimizer's, an operator and its autograd node), each of them is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ALL = "all"
"""Every parameter is touched alike: naming any of them, or none, is right."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a bisection must say of one recording.

    Attributes:
        recipe: registered name, or ``file.py:name``.
        step: the first bad step.
        phase: where the operator runs; every one that is right.
        operators: names of the operator, of its autograd node, or of the kind of fault.
        module: as in ``named_modules()``; empty for the root.
        parameter: must be among those listed as bad; empty for none, ``ALL`` for any.
        persistence: ``transient`` or ``persistent``.
        reproduces: does a replay from the state before go bad again?
        settings: of the recording, where they differ from the recipe's own.
        by_chance: the step depends on the seed: with another one it is the log's first bad row.
    """

    recipe: str
    step: int
    phase: tuple[str, ...]
    operators: tuple[str, ...]
    module: str = ""
    parameter: str = ""
    persistence: str = "transient"
    reproduces: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_chance: bool = False


def _forward(recipe: str, operator: str, module: str, **more: Any) -> Answer:
    return Answer(
        recipe=recipe,
        **{"step": 5, "phase": ("forward",), "operators": (operator,), "module": module, **more},
    )


def _loss(recipe: str, operator: str) -> Answer:
    return Answer(recipe=recipe, step=5, phase=("loss",), operators=(operator,))


def _backward(recipe: str, node: str, module: str, parameter: str, **more: Any) -> Answer:
    known = {"step": 5, "phase": ("backward",), "operators": (node,), "module": module}
    return Answer(recipe=recipe, **{**known, "parameter": parameter, **more})


def _lasting(recipe: str, step: int, phase: str, *operators: str, **more: Any) -> Answer:
    return Answer(
        recipe=recipe,
        step=step,
        phase=(phase,),
        operators=operators,
        **{"persistence": "persistent", **more},
    )


FAULTS: tuple[Answer, ...] = (
    Answer(recipe="bad-sample", step=30, phase=("input",), operators=("input",), module="layers.0"),
    _loss("target-overflow", "aten.mse_loss"),
    _loss("labels-all-ignored", "aten.nll_loss_forward"),
    _forward("std-of-one", "aten.std", "advantage"),
    _forward("batch-norm-of-one", "F.batch_norm", "bn"),
    _lasting(
        "batchnorm-poisoned",
        37,
        "forward",
        "aten.native_batch_norm",
        module="bn",
        parameter="bn.running_var",
    ),
    _forward("entropy-log-zero", "aten.log", "entropy"),
    _forward("fully-masked-softmax", "aten._softmax", "attention"),
    _forward("pairwise-negative-sqrt", "aten.sqrt", "distance"),
    _forward("gumbel-rounding", "aten.log", "gumbel", step=8, by_chance=True),
    _forward("kl-exp-overflow", "aten.exp", "kl"),
    _lasting("empty-parameter", 0, "forward", "param:background", parameter="background"),
    _lasting(
        "learned-scale-blowup",
        23,
        "forward",
        "aten.exp",
        module="scale",
        parameter="scale.log_scale",
        by_chance=True,
    ),
    _lasting(
        "attention-logit-growth",
        42,
        "forward",
        "aten.bmm",
        module="attention",
        parameter="attention.query.weight",
        by_chance=True,
    ),
    _lasting(
        "accumulation-not-divided",
        38,
        "forward",
        "growth",
        module="head",
        parameter="head.weight",
        by_chance=True,
    ),
    _forward("norm-eps-fp16", "aten.rsqrt", "norm"),
    _forward("ffn-overflow-fp16", "aten.addmm", "down"),
    _lasting(
        "adam-eps-fp16",
        0,
        "optimizer",
        "aten.addcdiv",
        "aten._foreach_addcdiv",
        parameter="embedding.weight",
    ),
    _lasting(
        "gradient-underflow-fp16",
        0,
        "backward",
        "aten.mm",
        module="layers.0",
        parameter="layers.0.weight",
    ),
    _lasting(
        "stale-update-bf16",
        0,
        "optimizer",
        "optimizer rounding",
        module="head",
        parameter="head.weight",
    ),
    _backward("sqrt-at-zero", "SqrtBackward0", "distance", "encoder.weight"),
    _backward("where-log", "LogBackward0", "log", "filters.weight"),
    _lasting(
        "recompute-other-mask",
        0,
        "backward",
        "recompute",
        module="body",
        parameter="body.0.weight",
    ),
    _lasting(
        "saved-tensor-edited",
        0,
        "backward",
        "ExpBackward0",
        module="cap",
        parameter="body.weight",
    ),
    _backward("backward-in-autocast", "aten.mm", "body", "body.weight"),
    _lasting("clip-before-unscale", 0, "clip", "clip", parameter=ALL, settings={"steps": 40}),
    Answer(
        recipe="clip-norm-overflow",
        step=5,
        phase=("clip",),
        operators=("aten._foreach_norm", "aten.linalg_vector_norm"),
        parameter="head.weight",
    ),
    _backward("clip-inf-to-nan", "SqrtBackward0", "", "level"),
    _backward("clip-spreads-nan", "LogBackward0", "", "level"),
    _lasting("spike-skipped-half", 6, "unscale", "GradScaler.unscale_"),
    _lasting(
        "step-bypasses-scaler",
        5,
        "optimizer",
        "optimizer",
        module="head",
        parameter="head.weight",
    ),
    _lasting("scale-to-zero", 5, "forward", "aten.log", module="loudness"),
    _lasting("scheduler-ahead", 0, "scheduler", "lr_scheduler.step"),
    Answer(
        recipe="fused-hidden-skip",
        step=5,
        phase=("optimizer",),
        operators=("_fused_adamw_", "aten._fused_adamw"),
        parameter=ALL,
    ),
    _lasting(
        "lr-too-high", 61, "loss", "growth", parameter=ALL, settings={"steps": 90}, by_chance=True
    ),
    _lasting("lr-nan", 5, "optimizer", "aten.add", "aten._foreach_add", parameter=ALL),
    _lasting(
        "second-moment-overflow",
        5,
        "optimizer",
        "aten.addcmul",
        "aten._foreach_addcmul",
        parameter="head.weight.exp_avg_sq",
    ),
    _backward("resume-without-scaler", "aten._to_copy", "", "head.weight", step=12),
    Answer(
        recipe="resume-without-optimizer",
        step=400,
        phase=("optimizer",),
        operators=("resume",),
        parameter=ALL,
    ),
    Answer(
        recipe="bit-flip",
        step=5,
        phase=("outside",),
        operators=("outside",),
        module="layers.0",
        parameter="layers.0.weight[3,1]",
        reproduces=False,
    ),
    _backward("one-bad-rank", "SqrtBackward0", "distance", ALL),
)
"""Forty-one faults, one recording each."""

CONTROLS: tuple[str, ...] = (
    "control-causal-mask",
    "control-scaler-warm-up",
    "control-unused-branch",
    "control-loss-spike",
)
"""Nothing is wrong with these: any finding is a false alarm."""
