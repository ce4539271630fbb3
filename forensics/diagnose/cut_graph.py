"""Layers that no gradient has reached so far, in too few snapshots to call that a fault."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import matrix_mask, trainable_mask, usable
from forensics.frozen import dataclass
from forensics.runlog.steps import BoolArray

FEW = 3
"""Snapshots from which such layers are a finding (frozen-parameter)."""


@dataclass(frozen=True)
class CutSoFar:
    """The first layers of a network, all without a gradient.

    Attributes:
        last: the weight matrix of them that is nearest the loss.
        more: how many other weight matrices there are.
        steps: steps of the snapshots that show it, one or two.
    """

    last: str
    more: int
    steps: tuple[int, ...]

    @property
    def told(self) -> str:
        """In a sentence, without its full stop."""
        more = f" and {self.more} more" if self.more else ""
        at = " and ".join(f"{step:,}" for step in self.steps)
        which = "the only snapshot" if len(self.steps) == 1 else "both snapshots"
        return (
            f"no gradient reached {self.last}{more} in {which}, at {at}, although one is required"
        )


def cut_so_far(signals: Signals) -> CutSoFar | None:
    """All weight matrices before some point without a gradient, in the one or two snapshots.

    None where there are more snapshots, or where run.json does not say who wants a gradient.
    """
    matrix = signals.param_matrix("grad_l2")
    if matrix is None or not signals.parameter_info:
        return None
    taken = np.flatnonzero((usable(matrix) > 0).any(axis=1))
    if not 0 < len(taken) < FEW:
        return None
    wanted = trainable_mask(matrix.names, signals.parameter_info)
    reached = np.asarray(matrix.present[taken].any(axis=0))
    wanted &= ~at_rest(signals, matrix.names, reached)
    matrices = matrix_mask(matrix.names, signals.parameter_info)
    cut = first_ones(wanted & ~reached, matrices)
    if not cut.any():
        return None
    names = np.asarray(matrix.names)[cut]
    steps = tuple(int(step) for step in matrix.steps[taken])
    return CutSoFar(str(names[-1]), len(names) - 1, steps)


def at_rest(signals: Signals, names: Sequence[str], reached: BoolArray) -> BoolArray:
    """Whose optimizer had no turn in the snapshots, where run.json says that they take turns.

    Args:
        signals: the run.
        names: of the parameters, P of them.
        reached: by a gradient in any snapshot, shape (P,).

    Returns:
        Shape (P,): all parameters of the groups that no gradient reached.
    """
    manifest = signals.run.manifest
    if manifest is None or not manifest.loop.get("in_turn_steps", 0):
        return np.zeros(len(names), dtype=bool)
    info = signals.parameter_info
    groups = np.array([info[name].group if name in info else -1 for name in names])
    return ~np.isin(groups, groups[reached])


def first_ones(frozen: BoolArray, matrices: BoolArray) -> BoolArray:
    """The frozen weight matrices, if they are two or more and all of the first ones.

    One branch without gradient is unused; everything before some point is a cut graph.
    """
    cut = frozen & matrices
    last = int(np.flatnonzero(cut)[-1]) if cut.any() else 0
    whole = bool((frozen | ~matrices)[: last + 1].all())
    return cut if whole and cut.sum() >= 2 else np.zeros_like(cut)
