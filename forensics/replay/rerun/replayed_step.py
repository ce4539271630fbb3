"""One replayed step: what it came to, and the recorder that a replayed loop talks to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from forensics.record.clipping import GradNorms
from forensics.record.extra_columns import param_digest
from forensics.record.loop_watch import LoopWatch
from forensics.record.micro_batches import MicroBatches
from forensics.record.step_log import SkipLog, StepLog

Log = StepLog | SkipLog


@dataclass(frozen=True, kw_only=True)
class ReplayedStep:
    """What one step came to in a replay.

    Attributes:
        step: its index.
        log: its row; None where it raised before there was one.
        exception: ``Type: message (file:line)`` of what it raised, or empty.
        error: the exception itself, with its traceback.
        bad: what is not finite: ``loss``, ``norm``, ``grad:NAME``, ``param:NAME``,
            ``buffer:NAME``, ``optimizer:NAME.KEY``, ``ema:NAME``, ``lr``, ``scale``; or
            ``exception``.
        digest: of the parameters before the step, where the record has one.
    """

    step: int
    log: Log | None
    exception: str = ""
    error: BaseException | None = None
    bad: tuple[str, ...] = ()
    digest: str = ""


class ReplayRecorder:
    """Takes the place of the ``Recorder``: keeps the row instead of writing it.

    Args:
        parameters: (name, parameter) of the run.
        watch: finds out what a loop of the recipe's own did; None under the reference step.
        wants_digest: is the digest of the parameters wanted for this step?
    """

    replaying = True

    def __init__(
        self,
        parameters: Sequence[tuple[str, Tensor]],
        watch: LoopWatch | None,
        wants_digest: Callable[[], bool],
    ) -> None:
        self._parameters, self._watch, self._wants_digest = list(parameters), watch, wants_digest
        self.last: Log | None = None
        self.nonfinite_grads: tuple[str, ...] = ()
        self.digest = ""
        self._micro = MicroBatches()

    def begin(self) -> None:
        """Forget the step before."""
        self.last, self.nonfinite_grads, self.digest = None, (), ""

    def gradients(
        self,
        loss: Tensor | float | None = None,
        *,
        optimizers: Optimizer | Sequence[Optimizer] | None = None,
    ) -> float:
        """As ``Recorder.gradients``."""
        assert self._watch is not None
        norms = self._watch.gradients(self._micro.or_sum(loss), optimizers)
        self.observe(self._watch.norms or norms)
        return norms.total

    def add_loss(self, loss: Tensor | float) -> None:
        """As ``Recorder.add_loss``."""
        self._micro.add(loss)

    def end_step(self, loss: Tensor | float | None = None) -> None:
        """As ``Recorder.end_step``."""
        assert self._watch is not None
        self.write(self._watch.end_step(self._micro.end(loss)))

    def observe(self, grads: GradNorms, *, scaled: bool = False) -> None:
        """The gradients before the clip."""
        self.nonfinite_grads = tuple(grads.nonfinite)
        if self._wants_digest():
            self.digest = param_digest(self._parameters)

    def write(self, log: Log) -> None:
        """The finished step."""
        if not self.digest and log.skipped and self._wants_digest():
            self.digest = param_digest(self._parameters)
        self.last = log

    def note(self, **cells: Any) -> None:
        """Nothing: what only the loop knows is not compared."""

    def count_tokens(self, tokens: int) -> None:
        """Nothing."""


def bad_in_row(log: Log | None, nonfinite_grads: Sequence[str]) -> list[str]:
    """What the row alone tells to be non-finite; a scale of 0 is as bad as NaN."""
    found = [f"grad:{name}" for name in nonfinite_grads]
    if log is None:
        return found
    if not math.isfinite(log.loss):
        found.insert(0, "loss")
    norm = log.grad_l2_pre_clip
    if norm is not None and (log.norm_overflow or not math.isfinite(norm)):
        found.append("norm")
    if not all(map(math.isfinite, log.lrs)):
        found.append("lr")
    if not math.isfinite(log.scaler_scale) or log.scaler_scale <= 0:
        found.append("scale")
    return found
