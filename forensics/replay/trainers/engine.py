"""A trainer under replay: its loop draws the data, and its own parts make each step when asked.

The data of a step are drawn once, by the trainer's own loop, in the order and with the random
numbers of its own; they are kept for as long as a state before that step is, so that the step can
be made again. The step itself is made by the trainer's own methods, but by us: traced, with other
data or another precision where that is wanted.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forensics.errors import ForensicsError, NoBatchError, NotReplayableError
from forensics.record.assembly import told
from forensics.record.recipe import Batch, StepRecorder, Training
from forensics.record.rng import restore_rng, rng_state
from forensics.replay.rerun.memory_state import MemoryState
from forensics.replay.trainers.parked_loop import LoopEndedError, ParkedLoop


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What the trainer's loop drew for one optimizer step.

    Attributes:
        batches: the micro-batches.
        cursor: where its loop stands in each, as the engine needs it to make the step again.
        rng: the random state in which the step begins.
        written: what the loop wrote into the model meanwhile (its callbacks may), with the values.
    """

    batches: list[Batch]
    cursor: Any
    rng: dict[str, Any]
    written: Sequence[tuple[Tensor, Tensor]] = ()


class Engine:
    """One trainer that stands before a step, as its own resume left it.

    Attributes:
        first_step: where it resumed.
        model: unwrapped, as it was recorded.
        compiled: is it trained through ``torch.compile``?
    """

    first_step: int
    model: nn.Module
    compiled = False

    def __init__(self) -> None:
        self._draws: dict[int, Draw] = {}
        self._held: list[weakref.ref[MemoryState]] = []
        self._next = 0
        self._after: tuple[dict[str, Any], Any] | None = None
        self._step = 0
        self.loop = ParkedLoop(self._train)

    # -- what a trainer is asked for ----------------------------------------------------------

    def _train(self) -> None:
        """Run the trainer's own loop, from its own resume on; it parks in every step."""
        raise NotImplementedError

    def _drawn(self) -> tuple[list[Batch], Any]:
        """Let the loop draw the next step's micro-batches; they, and its cursor there."""
        raise NotImplementedError

    def _cursor(self) -> Any:
        """Where the loop stands after a step."""
        return None

    def _put_cursor(self, cursor: Any) -> None:
        """Put it back there."""

    def _make(self, batches: Sequence[Batch], draw: Draw, recorder: StepRecorder) -> Any:
        """Make one optimizer step by the trainer's own methods; returns its loss."""
        raise NotImplementedError

    def parts(self) -> tuple[list[Any], list[Any], Any]:
        """The optimizers, the schedulers and the loss scaler (None for none)."""
        raise NotImplementedError

    # -- what a session asks for --------------------------------------------------------------

    def start(self) -> None:
        """Resume, up to just before the first step.

        Raises:
            NotReplayableError: the trainer raised on the way.
        """
        try:
            batches, cursor = self._drawn()
        except LoopEndedError as error:
            raise NotReplayableError("the trainer makes no step from there", where="trainer") from (
                error
            )
        except ForensicsError:
            raise
        except (Exception, SystemExit) as error:
            raise NotReplayableError(
                f"the trainer could not resume ({told(error)})", where="trainer"
            ) from error
        self._keep(batches, cursor)

    def training(self) -> Training:
        """What is trained, for the replay to look at."""
        optimizers, schedulers, scaler = self.parts()
        device = next(self.model.parameters()).device
        return Training(
            self.model,
            optimizers,
            _no_loss,
            schedulers=schedulers,
            scaler=scaler or torch.amp.GradScaler(device.type, enabled=False),
        )

    def batches(self, step: int) -> list[Batch]:
        """The micro-batches of a step, with the random state in which it begins put in place.

        Raises:
            NoBatchError: there is no such step.
            Exception: what the data raised.
        """
        while self._next <= step:
            if self._after is not None:
                restore_rng(self._after[0])
                self._put_cursor(self._after[1])
            versions = [tensor._version for tensor in self._held_by_model()]
            try:
                drawn = self._drawn()
            except LoopEndedError as error:
                raise NoBatchError(
                    f"what the function builds ends before step {self._next:,}",
                    where=f"the data of step {step:,}",
                ) from error
            self._keep(*drawn, versions)
        if step not in self._draws:
            raise NoBatchError("its data are no longer there", where=f"step {step:,}")
        self._step, draw = step, self._draws[step]
        for tensor, value in draw.written:
            tensor.data.copy_(value)
        restore_rng(draw.rng)
        return draw.batches

    def make(self, batches: Sequence[Batch], recorder: StepRecorder) -> Any:
        """Make the step whose batches were asked for last; returns its loss."""
        step = self._step
        first = self._after is None and step == self._next - 1
        trained = [(p, p.requires_grad) for p in self.model.parameters()]
        try:
            return self._make(batches, self._draws[step], recorder)
        except BaseException:  # a step that ends midway leaves frozen what it froze for a while
            for parameter, was in trained:
                parameter.requires_grad_(was)
            raise
        finally:
            if first:
                self._after = (rng_state(), self._cursor())

    def hold(self, state: MemoryState) -> None:
        """A state was copied: the data from there on are needed for as long as it is there."""
        self._held.append(weakref.ref(state))

    def _held_by_model(self) -> list[Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def _keep(self, batches: list[Batch], cursor: Any, versions: Sequence[int] = ()) -> None:
        self._held = [held for held in self._held if held() is not None]
        states = [state for held in self._held if (state := held()) is not None]
        oldest = min([state.step for state in states], default=self._next)
        self._draws = {step: draw for step, draw in self._draws.items() if step >= oldest}
        pairs = zip(self._held_by_model(), versions, strict=True) if versions else ()
        written = [(t, t.detach().clone()) for t, before in pairs if t._version != before]
        self._draws[self._next] = Draw(
            batches=batches, cursor=cursor, rng=rng_state(), written=written
        )
        self._next += 1
        self._after = None


def worst_loss(losses: Sequence[Tensor]) -> Any:
    """Of the micro-batches' losses the first that is not finite, for a trace to follow."""
    bad = [loss for loss in losses if not bool(loss.detach().isfinite().all())]
    return bad[0] if bad else losses[-1] if losses else None


def _no_loss(model: nn.Module, batch: Batch) -> Tensor:
    raise NotReplayableError("the loss is the trainer's own", where="trainer")
