"""A rank's own gradients, read where they lie while what was copied from them is reduced.

DistributedDataParallel copies each gradient into a bucket as soon as it is there. At the end of the
backward pass it waits for the buckets, and copies them back. Until then the gradients are still
this rank's own, so no communication hook is needed to see them. One in Python costs more than the
measurement: it has torch divide the buckets in a pass of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from forensics.record.ranks.local_norms import LocalNorms
from forensics.record.readback import read_each
from forensics.record.tensor_norms import combine, l2_norms, measure


def stay_own(replica: DistributedDataParallel) -> bool:
    """Are all its gradients, up to the end of backward, neither reduced nor divided in place?

    Views of the buckets are, and sparse ones. Where some may be unused in a step, none is known to
    come in each. Elsewhere than on a CPU the host must not wait for a norm, as it does here.
    """
    special = (
        replica.gradient_as_bucket_view
        or replica.find_unused_parameters
        or replica.static_graph
        or replica.mixed_precision is not None
        or getattr(replica, "_use_python_reducer", False)
        or getattr(replica, "_delay_all_reduce_params", ())
        or replica._comm_hooks
    )
    sparse = any(
        isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse
        for module in replica.modules()
    )
    on_cpu = all(parameter.device.type == "cpu" for parameter in replica.parameters())
    return not special and not sparse and on_cpu


class UnreducedGradients:
    """Measures the gradients of a replica at the end of each backward pass that reduces them.

    What is queued to be called at the end of a backward pass is called in the order it was queued
    in. DistributedDataParallel queues its waiting when the last gradient has arrived, behind our
    hook on that gradient's parameter. So what our hook queues comes first. Which parameter that is,
    the first pass shows: until all have been seen, each has a hook. It must be the last one, as
    with reentrant checkpoints a pass runs others within, each with an end of its own.

    Args:
        replica: one whose gradients ``stay_own``.
    """

    def __init__(self, replica: DistributedDataParallel) -> None:
        self._replica = replica
        self._reducing: Callable[[], None] = lambda: None
        self._say: Callable[[str], None] = lambda _: None
        self._awaited: dict[int, Tensor] = {
            id(parameter): parameter
            for name, parameter in replica.module.named_parameters()
            if parameter.requires_grad and name not in replica.parameters_to_ignore
        }
        self._arrived: list[Tensor] = []
        self._hooks: dict[int, RemovableHandle] = {
            key: parameter.register_post_accumulate_grad_hook(self._arrives)
            for key, parameter in self._awaited.items()
        }
        self._pass: int | None = None
        self._norms: LocalNorms | None = None

    def listen(self, reducing: Callable[[], None], say: Callable[[str], None]) -> None:
        """Measure from now on.

        Args:
            reducing: told when all gradients of a backward pass are with the reduction.
            say: told in one clause why nothing can be measured.
        """
        self._reducing, self._say = reducing, say

    def rest(self) -> None:
        """Measure no more."""
        for hook in self._hooks.values():
            hook.remove()
        self._hooks = {}

    def take(self) -> LocalNorms | None:
        """What was measured since the last call; None where nothing was reduced.

        Of several backward passes it is the first bad one, else the last.
        """
        norms, self._norms = self._norms, None
        return norms

    def _arrives(self, parameter: Tensor) -> None:
        """A gradient is there."""
        replica = self._replica
        if not (replica.require_backward_grad_sync or replica.require_forward_param_sync):
            return  # it is only added up, on this rank
        if self._awaited and self._awaited.pop(id(parameter), None) is not None:
            self._arrived.append(parameter)
        current = torch._C._current_graph_task_id()
        if current != self._pass:
            self._pass = current
            engine: Any = Variable._execution_engine
            engine.queue_callback(partial(self._ends, current))

    def _ends(self, ended: int) -> None:
        """A backward pass has ended, or one within it."""
        if self._awaited or ended != self._pass:
            return
        if len(self._hooks) > 1:
            self._keep_last()
        try:
            self._measure()
            self._reducing()
        except Exception as error:  # noqa: BLE001 - a record is never worth a training
            self._say(f"local gradient norms: {type(error).__name__} while they were measured")

    def _measure(self) -> None:
        if self._norms is not None and self._norms.nonfinite:
            return
        grads = [grad for parameter in self._arrived if (grad := parameter.grad) is not None]
        total = combine(read_each(l2_norms(grads)))
        if math.isfinite(total):
            self._norms = LocalNorms(total, 0)
            return
        found = measure(grads)
        held = [parameter for parameter in self._arrived if parameter.grad is not None]
        bad = [p for p, count in zip(held, found.nonfinite, strict=True) if count]
        self._norms = LocalNorms(combine(found.l2), sum(found.nonfinite), tuple(bad))

    def _keep_last(self) -> None:
        """All have been seen once: from now on only the hook of the last one is needed."""
        for key in self._hooks.keys() - {id(self._arrived[-1])}:
            self._hooks.pop(key).remove()
