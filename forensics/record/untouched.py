"""Whether the loop's clip has left the gradients as they were, told without measuring all again.

Most steps of a sound training stay below the threshold, and their clip multiplies by 1. The norm
after it then is the one before, to the bit, and reading all gradients once more to learn that is a
good part of what recording costs. It is spared where all of this holds:

- The norm before is at most the threshold, so that the clip has nothing to do. What a wrong clip
  does (too high, of a part only, none at all) shows above it, and there every step is measured.
- The gradients are the very tensors, and all were written equally often, once or never. Who scales
  or clears only some of them writes those once more than the others.
- One of them, another in every step, is measured and has the norm it had. A clip at a lower
  threshold changes them all, also in ways that are not counted as writing (``grad.data``).

What could still hide for a while is a change of single gradients. So the first steps and then one
in so many are measured all the same, and where one tells otherwise every later step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from forensics.record.clipping import GradNorms
from forensics.record.loop_entries import Entry
from forensics.record.readback import read_each
from forensics.record.tensor_norms import l2_norms, wide_and_alike

FIRST = 10
"""Steps of a recording that are all measured."""
EVERY = 32
"""Of the later ones, one in so many is."""


class _Before(NamedTuple):
    """The gradients before the clip: their norms, and how often each has been written."""

    norms: GradNorms
    ids: list[int]
    writes: list[int]


class Untouched:
    """Compares the gradients at the optimizer's entry with those that were measured before.

    Args:
        max_norm: the threshold of the loop's clip; None compares nothing.
        first_step: index of the next step.
    """

    def __init__(self, max_norm: float | None, first_step: int = 0) -> None:
        self._max_norm, self._in_full_until = max_norm, first_step + FIRST
        self._before: _Before | None = None
        self._told: list[float] | None = None

    def begin(self, norms: GradNorms) -> None:
        """The gradients of a step, before its clip; they are held until ``end``."""
        self._before, grads = None, norms.grads
        if self._max_norm is None or not norms.total <= self._max_norm or norms.own is not None:
            return
        self._before = _Before(norms, [*map(id, grads)], [grad._version for grad in grads])

    def norms_of(self, grads: Sequence[Tensor], step: int) -> list[float] | None:
        """The L2 norm of each of the optimizer's gradients, where they are as they were; else None.

        To the bit what measuring them would give. Nothing is told of others than float32 and
        float64 ones on a CPU: elsewhere a look at one would make the host wait.
        """
        if self._before is None:
            return None
        norms, ids, writes = self._before
        written = {grad._version - w for grad, w in zip(norms.grads, writes, strict=True)}
        now = [*map(id, grads)]
        if written not in ({0}, {1}) or (now != ids and {*now} != {*ids}):
            return None
        at = step % len(ids)
        some = [norms.grads[at]]
        if not wide_and_alike(some) or read_each(l2_norms(some)) != [norms.l2[at]]:
            return None
        if now == ids:
            self._told = [*norms.l2]
        else:  # groups have another order than the model
            l2 = dict(zip(ids, norms.l2, strict=True))
            self._told = [l2[one] for one in now]
        return self._told

    def in_full(self, step: int) -> bool:
        """Is this step measured all the same?"""
        return step < self._in_full_until or step % EVERY == 0

    def end(self, entries: Sequence[Entry]) -> None:
        """The step has ended, and these are its calls of the optimizer, as read.

        Where one was measured and is not what was told, nothing is told any more.
        """
        if self._told is not None and any(e.grad_l2 and e.l2 != self._told for e in entries):
            self._max_norm = None
        self._before = self._told = None
