"""Gradients that are lost to rounding: backward operators whose half-precision result is 0.

A result of 0 is no evidence in itself: a ReLU lets nothing through either. So the operator is
computed again in float32, and what is 0 only in half precision has underflowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from forensics.replay.tracing.operator_call import OperatorCall
from forensics.replay.tracing.tensor_stats import TensorStats, float_tensors, stats_of

_PRODUCTS = frozenset(
    {
        *("mm", "bmm", "addmm", "baddbmm", "matmul", "mv", "dot", "linear", "mul", "div"),
        *("convolution_backward", "to_copy", "native_layer_norm_backward"),
        *("scaled_dot_product_flash_attention_for_cpu_backward", "mse_loss_backward"),
    }
)
"""Operators whose result can be too small for the dtype though their inputs are not."""
_HALVES = (torch.float16, torch.bfloat16)
_LOST = 0.9
"""Share of the elements that are not 0 in float32 and are 0 in half precision: nearly all."""


@dataclass(frozen=True, kw_only=True)
class Underflow:
    """One backward operator that lost its result.

    Attributes:
        operator: such as ``aten.mm``.
        autograd_node: that ran it.
        module: whose backward it is.
        source_line: the user's line of its forward.
        inputs: statistics of its floating inputs.
        output: statistics of the result.
        exact: largest magnitude of the same result in float32.
        share: of the elements that are not 0 there, how many were lost.
    """

    operator: str
    autograd_node: str
    module: str
    source_line: str
    inputs: tuple[TensorStats, ...]
    output: TensorStats
    exact: float
    share: float


@torch.no_grad()
def lost_to_rounding(call: OperatorCall, out: Any) -> tuple[Tensor, float, float] | None:
    """Did this call lose nearly all of a half-precision result?

    Args:
        call: of an operator in backward, already run.
        out: what it returned.

    Returns:
        The result, the largest magnitude that it has in float32, and the share that was lost;
        None where it kept enough.
    """
    if call.bare_name not in _PRODUCTS:
        return None
    results = list(float_tensors(out))
    empty = [t for t in results if t.dtype in _HALVES and not bool(t.count_nonzero())]
    if not empty or not all(bool(t.count_nonzero()) for t in float_tensors([call.args])):
        return None
    exact = list(float_tensors(_in_float32(call)))
    if len(exact) != len(results):
        return None
    for got, wanted in zip(results, exact, strict=True):
        there = wanted != 0
        count = int(there.count_nonzero())
        lost = int((there & (got == 0)).count_nonzero())
        if count and lost >= _LOST * count and got.dtype in _HALVES:
            return got, float(wanted.abs().max()), lost / count
    return None


def underflow_of(
    call: OperatorCall, found: tuple[Tensor, float, float], *, node: str, module: str, line: str
) -> Underflow:
    """The same in numbers."""
    got, exact, share = found
    return Underflow(
        operator=call.name,
        autograd_node=node,
        module=module,
        source_line=line,
        inputs=tuple(stats_of(t) for t in float_tensors([call.args])),
        output=stats_of(got),
        exact=exact,
        share=share,
    )


def _in_float32(call: OperatorCall) -> Any:
    if call.bare_name == "to_copy":
        return call.args[0].float()
    args, kwargs = tree_map(_wide, (call.args, call.kwargs))
    return call.func(*args, **kwargs)


def _wide(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value
