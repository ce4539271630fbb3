"""What usually cures a fault of a kind: advice by operator, never claimed as proven."""

from __future__ import annotations

import re

from forensics.diagnose.bisection_result import FaultKind, Origin

_LOG = "keep 0 out of the log: clamp its input, or use log_softmax or a loss that takes logits"
_ROOT = "add an epsilon inside the square root: its slope at 0 is infinite, below 0 it is NaN"
_NORM = "add an epsilon inside the norm: its slope at 0 is undefined"
_SPREAD = "use correction=0, or leave out groups of one: the spread of one value is undefined"
_DIVISOR = "add an epsilon to the divisor, or mask the samples in which it is 0"
_ARC = "clamp its input to within ±(1 - 1e-6)"
_LABELS = "skip batches whose labels are all ignored, or divide by max(count, 1)"
_BATCH_NORM = "reject outliers before the network, and reset the running statistics"
_EPS = "give the optimizer an eps above 0: where a gradient is 0, its step is 0/0 without one"
_HALF_EPS = (
    "raise the optimizer's eps to what the dtype can hold (1e-8 is 0 in fp16), or keep fp32 weights"
)
_MOMENTS = "clip the gradients before the optimizer: their square overflows the second moment"
_OUTLIERS = "keep such outliers out of the batch: their gradient is too large for a clip, too"
_TAKEN = "ask the loss scale, not the optimizer's hooks, whether a step was taken"
_EXPONENT = "clamp the exponent before exp"
_INVERSE_ROOT = "add an epsilon inside the root: of 0 it is infinite"
_HALF_INVERSE_ROOT = (
    "add an epsilon that the dtype can hold (1e-12 is 0 in fp16), or compute it in fp32"
)
_MASK = (
    "keep masked elements out of the loss (no label smoothing over them, no masked label), or fill "
    "with a large negative number instead of -inf"
)
_CLASSES = "hold the labels against the number of classes: mend the data, or widen the head"
_FACTOR = (
    "add a small multiple of the identity before the factorisation: the matrix is not positive "
    "definite"
)
_SINGULAR = "add a small multiple of the identity to the matrix, or use lstsq: it is singular"
_EDITED = "edit no value that backward needs: h = h + 1 or h.clone() instead of h += 1"
_SECOND_TIME = (
    "detach what one step hands to the next (h = h.detach()), or build the graph anew before each "
    "backward()"
)
_RAN_OUT = (
    "give the schedule as many steps as the run takes (a saved schedule brings its old total "
    "along: set it after loading)"
)
_NEGATIVE = "keep the schedule at or above 0: clamp it, or give it as many steps as the run takes"

_LABEL = re.compile(r"Target (-?\d+) is out of bounds")

_BY_OPERATOR: dict[str, str] = {
    "log": _LOG,
    "log2": _LOG,
    "log10": _LOG,
    "log1p": "keep its input above -1: clamp it",
    "exp": _EXPONENT,
    "expm1": _EXPONENT,
    "sqrt": _ROOT,
    "rsqrt": _INVERSE_ROOT,
    "reciprocal": _DIVISOR,
    "div": _DIVISOR,
    "pow": "keep the base away from 0, or add an epsilon to it",
    "norm": _NORM,
    "linalg_vector_norm": _NORM,
    "std": _SPREAD,
    "var": _SPREAD,
    "var_mean": _SPREAD,
    "mean": "leave empty groups out: the mean of nothing is NaN",
    "acos": _ARC,
    "asin": _ARC,
    "atanh": _ARC,
    "logit": "clamp its input to within 1e-6 and 1 - 1e-6, or keep the logits",
    "native_layer_norm": "give the norm an epsilon: a row of equal values has no spread",
    "_weight_norm_interface": "initialise the weights away from 0: a direction of length 0 is none",
    "masked_fill": "fill with torch.finfo(dtype).min instead of a constant",
    "embedding": "hold the indices against the number of embeddings when the data are loaded",
    "_softmax": "leave a key unmasked in every row, or set fully masked rows to 0 afterwards",
    "_log_softmax": "leave at least one entry unmasked in every row",
    "nll_loss_forward": _LABELS,
    "nll_loss2d_forward": _LABELS,
    "ctc_loss": "pass zero_infinity=True, or drop samples whose target is longer than their input",
    "mse_loss": "check the targets' range, or use a loss that grows linearly (Huber)",
    "native_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "cudnn_batch_norm": _BATCH_NORM,
    "addcdiv": _EPS,
    "_foreach_addcdiv": _EPS,
    "addcmul": _MOMENTS,
    "_foreach_addcmul": _MOMENTS,
    "_foreach_norm": "drop the batch behind it, or combine the norm in float64",
    "input": "look for NaN and Inf when the data are loaded, and drop or repair those samples",
    "F.batch_norm": "drop last batches of one sample (drop_last=True)",
    "GradScaler.unscale_": "call scaler.update() on every path, also where a step is skipped",
    "outside": "test this machine's memory and its ECC counters: nothing in the step does it",
}
_BY_APPLIED: dict[str, str] = {
    "clip": "call scaler.unscale_(optimizer) before the clip",
    "optimizer": "call scaler.step(optimizer) where optimizer.step() is called",
    "optimizer rounding": "keep fp32 weights: the updates are below half an ulp of these",
    "lr_scheduler.step": "step the scheduler only where the optimizer stepped",
    "learning rate": _NEGATIVE,
    "zero_grad": "call optimizer.zero_grad() in every step, before the first backward()",
    "gradients / loss scale": "divide by the loss scale once: scaler.unscale_() does it already",
    "resume": "save and load the optimizer's state (and the scaler's) with the model's",
    "optimizer.param_groups": "make the optimizer after the model is whole, or add what it lacks "
    "with add_param_group(); what is not to learn gets requires_grad_(False)",
    "optimizer.step": "call optimizer.step() once for each backward()",
    "GradScaler.update": "call scaler.update() once for each scaler.step()",
    "optimizer.maximize": "make the optimizer without maximize=True, or negate the loss",
    "recompute": "let activation checkpointing keep the RNG state (preserve_rng_state=True)",
    "_fused_adamw": _TAKEN,
    "_fused_adam": _TAKEN,
}
_HALF: dict[str, str] = {_INVERSE_ROOT: _HALF_INVERSE_ROOT, _EPS: _HALF_EPS}
"""What to say instead where the values are in half precision."""
_BY_SUMMARY: dict[str, str] = {
    "the clip came after the step": "call clip_grad_norm_ before optimizer.step()",
    "the loop emptied it": "find what empties the optimizer's state between this step and the last",
    "times in one step": "call the scheduler's step() once a step",
    "the old and the new in shares": "let the shares sum to 1: decay * old + (1 - decay) * new",
    "says the reverse": "turn the shares round: decay * old + (1 - decay) * new",
    "were divided by it, never scaled": "call backward() on scaler.scale(loss)",
}
"""Faults of what was applied that share an operator are told apart by what was said of them."""
_BY_ERROR: dict[str, str] = {
    "nll_loss": _CLASSES,
    "cross_entropy": _CLASSES,
    "cholesky": _FACTOR,
    "linalg.inv": _SINGULAR,
    "linalg.solve": _SINGULAR,
}
"""By a part of the operator that raised."""
_BY_CALL: dict[str, str] = {
    "F.batch_norm": _BY_OPERATOR["F.batch_norm"],
    "GradScaler.unscale_": _BY_OPERATOR["GradScaler.unscale_"],
    "embedding": _BY_OPERATOR["embedding"],
    "outside": _BY_OPERATOR["outside"],
}
"""What raised, by its whole name."""
_BY_NODE: dict[str, str] = {
    "Sqrt": _ROOT,
    "Rsqrt": _BY_OPERATOR["rsqrt"],
    "Log": _LOG,
    "Log2": _LOG,
    "Norm": _NORM,
    "LinalgVectorNorm": _NORM,
    "Pow": _BY_OPERATOR["pow"],
    "Div": _DIVISOR,
    "Exp": _EXPONENT,
    "Acos": _ARC,
    "Asin": _ARC,
    "LinalgSvd": "equal singular values have no slope: keep U and V out of the loss, or perturb",
    "LinalgEigh": "equal eigenvalues have no slope: add a small, different number to each diagonal",
    "Std": _SPREAD,
    "Var": _SPREAD,
}
_PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "addmv", "baddbmm", "matmul", "linear", "convolution", "mul"}
    | {"_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"}
)
_POWERS = ("pow", "square")
_DETACHED_EDIT = "do not edit a saved activation through .data or under no_grad: clone it first"
_UNDERFLOW = "use a GradScaler, or bf16: fp16 gradients below 6e-8 become 0"
_MOVED = {"param": "initialise it", "buffer": "reset it", "optimizer": "reset it"}


def advice_for(origin: Origin, *, clip_fails: bool = False) -> str:
    """One clause of advice, or the empty text where the operator tells nothing.

    Args:
        origin: of the fault.
        clip_fails: a clip was tried, and did not help.
    """
    advice = _advice(origin)
    if origin.output is not None and origin.output.dtype in ("float16", "bfloat16"):
        advice = _HALF.get(advice, advice)
    return _OUTLIERS if clip_fails and advice is _MOMENTS else advice


def _advice(origin: Origin) -> str:
    operator = origin.operator.removeprefix("aten.")
    node = origin.autograd_node.partition("Backward")[0]
    if origin.kind is FaultKind.APPLIED:
        return _applied(operator, origin)
    if origin.kind is FaultKind.EXCEPTION:
        return _raised(operator, origin)
    if "put there on purpose" in origin.summary:
        return _MASK
    place, colon, name = operator.partition(":")
    if colon and place in _MOVED:
        return f"{_MOVED[place]}: {name} is bad before the step begins"
    if origin.phase == "scheduler" or any(link.phase == "scheduler" for link in origin.chain):
        return "mend the schedule's formula: it gives a rate that is no number"
    if operator in _POWERS:
        return _power(origin)
    if origin.phase == "backward" and node in _BY_NODE:
        return _BY_NODE[node]
    if is_product(origin):
        return _product(origin)
    known = operator if operator in _BY_OPERATOR else operator.lstrip("_")
    advice = _BY_OPERATOR.get(known, _BY_APPLIED.get(operator, ""))
    return advice or _of_sizes(origin)


def _of_sizes(origin: Origin) -> str:
    """What helps where the operator itself tells nothing: what went into it is at fault."""
    if "handed the number" in origin.summary:
        return f"find what makes the number that {origin.operator} is handed"
    if origin.kind is not FaultKind.INF or not origin.operator.startswith("aten."):
        return ""
    smaller = f"make what goes into {origin.operator} smaller: clamp or normalise it"
    if _overflows_half(origin):
        return f"run {origin.operator} in fp32 or bf16, or {smaller}"
    return smaller


def _raised(operator: str, origin: Origin) -> str:
    """What helps against an exception: mostly its own words do."""
    if "modified by an inplace operation" in origin.summary:
        return _EDITED
    if "through the graph a second time" in origin.summary:
        return _SECOND_TIME
    label = _LABEL.search(origin.summary)
    if label and origin.inputs and origin.inputs[0].shape:
        count = origin.inputs[0].shape[min(1, len(origin.inputs[0].shape) - 1)]
        return (
            f"label {label[1]} is none of the {count:,} classes, 0 to {count - 1:,}: mend the "
            "data, or widen the head"
        )
    if origin.phase == "scheduler":
        return _RAN_OUT if "total" in origin.summary else "mend the schedule: its step() raises"
    return next(
        (text for part, text in _BY_ERROR.items() if part in operator), _BY_CALL.get(operator, "")
    )


def _applied(operator: str, origin: Origin) -> str:
    told = (text for words, text in _BY_SUMMARY.items() if words in origin.summary)
    special = next(told, "")
    if special:
        return special
    if operator.rstrip("_") in _BY_APPLIED:
        return _BY_APPLIED[operator.rstrip("_")]
    if operator in _PRODUCTS:
        return _UNDERFLOW
    return _DETACHED_EDIT if "Backward" in operator + origin.autograd_node else ""


def is_product(origin: Origin) -> bool:
    """Is it a matrix product or a multiplication, which overflows on large inputs alone?"""
    return origin.operator.removeprefix("aten.") in _PRODUCTS


def is_lost_to_rounding(origin: Origin) -> bool:
    """Did gradients underflow, or updates round away, with nothing non-finite?"""
    applied = origin.kind is FaultKind.APPLIED
    return applied and (is_product(origin) or origin.operator == "optimizer rounding")


def _power(origin: Origin) -> str:
    """A power overflows on a large base, and is undefined at and below 0."""
    base = origin.inputs[0].absmax if origin.inputs else 0.0
    if origin.kind is FaultKind.INF and base > 1:
        return f"normalise what goes into {origin.operator}, or compute it in {_wider(origin)}"
    if origin.kind is FaultKind.NAN and base > 0:
        return f"keep the base of {origin.operator} above 0: clamp it"
    return f"keep the base of {origin.operator} away from 0, or add an epsilon to it"


def _overflows_half(origin: Origin) -> bool:
    half = origin.output is not None and origin.output.dtype == "float16"
    return half and origin.kind is FaultKind.INF


def _wider(origin: Origin) -> str:
    half = origin.output is not None and origin.output.dtype == "float16"
    return "fp32" if half else "a logarithmic form"


def _product(origin: Origin) -> str:
    dtype = origin.output.dtype if origin.output else ""
    if dtype != "float16":
        return f"look at what makes the inputs of {origin.operator} so large: they are at fault"
    if origin.phase == "backward":
        return "call backward() outside autocast, and lower what it multiplies"
    return f"run {origin.operator} in fp32 or bf16, or normalise what goes into it"
