"""Which way a rank's own gradients are measured: by what the model is wrapped in."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from forensics.record.clipping import GradNorms
from forensics.record.local_part import is_distributed
from forensics.record.ranks.flat_shards import NAME, is_flat_sharded
from forensics.record.ranks.fsdp_gradients import FsdpGradients, is_fully_sharded
from forensics.record.ranks.local_gradients import LocalGradients, OwnGradients
from forensics.record.ranks.local_norms import LocalNorms
from forensics.record.tensor_norms import combine, measure


def own_gradients(
    model: nn.Module,
    names: Mapping[int, str],
    reducing: Callable[[], None],
    waits: Callable[[bool], None],
    say: Callable[[str], None],
) -> OwnGradients:
    """What measures them under FSDP, DDP or tensor parallelism alone.

    Under the first version of FSDP nothing does.

    Args:
        model: as the loop trains it.
        names: of the parameters, by ``id``.
        reducing: told when the last gradients of a step go to the reduction.
        waits: told True before this rank waits for the others within forward or backward, and False
            where it goes on alone; both many times a step.
        say: told in one clause why nothing can be measured.
    """
    modules = list(model.modules())
    if any(is_fully_sharded(module) for module in modules):
        return FsdpGradients(model, names, waits, say)
    if is_flat_sharded(model):
        say(f"local gradient norms: {NAME} does not let them be seen before they are scattered")
        return OwnGradients(names)
    replicated = any(isinstance(module, DistributedDataParallel) for module in modules)
    if not replicated and any(is_distributed(parameter) for parameter in model.parameters()):
        return PartGradients(names)
    return LocalGradients(model, names, reducing, say)


class PartGradients(OwnGradients):
    """Under tensor parallelism alone no reduction mixes gradients: a rank's own is its part."""

    def hand(self, grads: GradNorms) -> None:
        """The measurement of all ranks, which has this rank's parts, too."""
        if not grads.own:
            return
        counts = measure(grads.grads).nonfinite if grads.nonfinite else ()
        bad = [name for name, count in zip(grads.names, counts, strict=False) if count]
        self._first = bad[-1] if bad else None  # the last in the network is nearest the loss
        self._norms = LocalNorms(combine(grads.own), sum(counts))
