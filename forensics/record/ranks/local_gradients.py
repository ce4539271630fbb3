"""A rank's own gradients, measured before they are reduced.

After the all-reduce every rank looks guilty: one NaN is in everybody's gradients. On a CPU they are
mostly read where they lie (``unreduced``). Else a communication hook sees each bucket just before
it is reduced, still as this rank alone has computed it, and then does what would have been done
without it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from forensics.record.clipping import GradNorms
from forensics.record.ranks.local_norms import LocalNorms
from forensics.record.ranks.unreduced import UnreducedGradients, stay_own
from forensics.record.readback import read_scalars
from forensics.record.tensor_norms import combine, l2_norms, measure

Bucket = Any
"""A ``torch.distributed.GradBucket``, which the type stubs do not know."""

Hook = Callable[[Any, Bucket], Any]
"""``(state, bucket) → future``: what ``register_comm_hook`` takes."""


MOST_PASSES = 100
"""Backward passes kept until a step is read: a loop that never asks fills no memory."""


@dataclass
class SeenBucket:
    """What was seen of one bucket; of a device other than the CPU it is not read yet."""

    parameters: Sequence[Tensor]
    norms: Sequence[Tensor | float]
    nonfinite: Tensor | int
    bad: Sequence[int] = field(default_factory=tuple)


class MeasuringHook:
    """A communication hook that measures a bucket and hands it on.

    Register it in place of a hook of your own that is registered before the Recorder is made::

        ddp.register_comm_hook(state, MeasuringHook(powerSGD_hook))

    Args:
        hook: what reduces; by default the all-reduce that averages.
    """

    def __init__(self, hook: Hook = allreduce_hook) -> None:
        self.hook = hook
        self.__name__ = getattr(hook, "__name__", type(hook).__name__)
        self.__qualname__ = getattr(hook, "__qualname__", self.__name__)
        self.__signature__ = inspect.signature(hook)  # DistributedDataParallel looks at it
        self._reducing: Callable[[], None] | None = None
        self._say: Callable[[str], None] = lambda _: None
        self._passes: list[list[SeenBucket]] = []

    def listen(self, reducing: Callable[[], None], say: Callable[[str], None]) -> None:
        """Measure from now on.

        Args:
            reducing: told when the last bucket of a backward pass goes to the reduction.
            say: told in one clause why nothing can be measured.
        """
        self._reducing, self._say = reducing, say

    def rest(self) -> None:
        """Only hand on from now on."""
        self._reducing, self._passes = None, []

    def __call__(self, state: Any, bucket: Bucket) -> torch.futures.Future[torch.Tensor]:
        """Measure the bucket, then reduce it."""
        if self._reducing is not None:
            try:
                self._see(bucket)
            except Exception as error:  # noqa: BLE001 - a record is never worth a training
                self._say(f"local gradient norms: {type(error).__name__} while they were measured")
            if bucket.is_last():
                self._reducing()
        reduced: torch.futures.Future[torch.Tensor] = self.hook(state, bucket)
        return reduced

    def take(self) -> LocalNorms | None:
        """What was measured since the last call, in one read; None where nothing was reduced.

        Of several backward passes, each reduced by itself, it is the first bad one, else the last:
        what one rank's gradients had in them is in those of all ranks in the next pass.
        """
        passes, self._passes = self._passes, []
        read_buckets([bucket for buckets in passes for bucket in buckets])
        found = [norms_of(buckets) for buckets in passes]
        return next((norms for norms in found if norms.nonfinite), found[-1] if found else None)

    def _see(self, bucket: Bucket) -> None:
        if bucket.index() == 0 or not self._passes:
            del self._passes[MOST_PASSES:]
            self._passes.append([])
        self._passes[-1].append(measured(bucket))


def read_buckets(buckets: Sequence[SeenBucket]) -> None:
    """Read what is still on the device, in one go."""
    waiting = [b for b in buckets if isinstance(b.nonfinite, Tensor)]
    scalars = [t for b in waiting for t in (b.nonfinite, *b.norms) if isinstance(t, Tensor)]
    values = iter(read_scalars(scalars))
    for bucket in waiting:
        bucket.nonfinite = int(next(values))
        bucket.norms = [next(values) for _ in bucket.norms]
        if bucket.nonfinite:
            bucket.bad = [i for i, n in enumerate(bucket.norms) if not math.isfinite(n)]


def norms_of(buckets: Sequence[SeenBucket]) -> LocalNorms:
    """Buckets that have been read, as one."""
    return LocalNorms(
        combine([float(norm) for b in buckets for norm in b.norms]),
        sum(int(b.nonfinite) for b in buckets),
        tuple(b.parameters[i] for b in buckets for i in b.bad),
    )


@torch.no_grad()
def measured(bucket: Bucket) -> SeenBucket:
    """One pass over a bucket.

    On the CPU a bad one is looked into at once; elsewhere the elements are counted on the device,
    so that the host goes on without waiting.
    """
    gradients, parameters = bucket.gradients(), bucket.parameters()
    buffer = bucket.buffer()
    if buffer.device.type == "cpu":
        found = measure(gradients)
        bad = [i for i, count in enumerate(found.nonfinite) if count]
        return SeenBucket(parameters, found.l2, sum(found.nonfinite), bad)
    nonfinite = buffer.isfinite().logical_not_().sum()
    return SeenBucket(parameters, l2_norms(gradients), nonfinite)


class OwnGradients:
    """A rank's own gradients, by whatever measures them; this one has nothing to measure.

    Args:
        names: of the parameters, by ``id``.
    """

    def __init__(self, names: Mapping[int, str]) -> None:
        self._names = names
        self._norms: LocalNorms | None = None
        self._first: str | None = None

    def fetch(self) -> None:
        """Read what was measured; best where the loop has just waited for the device anyway."""

    def take(self, scale: float, arrival: Sequence[str] = ()) -> dict[str, Any]:
        """Cells of this rank's row: its norm, unscaled, and what in it was not finite.

        Args:
            scale: the loss scale in force.
            arrival: the order in which gradients arrive: the first one is nearest the fault.
        """
        self.fetch()
        norms, self._norms = self._norms, None
        if norms is None:
            return {}
        first, self._first = self._first, None
        if first is None and norms.bad:
            first = self._first_of(norms.bad, arrival)
        return {
            "grad_l2_local": norms.total / scale if scale else math.nan,
            "grad_local_nonfinite": norms.nonfinite,
            "first_nonfinite": first,
        }

    def _first_of(self, bad: Sequence[Tensor], arrival: Sequence[str]) -> str | None:
        place = {name: i for i, name in enumerate(arrival)}
        named = (self._names.get(id(parameter), "") for parameter in bad)
        names = sorted(named, key=lambda name: place.get(name, len(place)))
        return next(filter(None, names), None)

    def hand(self, grads: GradNorms) -> None:
        """The reduced gradients, where they tell something of this rank's own, too."""

    def close(self) -> None:
        """Measure no more."""


class LocalGradients(OwnGradients):
    """Measures the gradients of DistributedDataParallel models on this rank.

    Where the gradients cannot be read in place, a hook is registered when a model first runs, so
    that a loop may register one of its own until then; at once where it has run already. Where the
    loop does, without ``MeasuringHook``, nothing can be measured.

    Args:
        model: as the loop trains it; itself or in it one such model or several.
        names: of the parameters, by ``id``.
        reducing: told when the last gradients of a step go to the reduction.
        say: told in one clause why nothing can be measured.
    """

    def __init__(
        self,
        model: nn.Module,
        names: Mapping[int, str],
        reducing: Callable[[], None],
        say: Callable[[str], None],
    ) -> None:
        super().__init__(names)
        self._reducing, self._say = reducing, say
        self._hooks: list[MeasuringHook | UnreducedGradients] = []
        self._first_run: dict[int, RemovableHandle] = {}
        replicas = [m for m in model.modules() if isinstance(m, DistributedDataParallel)]
        if not replicas:
            say("local gradient norms: the model is not in DistributedDataParallel")
        for replica in replicas:
            if getattr(replica, "_lazy_init_ran", False):  # a trainer tells of itself only later
                self._attach(replica)
            else:
                self._first_run[id(replica)] = replica.register_forward_pre_hook(self._runs)

    def fetch(self) -> None:
        """Read what the hooks have measured; of several readings in a step the first bad one."""
        found = [norms for hook in self._hooks if (norms := hook.take()) is not None]
        if found and not (self._norms is not None and self._norms.nonfinite):
            self._norms = found[0] if len(found) == 1 else _as_one(found)

    def close(self) -> None:
        """Measure no more. A hook itself stays: DistributedDataParallel cannot drop one."""
        for first_run in self._first_run.values():
            first_run.remove()
        for hook in self._hooks:
            hook.rest()

    def _runs(self, replica: nn.Module, _: Any) -> None:
        """Before the first forward."""
        self._first_run.pop(id(replica)).remove()
        assert isinstance(replica, DistributedDataParallel)
        self._attach(replica)

    def _attach(self, replica: DistributedDataParallel) -> None:
        """Read the gradients in place, else by a hook: the loop's own that measures, or ours."""
        registered = [hook for hook, _ in replica._comm_hooks]
        hook: MeasuringHook | UnreducedGradients | None
        hook = next((hook for hook in registered if isinstance(hook, MeasuringHook)), None)
        try:
            if hook is None and stay_own(replica):
                hook = UnreducedGradients(replica)
            elif hook is None:
                hook = MeasuringHook()
                replica.register_comm_hook(replica.process_group, hook)
        except RuntimeError:
            self._say(
                "local gradient norms: the loop has a communication hook of its own; register "
                "forensics.record.ranks.MeasuringHook(hook) in its place"
            )
            return
        hook.listen(self._reducing, self._say)
        self._hooks.append(hook)


def _as_one(found: Sequence[LocalNorms]) -> LocalNorms:
    """What several models in one loop have, each with a reduction of its own."""
    return LocalNorms(
        combine([norms.total for norms in found]),
        sum(norms.nonfinite for norms in found),
        tuple(parameter for norms in found for parameter in norms.bad),
    )
