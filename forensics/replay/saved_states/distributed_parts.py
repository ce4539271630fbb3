"""A state that somebody saved through torch.distributed.checkpoint, as one process would have it.

A folder holds every tensor by one flat name; where it stood in the state that was saved, its
metadata tell. An optimizer that was saved for many ranks knows its parameters by name
(``get_optimizer_state_dict``), where a plain one counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from forensics.errors import InputError
from forensics.record.plain_names import named_parameters
from forensics.record.ranks.distributed_folder import DistributedFolder
from forensics.record.recipe import Training
from forensics.replay.saved_states import roles

_Groups = Sequence[Sequence[str]]


def distributed_parts(folder: Path, training: Training) -> dict[str, Any]:
    """The parts of a state by their role; every tensor is whole.

    Args:
        folder: with ``.metadata`` in it.
        training: whose optimizers are to load theirs; what is another's is left out.

    Raises:
        InputError: it cannot be read safely.
    """
    tree = _tree(folder)
    if len(tree) == 1 and isinstance(inner := next(iter(tree.values())), dict):  # {"app": {…}}
        known = {roles.role_of(key) for key, value in inner.items() if isinstance(value, dict)}
        tree = inner if roles.PARAM in known else tree
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping | list) and value:
            found.setdefault(roles.role_of(key), value)
    if roles.PARAM not in found:  # a model's tensors without a name around them
        found[roles.PARAM] = {k: value for k, value in tree.items() if isinstance(value, Tensor)}
    saved = found.pop(roles.OPTIMIZER, None)
    optimizers = _optimizers(saved, training)
    return found if optimizers is None else {**found, roles.OPTIMIZER: optimizers}


def _tree(folder: Path) -> dict[str, Any]:
    """What was given to ``save``, without values that cannot be read safely."""
    held = DistributedFolder(folder)
    values = held.read({n: torch.empty(size, dtype=t) for n, (size, t) in held.tensors.items()})
    try:
        values |= held.read(dict.fromkeys(held.others))
    except InputError:
        for name in held.others:
            with suppress(InputError):
                values |= held.read({name: None})
    tree: dict[Any, Any] = {}
    for name, value in values.items():
        *levels, last = held.paths.get(name, (name,))
        place = tree
        for level in levels:
            place = place.setdefault(level, {})
        place[last] = value
    return {str(key): _listed(value) for key, value in tree.items()}


def _listed(value: Any) -> Any:
    """Lists where they were: their places are integers, the keys of a dict are text."""
    if type(value) is not dict:
        return value
    inner = {key: _listed(entry) for key, entry in value.items()}
    if inner and all(isinstance(key, int) for key in inner):
        return [inner[key] for key in sorted(inner)]
    return inner


def _optimizers(saved: Any, training: Training) -> list[Any] | None:
    """The state of each optimizer as it loads it; None where one is not there."""
    owners = {id(p): name for name, p in named_parameters(training.model)}
    each = saved if isinstance(saved, list) else [saved] * len(training.optimizers)
    if len(each) != len(training.optimizers):
        return None
    found = [_counted(s, o, owners) for s, o in zip(each, training.optimizers, strict=True)]
    return None if None in found else found


def _counted(saved: Any, optimizer: Optimizer, owners: Mapping[int, str]) -> Any:
    """A state by names, of this optimizer's parameters and maybe others', by their places."""
    own = optimizer.state_dict()["param_groups"]
    names = [[owners.get(id(p), "") for p in g["params"]] for g in optimizer.param_groups]
    if not isinstance(saved, Mapping):
        return None
    if not saved.keys() & {"state", "param_groups"}:
        saved = _nested(saved, names)
    state, groups = saved.get("state", {}), saved.get("param_groups", [])
    places = {name: place for place, name in enumerate(chain.from_iterable(names))}
    if groups and not any(isinstance(p, str) for group in groups for p in group["params"]):
        places = {str(place): place for place in places.values()}  # it was counted when saved
        chosen = groups if len(groups) == len(own) else []
    else:
        chosen = [g for n in names for g in groups if set(g["params"]) == set(n)]
    if len(chosen) != len(own):
        return None
    told = [{**group, "params": mine["params"]} for group, mine in zip(chosen, own, strict=True)]
    moments = {places[name]: held for name, held in state.items() if name in places}
    return {"state": moments, "param_groups": told}


def _nested(flat: Mapping[str, Any], names: _Groups) -> dict[str, Any]:
    """The same of one level, ``state.NAME.exp_avg`` and ``param_groups.NAME.lr``."""

    def of(name: str, part: str) -> dict[str, Any]:
        start = f"{part}.{name}."
        ends = {key.removeprefix(start): v for key, v in flat.items() if key.startswith(start)}
        return {end: value for end, value in ends.items() if "." not in end}

    state = {name: of(name, "state") for name in chain.from_iterable(names)}
    return {
        "state": {name: held for name, held in state.items() if held},
        "param_groups": [{**of(n[0], "param_groups"), "params": list(n)} for n in names if n],
    }
