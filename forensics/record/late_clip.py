"""A clip that comes after the optimizer has used the gradients: it changes nothing but them.

Whether gradients were written after the step costs nothing to see. What wrote them is measured in a
few steps only: a clip multiplies all of them by one factor, clearing them does not, and neither
does another backward.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

from torch import Tensor

from forensics.record.loop_entries import Entry, gradients_of
from forensics.record.tensor_norms import combine, l2_norms

ALWAYS = 10
"""Suspicious steps that are all measured; after them one in ``THEN_EVERY``."""
THEN_EVERY = 100
_ALIKE = 5e-3
"""Relative; factors of one clip, from norms of gradients in half precision."""
_AT_THRESHOLD = 0.02
"""Relative; norms in bf16 are off by up to 0.8 %."""


class LateClip:
    """Looks whether gradients were clipped after the step.

    Args:
        max_norm: the threshold; None measures nothing.
    """

    def __init__(self, max_norm: float | None) -> None:
        self._max_norm = max_norm
        self._suspicious = 0
        self._suspected = self._habit = False

    def norms(self, entries: Sequence[Entry]) -> list[Tensor]:
        """The norms to read for ``judge``; none where there is no suspicion."""
        self._suspected = False
        if self._max_norm is None or len(entries) != 1 or entries[0].closure:
            return []
        entry = entries[0]
        if entry.gradients and not _written(*entry.gradients[0]):
            return []  # as nearly always: the others need not be looked at
        now = gradients_of(entry.optimizer)
        if not now or not (entry.grad_l2 or entry.l2) or len(now) != len(entry.gradients):
            return []
        pairs = list(zip(entry.gradients, now, strict=True))
        written = all(old() is grad and grad._version > version for (old, version), grad in pairs)
        if not written or any(grad.is_sparse for grad in now):  # nor is any a DTensor, then
            return []
        self._suspected = True
        self._suspicious += 1
        if self._suspicious > ALWAYS and self._suspicious % THEN_EVERY:
            return []
        return l2_norms(now)

    def judge(self, before: Sequence[float], after: Sequence[float]) -> bool:
        """Are the norms after the step those at its entry, scaled down to the threshold?

        Args:
            before: a gradient's norm at the optimizer's entry, one each.
            after: the norms now; without them, what was found when last they were measured.
        """
        if after:
            self._habit = self._is_clip(before, after)
        return self._suspected and self._habit

    def _is_clip(self, before: Sequence[float], after: Sequence[float]) -> bool:
        if self._max_norm is None:
            return False
        total = combine(list(after))
        if not abs(total - self._max_norm) <= _AT_THRESHOLD * self._max_norm:
            return False
        factor = total / combine(list(before)) if any(before) else 1.0
        return factor < 1 - _AT_THRESHOLD and all(
            math.isclose(now, was * factor, rel_tol=_ALIKE, abs_tol=1e-12 * total)
            for was, now in zip(before, after, strict=True)
        )


def _written(gradient: weakref.ref[Tensor], version: float) -> bool:
    """Has a gradient been written since its stamp, as far as it is there and counted?"""
    now = gradient()
    return now is not None and now._version > version
