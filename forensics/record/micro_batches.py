"""The losses of a step that goes backward more than once, as far as the loop tells them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from torch import Tensor
from torch.optim import Optimizer

from forensics.record import loop_notes
from forensics.record.given_loss import given_loss
from forensics.record.loop_notes import LoopNotes

Loss = Tensor | float | None


class MicroBatches:
    """Adds up what ``add_loss`` is given, and counts what goes backward.

    A loop that accumulates often has at hand the loss of its last micro-batch alone. Where that is
    given for the step, a NaN in another one shows in the gradients only: it must be known then that
    the loss is one of several. It still hangs on its graph; a sum that a loop keeps does not.

    Args:
        notes: where that is counted; None counts nothing.
        named_parameters: of the run. The last one's gradient tells how often backward ran.
        optimizers: those of the loop. Several have backwards of their own, which tells nothing.
        shield: what keeps an error from the loop.
    """

    def __init__(
        self,
        notes: LoopNotes | None = None,
        named_parameters: Sequence[tuple[str, Tensor]] = (),
        optimizers: Sequence[Optimizer] = (),
        shield: Callable[[str], AbstractContextManager[None]] = lambda _: nullcontext(),
    ) -> None:
        self._notes, self._shield = notes, shield
        self._sum: Loss = None
        self._one = False
        self._backwards = 0
        self._hook = None
        leaves = [p for _, p in named_parameters if p.requires_grad and p.is_leaf]
        if notes is not None and leaves and len(optimizers) == 1:
            # torch's side of a hook is none that a garbage collector sees: it must not hold us.
            count = weakref.WeakMethod(self._count)
            self._hook = leaves[-1].register_post_accumulate_grad_hook(partial(_call, count))

    def add(self, loss: Loss) -> None:
        """The loss of one micro-batch, as it goes backward; nothing is read off the device."""
        given = given_loss(loss, self._shield)
        if given is None:
            return
        given = given.detach() if isinstance(given, Tensor) else given
        self._sum = given if self._sum is None else self._sum + given

    def or_sum(self, loss: Loss) -> Loss:
        """The loss as given for the step, else the sum of its micro-batches'."""
        if loss is None:
            return self._sum
        self._one = isinstance(loss, Tensor) and loss.requires_grad
        return loss

    def end(self, loss: Loss, step: int = 0, *, closure: bool = False) -> Loss:
        """The step is over: what ``or_sum`` gives for its row.

        Args:
            loss: as given for the step.
            step: its index.
            closure: its optimizer has evaluated the loss itself, as often as it liked.
        """
        loss = self.or_sum(loss)
        if self._notes is not None and self._one and self._backwards > 1 and not closure:
            self._notes.note(loop_notes.ONE_LOSS, step)
        self._sum, self._one, self._backwards = None, False, 0
        return loss

    def close(self) -> None:
        """Count no more."""
        if self._hook is not None:
            self._hook.remove()

    def _count(self) -> None:
        self._backwards += 1


def _call(method: weakref.WeakMethod[Callable[[], None]], _: Tensor) -> None:
    if (alive := method()) is not None:
        alive()
