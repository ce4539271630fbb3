"""Which parameter an optimizer's state belongs to, claimed only where it can be proven.

An optimizer's ``state_dict`` numbers its parameters and does not name them. Where one group holds
all of a model's parameters, the numbers follow their order, and the shapes of the moments must
agree with all of them; else nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import InputError
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.inert_pickle import Built
from forensics.replay.saved_states.stored_tensor import StoredTensor

_COUNTERS = {"step", "num_batches_tracked"}


@dataclass(frozen=True)
class KnownParameters:
    """What a run's manifest says of its model.

    Attributes:
        names: of all parameters, tied names included.
        groups: the names in each parameter group, over all optimizers in order.
    """

    names: frozenset[str]
    groups: tuple[tuple[str, ...], ...]


def known_parameters(state: Path) -> KnownParameters | None:
    """What the run that a saved state lies in (``RUN/checkpoints/FILE``) says of its model."""
    from forensics.runlog.manifest import MANIFEST_NAME, read_manifest

    folder = state.absolute().parent.parent
    if not (folder / MANIFEST_NAME).is_file():
        return None
    try:
        parameters = read_manifest(folder).parameters
    except InputError:
        return None
    if not parameters:
        return None
    last = max(p.group for p in parameters)
    return KnownParameters(
        frozenset(name for p in parameters for name in (p.name, *p.tied)),
        tuple(tuple(p.name for p in parameters if p.group == g) for g in range(last + 1)),
    )


def owners_of(tree: Any, groups: Sequence[Sequence[str]] = ()) -> dict[str, str]:
    """The parameter by the path of its optimizer state, such as ``optimizers.0.state.3``.

    Args:
        tree: the whole state.
        groups: the parameters of every parameter group, over all optimizers in order, where a
            manifest tells them.
    """
    if not isinstance(tree, dict):
        return {}
    optimizers = _optimizers(tree)
    model = _model(tree)
    found: dict[str, str] = {}
    first = 0
    for path, optimizer in optimizers:
        order = [key for group in optimizer["param_groups"] for key in group["params"]]
        last = first + len(optimizer["param_groups"])
        told = [name for group in groups[first:last] for name in group]
        first = last
        guess = _whole_model(optimizer, model) if len(optimizers) == 1 else []
        keys = [key for key in order if isinstance(key, str)]  # as FSDP numbers them: by name
        for names in (keys, told, _own_names(optimizer), guess):
            if _all_fit(order, names, optimizer["state"], model):
                found |= {f"{path}.state.{k}": n for k, n in zip(order, names, strict=True)}
                break
    return found


def _whole_model(optimizer: Mapping[str, Any], model: Mapping[str, StoredTensor]) -> list[str]:
    """All parameters, where one group could hold them in the model's order."""
    if len(optimizer["param_groups"]) != 1:
        return []
    return [name for name in model if not roles.is_buffer(name)]


def _all_fit(
    order: Sequence[Any],
    names: Sequence[str],
    state: Mapping[Any, Any],
    model: Mapping[str, StoredTensor],
) -> bool:
    return 0 < len(names) == len(order) and all(
        _fits(state.get(key), model.get(name)) for key, name in zip(order, names, strict=True)
    )


def _optimizers(tree: Mapping[Any, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The optimizers' state dicts in a state, one or two levels down, by path."""
    found = []
    for key, value in tree.items():
        inner: Mapping[Any, Any] = {}
        if isinstance(value, dict):
            inner = {"": value, **{f".{k}": v for k, v in value.items()}}
        elif isinstance(value, list | tuple):
            inner = {f".{i}": entry for i, entry in enumerate(value)}
        found += [(f"{key}{k}", v) for k, v in inner.items() if _is_optimizer(v)]
    return found


def _is_optimizer(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and isinstance(value.get("state"), dict)
        and isinstance(value.get("param_groups"), list)
        and all(
            isinstance(g, dict) and isinstance(g.get("params"), list) for g in value["param_groups"]
        )
    )


def _own_names(optimizer: Mapping[str, Any]) -> list[str]:
    """``param_names``, which optimizers made of named parameters keep."""
    groups = optimizer["param_groups"]
    lists = [group.get("param_names") for group in groups]
    return [n for names in lists if isinstance(names, list) for n in names if isinstance(n, str)]


def _model(tree: Mapping[Any, Any]) -> dict[str, StoredTensor]:
    """The first dict of named tensors that is a model's, by the names it has there."""
    for key, value in tree.items():
        if isinstance(value, Built):
            value = value.entries
        if isinstance(value, dict) and roles.role_of(str(key)) == roles.PARAM:
            tensors = {str(k): v for k, v in value.items() if isinstance(v, StoredTensor)}
            if tensors:
                return tensors
    return {}


def _fits(state: Any, parameter: StoredTensor | None) -> bool:
    """Could this be the state of that parameter? A parameter that was never updated has none."""
    if parameter is None:
        return False
    if state is None:
        return True
    if not isinstance(state, dict):
        return False
    moments = [
        value
        for key, value in state.items()
        if isinstance(value, StoredTensor) and key not in _COUNTERS and value.size
    ]
    return all(value.size == parameter.size for value in moments)
