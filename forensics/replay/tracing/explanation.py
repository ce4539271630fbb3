"""Why an operator made a non-finite value, in one sentence with the numbers that prove it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from forensics.replay.op_trace import INPUT, Birth
from forensics.replay.tracing.tensor_stats import TensorStats

_KIND = {"nan": "NaN", "inf": "Inf"}
_DIVISIONS = ("div", "true_divide", "reciprocal", "rsqrt", "addcdiv", "pow", "log", "log2", "log10")
_LOGS = ("log", "log2", "log10", "log1p")
_OF_POSITIVE = ("sqrt", "rsqrt", *_LOGS)
"""Functions that have no value for a negative number."""
_SUMS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "sum", "dot", "mv", "matmul")
"""Operators that add products up."""
_SPREADS = ("std", "var", "std_mean", "var_mean")


def explain(birth: Birth) -> str:
    """One sentence: what made the value, and why.

    Args:
        birth: the origin.
    """
    if birth.leaf:
        return _leaf(birth)
    where = f" in {birth.module}" if birth.module else ""
    if birth.autograd_node:
        what = f"{birth.autograd_node}{where} made {_KIND[birth.kind]} in backward"
        what += f" ({birth.operator})" if birth.operator else ""
    else:
        what = f"{birth.operator}{where} made {_KIND[birth.kind]}"
    return f"{what}: {_why(birth)}"


def _leaf(birth: Birth) -> str:
    stats = birth.output
    assert stats is not None
    count = stats.nan + stats.inf
    thing = "the batch" if birth.operator == INPUT else _named_leaf(birth.operator)
    at = f", first at {list(stats.first_bad)}" if stats.first_bad else ""
    kind = _KIND[birth.kind]
    return f"{thing} holds {kind} before any operator: {count:,} of {stats.numel:,} elements{at}"


def _named_leaf(label: str) -> str:
    kind, _, name = label.partition(":")
    words = {"param": "parameter", "optimizer": "optimizer state", "extra": "state"}
    return f"{words.get(kind, kind)} {name}"


def _why(birth: Birth) -> str:
    name = birth.operator.rpartition(".")[2].lstrip("_").removeprefix("foreach_")
    if birth.number is not None:
        return f"it was handed the number {birth.number:g} ({_sizes(birth.inputs)})"
    found = (reason(name, birth) for reason in _REASONS)
    return next((text for text in found if text), _sizes(birth.inputs))


def _no_row(name: str, birth: Birth) -> str:
    if "softmax" not in name or birth.kind != "nan" or "backward" in name:
        return ""
    masked = sum(s.inf for s in birth.inputs[:1])
    return f"a whole row of its input is -Inf ({masked:,} masked elements)" if masked else ""


def _of_too_few(name: str, birth: Birth) -> str:
    if name in _SPREADS and birth.inputs and birth.kind == "nan":
        return (
            f"an unbiased spread over a single element (input of shape {_shape(birth.inputs[0])})"
        )
    if name == "nll_loss_forward" and birth.kind == "nan":
        return "the mean over no element at all: every target is ignored"
    if name == "mean" and birth.kind == "nan":
        return "the mean over no element at all"
    return ""


def _of_zero(name: str, birth: Birth) -> str:
    if name not in _DIVISIONS or not birth.inputs or (name == "pow" and not _divides(birth)):
        return ""
    if name in ("div", "true_divide") and 0.0 in birth.numbers:
        return f"a division by the number 0 ({_sizes(birth.inputs)})"
    by_log = name in _LOGS
    divisor = birth.inputs[0] if by_log or len(birth.inputs) == 1 else birth.inputs[-1]
    if divisor.absmin > 0 or not divisor.numel or divisor.nan + divisor.inf == divisor.numel:
        return ""
    if by_log:
        return f"its input holds exact zeros ({divisor.dtype}, {_shape(divisor)})"
    kind = "0/0" if birth.kind == "nan" else "a division by 0"
    return f"{kind}: the divisor holds exact zeros ({_sizes(birth.inputs)})"


def _divides(birth: Birth) -> bool:
    """Is it a power with a negative exponent?"""
    if birth.numbers:
        return birth.numbers[-1] < 0
    return len(birth.inputs) > 1 and birth.inputs[-1].low < 0


def _of_negative(name: str, birth: Birth) -> str:
    if name == "pow" and birth.kind == "nan" and birth.inputs and birth.inputs[0].low < 0:
        return f"a power of a negative number: its input goes down to {birth.inputs[0].low:.3g}"
    if birth.kind != "nan" or name not in _OF_POSITIVE or not birth.inputs:
        return ""
    low = birth.inputs[0].low
    return f"of a negative number: its input goes down to {low:.3g}" if low < 0 else ""


def _unaligned(name: str, birth: Birth) -> str:
    if name != "ctc_loss" or birth.kind != "inf" or not all(s.finite for s in birth.inputs):
        return ""
    return "a target has no alignment: it is longer than its input"


def _too_large(name: str, birth: Birth) -> str:
    if birth.kind != "inf" or birth.output is None or not all(s.finite for s in birth.inputs):
        return ""
    del name
    return f"{_sizes(birth.inputs)}; {birth.output.dtype} ends at {_limit(birth.output)}"


def _inf_minus_inf(name: str, birth: Birth) -> str:
    infinite = sum(s.inf for s in birth.inputs)
    if birth.kind != "nan" or not infinite:
        return ""
    del name
    return f"{infinite:,} infinite inputs met 0 or another infinity ({_sizes(birth.inputs)})"


def _both_signs(name: str, birth: Birth) -> str:
    if birth.kind != "nan" or name not in _SUMS or not all(s.finite for s in birth.inputs):
        return ""
    return f"its products overflow with both signs, and Inf - Inf is NaN ({_sizes(birth.inputs)})"


def _without_variance(name: str, birth: Birth) -> str:
    first = birth.inputs[0] if birth.inputs else None
    if (
        birth.kind != "nan"
        or not name.endswith("_norm")
        or first is None
        or first.low != first.high
    ):
        return ""
    return f"0/0: its input does not vary, and no eps helps ({_sizes(birth.inputs)})"


def _in_a_kernel(name: str, birth: Birth) -> str:
    if "scaled_dot_product" not in name or not all(s.finite for s in birth.inputs):
        return ""
    return f"its scores overflow inside the fused kernel ({_sizes(birth.inputs)})"


_REASONS: tuple[Callable[[str, Birth], str], ...] = (
    *(
        _no_row,
        _of_too_few,
        _unaligned,
        _of_zero,
        _of_negative,
        _too_large,
        _inf_minus_inf,
        _both_signs,
    ),
    *(_without_variance, _in_a_kernel),
)


def _sizes(inputs: tuple[TensorStats, ...]) -> str:
    shown = [f"{_size(s)}" for s in inputs[:4]]
    if not shown:
        return "no floating input"
    word = "input" if len(shown) == 1 else "inputs"
    return f"{word} abs-max {' and '.join(shown) if len(shown) < 3 else ', '.join(shown)}"


def _size(stats: TensorStats) -> str:
    return f"{stats.absmax:,.4g}"


def _limit(stats: TensorStats) -> str:
    limit = torch.finfo(getattr(torch, stats.dtype)).max
    return f"{limit:,.0f}" if limit < 1e6 else f"{limit:.3g}"


def _shape(stats: TensorStats) -> str:
    return str(list(stats.shape))


def is_overflow(birth: Birth) -> bool:
    """Did the values outgrow their dtype, rather than being divided by 0 or the like?"""
    name = birth.operator.rpartition(".")[2].lstrip("_").removeprefix("foreach_")
    if birth.kind != "inf" or birth.leaf or not all(s.finite for s in birth.inputs):
        return False
    return not _of_zero(name, birth) and any(math.isfinite(s.absmax) for s in birth.inputs)
