"""Reading numbers back from the device: many at once, because each read makes the host wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def read_scalars(scalars: Sequence[Tensor]) -> list[float]:
    """One-element tensors of any device and dtype as floats, for the price of one blocking read.

    Mixed dtypes are promoted to the widest of them, which keeps every value exact. Integers above
    2^24 beside float32 are not: read counts on their own.
    """
    if not scalars:
        return []
    target = scalars[0].device
    packed = torch.stack([scalar.detach().reshape(()).to(target) for scalar in scalars])
    return [float(value) for value in packed.tolist()]
