"""The gradients of one step, measured in one go or optimizer by optimizer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.optim import Optimizer

from forensics.record.clipping import GradNorms
from forensics.record.tensor_norms import combine

Named = list[tuple[str, Tensor]]


def of_members(
    parameters: Named, optimizers: Sequence[Optimizer], chosen: Sequence[Optimizer]
) -> Named:
    """Those of the parameters that the chosen optimizers hold; all where all are chosen."""
    if len(chosen) == len(optimizers):
        return parameters
    held = {id(p) for o in chosen for group in o.param_groups for p in group["params"]}
    return [(name, p) for name, p in parameters if id(p) in held]


def merged(earlier: GradNorms | None, later: GradNorms, members: Named) -> GradNorms:
    """Both as one: what was measured again, or has no gradient any more, counts as of later.

    Args:
        earlier: what has been measured in this step so far.
        later: the measurement now.
        members: the parameters that it was of, with or without a gradient.
    """
    if earlier is None:
        return later
    measured = {name for name, _ in members}
    kept = [i for i, name in enumerate(earlier.names) if name not in measured]
    if not kept:
        return later
    names = (*(earlier.names[i] for i in kept), *later.names)
    l2 = (*(earlier.l2[i] for i in kept), *later.l2)
    own = None
    if earlier.own is not None and later.own is not None:
        own = (*(earlier.own[i] for i in kept), *later.own)
    bad = {name: n for name, n in earlier.nonfinite.items() if name not in measured}
    return GradNorms(
        names=names,
        grads=(*(earlier.grads[i] for i in kept), *later.grads),
        l2=l2,
        nonfinite={**bad, **later.nonfinite},
        total=combine(l2),
        overflowed=earlier.overflowed or later.overflowed,
        alongside=later.alongside,
        own=own,
    )
