"""Reading numbers back: many at once from a device, because each read makes the host wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Read = Callable[[Sequence[Tensor]], list[float]]
"""``read_scalars`` or ``read_each``."""


def read_scalars(scalars: Sequence[Tensor]) -> list[float]:
    """One-element tensors of any device and dtype as floats: one blocking read a device.

    Mixed dtypes are promoted to the widest of them, which keeps every value exact. Integers above
    2^24 beside float32 are not: read counts on their own.
    """
    if not scalars:
        return []
    places: dict[torch.device, list[int]] = {}
    for i, scalar in enumerate(scalars):
        places.setdefault(scalar.device, []).append(i)
    read = [0.0] * len(scalars)
    with torch.no_grad():
        for members in places.values():
            # Norms have shape () already: a view of each of 300 would take longer than the read.
            flat = [s if (s := scalars[i]).dim() == 0 else s.reshape(()) for i in members]
            for i, value in zip(members, torch.stack(flat).tolist(), strict=True):
                read[i] = float(value)
    return read


def read_each(scalars: Sequence[Tensor]) -> list[float]:
    """The same, one by one: on a CPU nothing waits, and to join them costs more than to read."""
    return [float(scalar.item()) for scalar in scalars]
