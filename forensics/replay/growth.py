"""The root of a growth: what grew until something overflowed, since when, and how fast.

A rate that is too high blows loss and gradients up by a factor a step; a learned scale or the
queries and keys of an attention grow while both look well. The first shows in the step log, the
second in the norms of the parameters. In both cases the step that overflows is the last one of the
story, and the operator that overflows is where it ends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Growth, Origin
from forensics.runlog.run import Run
from forensics.runlog.steps import BoolArray, FloatArray, IntArray, StepTable

Norms = Mapping[int, Mapping[str, float]]
"""L2 norm of every parameter, by step (before it) and name."""

LEAST_ROWS = 5
"""Finite values that a rise must go through."""
FEWEST_ROWS = 4
"""The same where each of them rises, by ``NORM_ALONE`` decades in all: a rate far too high."""
RISE = 2.0
"""Decades that the loss or the gradient norm must rise: a hundredfold is no noise and no spike."""
LOSS_RISE = 3.0
"""Times its value at the root that the loss must reach; a warm-up lifts norms, but not the loss."""
NORM_ALONE = 4.0
"""Decades that a gradient norm must rise where the loss does not."""
STEADY = 0.7
"""Share of the steps of a rise, in blocks, that go up."""
LEAP = 0.75
"""Share of a rise, in decades, that one step may make: more is a spike, and one batch's doing."""
_LATEST = 4
"""Values from the end within which the highest must be: what has come down again did not end it."""
_QUIET = 0.11
"""Decades (a factor of 1.3) within which a series still is at its lowest level."""
_BLOCKS = 200
"""Blocks that a long series is seen in."""
PARAMETER_RISE = 4.0
"""Times its earliest norm that a parameter must have grown: training moves a weight's by 2 to 3."""
OUTSIDE_RISE = 1e4
"""The same for a buffer that no one points at: running statistics may start far from their data."""
TWO_POINTS = 8.0
"""The same where only two states are known, so that nothing shows the rise to be steady."""
_STILL = 0.15
"""Share of a parameter's rise that must fall into the last half of its history."""
_HUGE = 1e15
"""Largest magnitude of an input from which on a sum of products may overflow in fp32."""
RISEN = "had risen"
"""How the cause of a growth says that the learning rate was raised: then the rate is its root."""
_ENDS = (FaultKind.NAN, FaultKind.INF, FaultKind.NORM_OVERFLOW)


def growth_of(
    run: Run, step: int, origin: Origin | None, norms: Norms | None = None
) -> Growth | None:
    """What grew until a bad step; None where nothing did.

    Args:
        run: its log, and its snapshots where it has any.
        step: the first bad step.
        origin: where that step went bad; None where that is not known.
        norms: norms of the parameters at further steps, such as of saved states.
    """
    if origin is not None and not _may_end_a_growth(origin):
        return None
    found = log_growth(run.steps, step)
    if found is not None or origin is None or not _is_outgrown(origin):
        return found and replace(found, cause=_rate_clause(run.steps, found.since_step))
    known = _all_norms(run, step, norms or {})
    found, name = parameter_growth(known, origin.parameter, step), origin.parameter
    if found is None and not origin.parameter:
        found, name = _buffer_growth(run, known, origin.module, step)
    if found is None:
        return None
    cause = _NOT_TRAINED if _is_outside(run, name) else _rate_clause(run.steps, found.since_step)
    return replace(found, cause=cause)


def as_growth(origin: Origin, growth: Growth) -> Origin:
    """The origin as the end of a growth: the operator stays the one that overflowed."""
    if origin.kind is FaultKind.GROWTH:
        return origin
    link = ChainLink(phase="outside", what="growth", name=growth.signal)
    phase, module = origin.phase, origin.module
    if origin.kind is FaultKind.NORM_OVERFLOW and RISEN not in growth.cause:
        # The norm is only where it shows first: activations and gradients of that layer grew.
        phase, module = "forward", module or origin.parameter.rpartition(".")[0]
    return replace(
        origin,
        kind=FaultKind.GROWTH,
        phase=phase,
        module=module,
        chain=(link, *origin.chain),
        summary=f"{origin.summary[:-1]}; {describe(growth)}.",
    )


def may_have_grown(origin: Origin) -> bool:
    """Is it worth asking the norms of saved states whether a tensor was outgrown?"""
    return _may_end_a_growth(origin) and _is_outgrown(origin)


def describe(growth: Growth) -> str:
    """``loss grew from 0.94 at step 0 to 3e+34 at 57, by 4.1 times a step``."""
    steps = growth.until_step - growth.since_step
    rate = f", by {growth.rate:.3g} times a step" if steps > 0 and growth.rate < 1e6 else ""
    return (
        f"{growth.signal} grew from {growth.first_value:.3g} at step {growth.since_step:,} to "
        f"{growth.last_value:.3g} at {growth.until_step:,}{rate}"
    )


def log_growth(table: StepTable, step: int) -> Growth | None:
    """A steady rise of the gradient norm or the loss that a bad step ends.

    Args:
        table: the step log.
        step: the bad step; its own values count where they are finite.
    """
    for name in ("grad_l2_pre_clip", "loss"):
        found = _rise(*_series(table, name, step), name)
        if found is not None and _is_harm(table, found):
            return found
    return None


def parameter_growth(norms: Norms, parameter: str, step: int) -> Growth | None:
    """The steady rise of one parameter's norm until a bad step.

    Args:
        norms: at the steps where they are known.
        parameter: nearest the origin; empty gives None.
        step: the bad step.
    """
    known = [(s, norms[s][parameter]) for s in sorted(norms) if s <= step and parameter in norms[s]]
    known = [(s, value) for s, value in known if math.isfinite(value) and value > 0]
    if len(known) < 2 or not parameter:
        return None
    steps = np.array([s for s, _ in known], dtype=np.int64)
    values = np.array([value for _, value in known])
    least = TWO_POINTS if len(known) == 2 else PARAMETER_RISE
    lowest = int(np.argmin(values[:-1]))
    total = values[-1] - values[lowest]
    if values[-1] < least * values[lowest] or values[-1] < values.max() - 0.05 * total:
        return None
    middle = values[lowest + (len(values) - lowest) // 2] if len(known) > 2 else values[lowest]
    if values[-1] - middle < _STILL * total:
        return None
    root = _root(np.log10(values), lowest, 0.0)
    return _growth(f"param_l2 of {parameter}", steps, values, root, len(values) - 1)


_NOT_TRAINED = "no optimizer holds it: the loop, or the module itself, made it grow"


def _buffer_growth(run: Run, norms: Norms, module: str, step: int) -> tuple[Growth | None, str]:
    """The steepest rise of a module's own tensors that no optimizer holds, and whose it is."""
    names = {name for at in norms.values() for name in at}
    own = sorted(n for n in names if n.rpartition(".")[0] == module and _is_outside(run, n))
    found = ((parameter_growth(norms, name, step), name) for name in own)
    risen = [
        (growth, name)
        for growth, name in found
        if growth is not None and growth.last_value >= OUTSIDE_RISE * growth.first_value
    ]
    return max(risen, key=lambda pair: pair[0].rate, default=(None, ""))


def _is_outside(run: Run, name: str) -> bool:
    """Is it a tensor that no optimizer moves, as far as the manifest tells?"""
    if run.manifest is None or not run.manifest.parameters:
        return False
    return all(p.group < 0 for p in run.manifest.parameters if p.name == name or name in p.tied)


def _may_end_a_growth(origin: Origin) -> bool:
    """Bad data, a bad leaf, a reset scale and faults of what was applied have another cause."""
    leaf = origin.operator == "input" or ":" in origin.operator
    reset = any(link.what == "loss scale" for link in origin.chain)
    return origin.kind in _ENDS and not leaf and not reset and origin.phase != "optimizer"


def _is_outgrown(origin: Origin) -> bool:
    """Is it a forward operator that a parameter can have outgrown? Backward overflows by scale."""
    if origin.phase not in ("forward", "loss"):
        return False
    if origin.kind is FaultKind.NAN:  # products that overflow with both signs
        finite = all(not (tensor.nan or tensor.inf) for tensor in origin.inputs)
        return finite and any(tensor.absmax >= _HUGE for tensor in origin.inputs)
    return origin.kind is FaultKind.INF


def _series(table: StepTable, name: str, step: int) -> tuple[IntArray, FloatArray]:
    """Steps and decimal logarithms of a column's positive finite values up to a step."""
    if name not in table:
        return np.empty(0, dtype=np.int64), np.empty(0)
    values = np.asarray(table[name], dtype=np.float64)
    kept: BoolArray = (table.step <= step) & np.isfinite(values) & (values > 0)
    return table.step[kept], np.log10(values[kept])


def _rise(steps: IntArray, values: FloatArray, signal: str) -> Growth | None:
    """The rise that a series ends with, if it ends with one."""
    if len(values) < FEWEST_ROWS:
        return None
    size = max(1, len(values) // _BLOCKS)
    blocks = _blocks(values, size)
    lowest = int(np.argmin(blocks[:-1])) if len(blocks) > 1 else 0
    top = int(np.argmax(values))
    if values[top] - blocks[lowest] < RISE or len(values) - top > max(_LATEST, 2 * size):
        return None
    quiet = np.diff(blocks[: lowest + 1])
    noise = 1.4826 * float(np.median(np.abs(quiet))) if len(quiet) > 4 else 0.0
    root = _root(blocks, lowest, 3 * noise)
    path = blocks[root:]
    if not _is_long_enough(path) or float(np.mean(np.diff(path) > 0)) < STEADY:
        return None
    if float(np.diff(path).max()) > LEAP * (float(path.max()) - float(path[0])):
        return None
    if size > 1:  # within its block, the last value that is still as low
        near = values[: min((root + 2) * size, top)]
        low = np.flatnonzero(near <= blocks[lowest] + max(_QUIET, 3 * noise))
        return _growth(signal, steps, 10.0**values, int(low[-1]), top)
    return _growth(signal, steps, 10.0**values, root, top)


def _is_long_enough(path: FloatArray) -> bool:
    """Does a rise go through enough values, or through fewer that are beyond doubt?"""
    if len(path) >= LEAST_ROWS:
        return True
    steep = len(path) >= FEWEST_ROWS and float(path[-1] - path[0]) >= NORM_ALONE
    return steep and bool(np.all(np.diff(path) > 0))


def _root(values: FloatArray, lowest: int, noise: float) -> int:
    """The last value at the lowest level; the first one of all where it is within the first few."""
    quiet = values[lowest] + max(_QUIET, noise)
    root = int(np.flatnonzero(values <= quiet)[-1])
    return 0 if root <= 2 and values[root] - values[0] <= RISE / 2 else root


def _growth(signal: str, steps: IntArray, values: FloatArray, root: int, top: int) -> Growth:
    first, last = float(values[root]), float(values[top])
    span = int(steps[top] - steps[root])
    since = int(steps[root])
    return Growth(
        signal=signal,
        since_step=since,
        until_step=int(steps[top]),
        rate=(last / first) ** (1 / span) if span and first > 0 else math.nan,
        first_value=first,
        last_value=last,
    )


def _blocks(values: FloatArray, size: int) -> FloatArray:
    """Medians of blocks of ``size`` values; the last block may be shorter."""
    if size == 1:
        return values
    return np.array([np.median(values[i : i + size]) for i in range(0, len(values), size)])


def _is_harm(table: StepTable, growth: Growth) -> bool:
    """Did the loss rise with it, or did the norm rise beyond anything that training does?"""
    if math.log10(growth.last_value / growth.first_value) >= NORM_ALONE:
        return True
    steps, values = _series(table, "loss", growth.until_step)
    before = values[steps <= growth.since_step]
    after = values[steps > growth.since_step]
    if not len(before) or not len(after):
        return False
    return bool(after[-_LATEST:].max() - before[-1] >= math.log10(LOSS_RISE))


def _all_norms(run: Run, step: int, further: Norms) -> Norms:
    """The norms of the snapshots, and further ones, up to a step."""
    found: dict[int, dict[str, float]] = {}
    if run.params is not None:
        matrix = run.params.matrix("value_l2")
        for i in np.flatnonzero(matrix.steps <= step):
            row = zip(matrix.names, matrix.values[i], matrix.present[i], strict=True)
            found[int(matrix.steps[i])] = {n: float(v) for n, v, there in row if there}
    for at, norms in further.items():
        found.setdefault(at, {}).update(norms)
    return found


def _rate_clause(table: StepTable, since: int) -> str:
    """The learning rate where the growth began, and whether it had just been raised."""
    if "lr" not in table:
        return ""
    at = int(np.searchsorted(table.step, since))
    rates = np.asarray(table["lr"], dtype=np.float64)
    if at >= len(rates) or not math.isfinite(rates[at]):
        return ""
    now, before = float(rates[at]), rates[max(0, at - 20) : at]
    before = before[np.isfinite(before) & (before > 0)]
    if len(before) and now >= 1.5 * float(before.min()):
        return f"the learning rate {RISEN} from {float(before.min()):.3g} to {now:.3g}"
    return f"the learning rate was {now:.3g}" + (" from the first step on" if not since else "")
