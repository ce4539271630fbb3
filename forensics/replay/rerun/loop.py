"""What runs a replayed step: the reference step, or a watch around the recipe's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from forensics.record.config import Config
from forensics.record.loop_watch import LoopWatch
from forensics.record.loss_scale import make_scaler
from forensics.record.parameters import ArrivalOrder, tracked_parameters
from forensics.record.precision import Precision
from forensics.record.recipe import Batch, Recipe, Training
from forensics.record.train_step import AmpTrainState
from forensics.replay.ranks.crew import Crew
from forensics.replay.ranks.real_ranks import RealRanks
from forensics.replay.rerun.changes import Changes
from forensics.replay.rerun.emulated_ranks import EmulatedRanks, RankStreams
from forensics.replay.rerun.replayed_step import ReplayRecorder


@dataclass
class Loop:
    """The loop of one session; ``state`` is there under the reference step, ``watch`` otherwise."""

    recorder: ReplayRecorder
    state: AmpTrainState | None
    watch: LoopWatch | None

    def runner(
        self, training: Training, recipe: Recipe, batches: list[Batch], *, keep_loss: bool
    ) -> Callable[[], Any]:
        """``() → loss``: trains one step when it is called.

        Args:
            training: what is trained.
            recipe: whose own step it may be.
            batches: the micro-batches.
            keep_loss: the reference step's loss is returned as a tensor (a non-finite one where
                there is one), for a trace to follow; else what it returns says nothing.
        """
        self.recorder.begin()
        if self.state is None:
            return lambda: self._own(training, recipe, batches)
        state = self.state
        return lambda: _traceable(state, batches) if keep_loss else state.step_on(batches)

    def _own(self, training: Training, recipe: Recipe, batches: list[Batch]) -> Any:
        assert recipe.step is not None
        loss = recipe.step(training, batches, self.recorder)
        if self.recorder.last is None:  # it did not call end_step itself
            self.recorder.end_step(loss)
        return loss

    def close(self) -> None:
        """Take all hooks away."""
        if self.watch is not None:
            self.watch.close()
        if self.state is not None:
            self.state.arrival.close()


def _traceable(state: AmpTrainState, batches: list[Batch]) -> Tensor | None:
    with losses_noted(state) as losses:
        state.step_on(batches)
        return losses.told()


class NotedLosses(list[Tensor]):
    """The losses of a step's micro-batches, as tensors."""

    def told(self) -> Tensor | None:
        """The first that is not finite, else the last one; None without any."""
        bad = [value for value in self if not bool(value.detach().isfinite())]
        return bad[0] if bad else self[-1] if self else None


@contextmanager
def losses_noted(state: AmpTrainState) -> Iterator[NotedLosses]:
    """Keep what the loss of a reference step gives while the context lasts."""
    losses, own = NotedLosses(), state.loss

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        losses.append(own(model, batch))
        return losses[-1]

    state.loss = loss
    try:
        yield losses
    finally:
        state.loss = own


def make_loop(
    training: Training,
    config: Config,
    precision: Precision,
    changes: Changes,
    *,
    own_loop: bool,
    first_step: int,
    arrival_order: Sequence[str],
    wants_digest: Callable[[], bool],
    streams: RankStreams | None = None,
    crew: Crew | None = None,
) -> Loop:
    """The loop for the steps from ``first_step`` on.

    Args:
        training: what is trained.
        config: as recorded.
        precision: of the reference step.
        changes: its clip threshold, for the reference step.
        own_loop: has the recipe a step of its own?
        first_step: the next step.
        arrival_order: of the gradients, as recorded.
        wants_digest: is the digest of the parameters wanted for the step under way?
        streams: the random numbers of all ranks, where several are replayed at once.
        crew: the other ranks, where they replay their own share; else it is done here.
    """
    parameters = tracked_parameters(training.model, training.optimizers)
    arrival = ArrivalOrder(parameters, arrival_order)
    if own_loop:
        watch = LoopWatch(
            parameters,
            training.optimizers,
            training.scaler,
            measure_post_clip=config.max_norm is not None,
            first_step=first_step,
            arrival=arrival,
        )
        return Loop(ReplayRecorder(parameters, watch, wants_digest), None, watch)
    recorder = ReplayRecorder(parameters, None, wants_digest)
    kind = AmpTrainState if streams is None else RealRanks if crew else EmulatedRanks
    state = kind(
        training.model,
        training.optimizers,
        training.loss,
        precision=precision,
        scaler=_scaler_for(training.scaler, precision, config, parameters[0][1].device),
        schedulers=training.schedulers,
        ema=training.ema,
        max_norm=config.max_norm if changes.max_norm is None else changes.max_norm,
        scale_floor=config.scaler.floor,
        recorder=recorder,
        first_step=first_step,
        arrival=arrival,
        say=lambda _: None,
    )
    if isinstance(state, EmulatedRanks) and streams is not None:
        state.streams = streams
    if isinstance(state, RealRanks) and crew is not None:
        state.crew = crew
    return Loop(recorder, state, None)


def _scaler_for(own: Any, precision: Precision, config: Config, device: torch.device) -> Any:
    """The training's own scaler where the precision uses one as recorded; None for a disabled."""
    if precision.uses_scaler == own.is_enabled():
        return own
    return make_scaler(config.scaler, device, enabled=True) if precision.uses_scaler else None
