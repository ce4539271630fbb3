"""What is known of one traced step: before it, in it, and what was recorded about it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from forensics.record.recipe import Training
from forensics.replay.applied.average_look import AverageLook
from forensics.replay.applied.movement import state_counts
from forensics.replay.applied.step_watch import OptimizerCall, StepEvents
from forensics.replay.tracing.step_trace import StepTrace


@dataclass(frozen=True, kw_only=True)
class StartOfStep:
    """The training as a step found it.

    Attributes:
        scaler: the training's scaler, if it is enabled.
        scale: its loss scale; 1 without one.
        counts: of every optimizer, by id: the step counts of its parameters, by id; -1 for a state
            without one.
        moves: how far each schedule has moved, in the training's order; -1 where it does not tell.
        average: a look at the training's moving average; None where it has none.
        unheld: copies of the trainable parameters that no optimizer holds, by name.
    """

    scaler: GradScaler | None
    scale: float
    counts: Mapping[int, Mapping[int, float]]
    moves: tuple[int, ...] = ()
    unheld: Mapping[str, Tensor] = field(default_factory=dict)
    average: AverageLook | None = None

    @classmethod
    def of(cls, training: Training) -> StartOfStep:
        """Note it down; call before the step."""
        scaler = training.scaler
        if scaler is None or not scaler.is_enabled():
            scaler = None
        scale = 1.0
        if scaler is not None:
            held = scaler._scale
            scale = float(scaler._init_scale if held is None else held)
        counts = {id(o): state_counts(o) for o in training.optimizers}
        moves = schedule_moves(training)
        return cls(
            scaler=scaler,
            scale=scale,
            counts=counts,
            moves=moves,
            unheld=_unheld(training),
            average=AverageLook.of(training),
        )


@dataclass(frozen=True, kw_only=True)
class Context:
    """What the record says around a step; the defaults say nothing.

    Attributes:
        step: its index.
        threshold: the clip threshold that the run was configured with.
        scale_before: the loss scale in force in the step before, as recorded.
        taken_before: did the optimizer step in the step before; None where it is not known.
        trained: had any earlier step been taken.
        resumed: did a recording begin anew with this step; None where it is not known.
        rate_share: the learning rate as a share of the highest of the run.
        steps: of the whole run; 0 where it is not known.
        rises: is the loss at the end of the run above that of its beginning.
    """

    step: int | None = None
    threshold: float | None = None
    scale_before: float | None = None
    taken_before: bool | None = None
    trained: bool = False
    rate_share: float = 1.0
    steps: int = 0
    rises: bool = False
    resumed: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StepFacts:
    """One traced step with everything that the checks of what was applied look at.

    Attributes:
        micro_batches: how many the step was trained on.
        losses: what the training's own loss function gave, as far as the step called it.
        average: a look at the moving average after the step; None where there is none.
    """

    training: Training
    trace: StepTrace
    events: StepEvents
    start: StartOfStep
    micro_batches: int = 0
    losses: tuple[float, ...] = ()
    context: Context = field(default_factory=Context)
    average: AverageLook | None = None

    @property
    def taken(self) -> list[OptimizerCall]:
        """The calls of an optimizer that changed something."""
        return [call for call in self.events.optimizers if not call.skipped_inside]

    @property
    def skipped(self) -> bool:
        """Was nothing applied?"""
        return not self.taken

    @property
    def scale(self) -> float:
        """The loss scale that the step used; 1 where nothing was scaled."""
        scales = [float(scale) for _, scale in self.events.scalers.values()]
        return scales[0] if scales else 1.0

    def name_of(self, parameter: Tensor) -> str:
        """A parameter's first name; empty for one that the model does not own."""
        for name, own in self.training.model.named_parameters():
            if own is parameter:
                return name
        return ""

    def arrived(self) -> float:
        """The L2 norm of all gradients as they arrived, still scaled."""
        return math.hypot(*self.trace.arrived.values()) if self.trace.arrived else 0.0

    def largest(self) -> str:
        """The parameter with the largest gradient."""
        norms = self.trace.arrived
        return max(norms, key=lambda name: norms[name]) if norms else ""


def _unheld(training: Training) -> dict[str, Tensor]:
    held = {id(p) for o in training.optimizers for group in o.param_groups for p in group["params"]}
    return {
        name: parameter.detach().clone()
        for name, parameter in training.model.named_parameters()
        if parameter.requires_grad and id(parameter) not in held
    }


def schedule_moves(training: Training) -> tuple[int, ...]:
    """How far each schedule has moved: its ``last_epoch``, which counts steps or epochs."""
    moves = (getattr(schedule, "last_epoch", -1) for schedule in training.schedulers)
    return tuple(move if isinstance(move, int) else -1 for move in moves)


def module_of(parameter: str) -> str:
    """The module that owns a parameter."""
    return parameter.rpartition(".")[0]
