"""The other ranks of a replay: they do what rank 0 says, and keep nothing between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from forensics import errors
from forensics.errors import ForensicsError
from forensics.record.assembly import to_device, told
from forensics.record.loss_scale import scale_tensor
from forensics.record.precision import Precision
from forensics.record.ranks.share import batch_of
from forensics.record.ranks.world import World
from forensics.record.recipe import Batch
from forensics.record.rng import restore_rng, rng_state
from forensics.record.train_step import AmpTrainState
from forensics.replay.ranks.crew import tensors_of
from forensics.replay.ranks.exchange import Exchange
from forensics.replay.ranks.messages import (
    Build,
    End,
    MakeBatch,
    Picks,
    Refusal,
    Report,
    TrainShare,
)
from forensics.replay.ranks.share import are_reduced, average, own_report
from forensics.replay.rerun.changes import batch_size, widened_batch
from forensics.replay.rerun.loop import losses_noted
from forensics.replay.session import Session, open_session
from forensics.replay.tracing.call_site import Parts
from forensics.replay.tracing.step_trace import StepTrace, StepTracer
from forensics.runlog.run import load_run


def follow(world: World) -> Any:
    """Do what rank 0 says until it is done.

    Returns:
        Rank 0's result.

    Raises:
        ForensicsError: the one that rank 0 ended with.
        RankLostError: rank 0, or another rank, is gone.
    """
    follower = _Follower(world)
    try:
        return follower.until_the_end()
    finally:
        follower.close()


class _Follower:
    """One rank that follows; its session is only for the recipe, the model and the device."""

    def __init__(self, world: World) -> None:
        self.world, self.exchange = world, Exchange(world)
        self._session: Session | None = None
        self._batches: tuple[int, list[Batch]] | None = None
        self._states: dict[tuple[str, bool], AmpTrainState] = {}

    def until_the_end(self) -> Any:
        """One message after the other."""
        while True:
            message = self.exchange.say()
            if isinstance(message, End):
                return _ended(message)
            if isinstance(message, Build):
                self.exchange.hear(self._build(message))
            elif isinstance(message, MakeBatch):
                self.exchange.hear(self._make_batch(message.step))
            elif isinstance(message, TrainShare):
                self._train(message)

    def close(self) -> None:
        """Put back what the session has set."""
        self._drop_states()
        if self._session is not None:
            self._session.close()

    @property
    def session(self) -> Session:
        """Opened by the first ``Build``, which comes before anything else."""
        assert self._session is not None
        return self._session

    def _build(self, message: Build) -> str:
        """Build the training; returns why that cannot be."""
        self._drop_states()
        self._batches = None
        try:
            if self._session is None:
                self._session = open_session(
                    load_run(message.run),
                    recipe=message.recipe,
                    device=message.device,
                    say=lambda _: None,
                )
            else:
                self._session.start()
        except ForensicsError as error:
            return error.what
        except (Exception, SystemExit) as error:  # noqa: BLE001 - rank 0 has the say, and must hear of it
            return told(error)
        return ""

    def _make_batch(self, step: int) -> tuple[int, ...] | Refusal:
        """The sizes of this rank's micro-batches, which are kept for the share that follows."""
        session = self.session
        try:
            made = batch_of(session.recipe, step, self.world.rank, self.world.size)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a recipe raises is evidence
            return Refusal(kind=type(error).__name__, told=told(error))
        self._batches = step, [to_device(batch, session.device) for batch in made]
        return tuple(map(batch_size, made))

    def _train(self, order: TrainShare) -> None:
        """This rank's share, its report, and its part in the reduction."""
        model = self.session.model
        _fit(model, order)
        self.exchange.hand_out(tensors_of(model))
        state = self._state(order)
        parameters = [parameter for _, parameter in state.parameters]
        for parameter in parameters:
            parameter.grad = None
        restore_rng(order.streams[self.world.rank - 1])
        report, trace = self._share(state, order, parameters)
        report = replace(report, stream=rng_state())
        reports: list[Report] = self.exchange.share(report)
        if order.traced:
            self.exchange.hear(trace)
        if are_reduced(reports):
            average(self.exchange, reports, parameters)
        for parameter in parameters:
            parameter.grad = None

    def _share(
        self, state: AmpTrainState, order: TrainShare, parameters: Sequence[Tensor]
    ) -> tuple[Report, StepTrace | None]:
        picks = order.picks.get(self.world.rank, ())
        if not picks:
            return Report(gradients=bytes(len(parameters))), None
        batches: list[Batch] = []

        def accumulate() -> tuple[float, float, str]:
            return state._accumulate(batches)

        try:
            batches += self._picked(picks, order)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a recipe's select() raises what it likes
            return Report(refusal=Refusal(kind=type(error).__name__, told=told(error))), None
        if not order.traced:
            return own_report(accumulate, parameters)[0], None
        tracer = StepTracer(
            self.session.model,
            micro_batches=batches,
            parts=Parts.of(self.session.model),
        )
        report, _ = own_report(lambda: _traced(tracer, state, accumulate), parameters)
        trace = tracer.result()
        if report.refusal is not None:
            report = replace(report, refusal=replace(report.refusal, raised=trace.raised))
        return report, trace

    def _picked(self, picks: Picks, order: TrainShare) -> list[Batch]:
        session = self.session
        if self._batches is None or self._batches[0] != order.step:
            self._make_batch(order.step)
        assert self._batches is not None
        chosen = []
        for place, samples in picks:
            batch = self._batches[1][place]
            if samples is not None:
                batch = session.recipe.select(batch, list(samples))
            chosen.append(batch if order.widened is None else widened_batch(batch, order.widened))
        return chosen

    def _state(self, order: TrainShare) -> AmpTrainState:
        """What computes the share, at rank 0's loss scale."""
        key = order.precision, order.scale is not None
        training, device = self.session.training, self.session.device
        if key not in self._states:
            self._drop_states()
            self._states[key] = AmpTrainState(
                training.model,
                training.optimizers,
                training.loss,
                precision=Precision(order.precision, device.type),
                scaler=torch.amp.GradScaler(device.type, enabled=order.scale is not None),
            )
        state = self._states[key]
        if order.scale is not None:
            scale_tensor(state.scaler, device).fill_(order.scale)
        return state

    def _drop_states(self) -> None:
        for state in self._states.values():
            state.arrival.close()
        self._states.clear()


def _traced(
    tracer: StepTracer, state: AmpTrainState, accumulate: Callable[[], tuple[float, float, str]]
) -> tuple[float, float, str]:
    """A share under the trace, which follows the loss as a tensor."""
    came: list[tuple[float, float, str]] = []

    def run() -> Any:
        with losses_noted(state) as losses:
            came.append(accumulate())
            return losses.told()

    tracer.run(run)
    return came[0]


@torch.no_grad()
def _fit(model: nn.Module, order: TrainShare) -> None:
    """The types and modes that rank 0's model has: a trial may have widened it."""
    for tensor, dtype in zip(tensors_of(model), order.dtypes, strict=True):
        if tensor.dtype != dtype:
            tensor.grad = None
            tensor.data = tensor.data.to(dtype)
    for module, mode in zip(model.modules(), order.modes, strict=True):
        module.training = mode


def _ended(message: End) -> Any:
    if message.failure is None:
        return message.result
    name, what, where, hint = message.failure
    kind = getattr(errors, name, ForensicsError)
    with suppress(TypeError):
        raise kind(what, where=where, hint=hint)
    raise ForensicsError(what, where=where, hint=hint)
