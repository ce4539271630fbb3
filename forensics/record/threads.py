"""The thread count of a recorded run: another one sums in another order and computes other bits."""

from __future__ import annotations

import os

import torch


def threads_for(recorded: int) -> int:
    """How many threads to compute with where a run was recorded with ``recorded``.

    The recorded number where this machine has that many cores: more threads than cores wait for
    each other, at many times the cost. Else as many as there are cores, and the present number
    where ``run.json`` tells none that makes sense.
    """
    if recorded < 1:
        return torch.get_num_threads()
    return min(recorded, max(os.cpu_count() or 1, torch.get_num_threads()))
