"""The parameters a run tracks: their names, their groups, and how their gradients arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from forensics.errors import UsageError
from forensics.record.local_part import is_distributed
from forensics.record.plain_names import named_parameters
from forensics.record.ranks.flat_shards import flat_shards
from forensics.runlog.manifest import ParameterInfo


def tracked_parameters(
    model: nn.Module, optimizers: Iterable[Optimizer]
) -> list[tuple[str, Tensor]]:
    """The parameters that the optimizers hold, each once, by plain name and in network order.

    One that the model does not own comes last, as ``optimizers.I.J`` (its place in optimizer I).
    Ask again where ``held_by`` has changed: groups may be added later.

    Raises:
        UsageError: one is no torch optimizer, they hold nothing, or what no forward has shaped yet.
    """
    optimizers = list(optimizers)
    for optimizer in optimizers:
        if not isinstance(optimizer, Optimizer):
            raise UsageError(
                f"a {type(optimizer).__name__} is no torch.optim.Optimizer, as is needed",
                where="optimizers",
                hint="pass the torch optimizer that is inside it",
            )
    held: dict[int, tuple[str, Tensor]] = {}
    for i, optimizer in enumerate(optimizers):
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        for j, parameter in enumerate(parameters):
            held.setdefault(id(parameter), (f"optimizers.{i}.{j}", parameter))
    owned = [(name, p) for name, p in named_parameters(model) if id(p) in held]
    ids = {id(p) for _, p in owned}
    tracked = [*owned, *(pair for key, pair in held.items() if key not in ids)]
    if not tracked:
        raise UsageError("hold no parameter", where="optimizers", hint="pass those that train")
    for name, parameter in tracked:
        if is_lazy(parameter):
            raise UsageError(
                "has no shape yet",
                where=f"parameter {name}",
                hint="run one forward pass before the recorder is made",
            )
    return tracked


def held_by(optimizers: Iterable[Optimizer]) -> list[int]:
    """The ids of all parameters that the optimizers hold: another list means other parameters."""
    return [id(p) for o in optimizers for group in o.param_groups for p in group["params"]]


def learning_rates(optimizers: Iterable[Optimizer]) -> tuple[float, ...]:
    """The learning rate of every parameter group, over all optimizers in order; none by hand."""
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    return tuple(float(group["lr"]) for group in groups if "lr" in group)


def describe_parameters(
    model: nn.Module, optimizers: Sequence[Optimizer]
) -> tuple[ParameterInfo, ...]:
    """What ``run.json`` says about every parameter; a tied one is named once, by its first name."""
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    group_of = {id(p): i for i, members in enumerate(groups) for p in members}
    names: dict[int, list[str]] = {}
    for name, parameter in named_parameters(model, remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    owned, flat = list(named_parameters(model)), flat_shards(model)
    whole = {} if flat is None else flat.shapes
    foreign = [(n, p) for n, p in tracked_parameters(model, optimizers) if id(p) not in names]
    return tuple(
        ParameterInfo(
            name=name,
            shape=whole.get(id(parameter), tuple(parameter.shape)),
            dtype=str(parameter.dtype).removeprefix("torch."),
            group=group_of.get(id(parameter), -1),
            tied=tuple(other for other in names.get(id(parameter), ()) if other != name),
            requires_grad=parameter.requires_grad,
        )
        for name, parameter in (*owned, *foreign)
    )


class ArrivalOrder:
    """In which order the gradients of the first backward arrive, nearest the loss first.

    Hooks note it and are removed once it is known, so that later steps pay nothing.

    Args:
        named_parameters: those to watch.
        known: the order, where an earlier part of the run has found it.
    """

    def __init__(
        self, named_parameters: Iterable[tuple[str, Tensor]], known: Sequence[str] = ()
    ) -> None:
        self.names: list[str] = list(known)
        self._hooks: list[RemovableHandle] = []
        self._last, self._group_from = -1, 0
        if not known:
            self._hooks = [
                parameter.register_post_accumulate_grad_hook(partial(self._note, name, i))
                for i, (name, parameter) in enumerate(named_parameters)
                if parameter.requires_grad and parameter.is_leaf
            ]

    def _note(self, name: str, place: int, parameter: Tensor) -> None:
        if name in self.names:
            return
        if not (is_distributed(parameter) and place > self._last):
            self._group_from = len(self.names)
        # Those of a sharded module come together, in network order: then its last is nearest.
        self.names.insert(self._group_from, name)
        self._last = place

    @property
    def settled(self) -> bool:
        """Is the order known?"""
        return not self._hooks and bool(self.names)

    def settle(self) -> None:
        """Call after a backward: stop watching where anything arrived."""
        if self._hooks and self.names:
            self.close()

    def close(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
