"""A state that somebody else's loop or trainer has saved, as one of this program's.

The model's weights must be there and fit. Optimizers, schedulers, scaler and average are taken
where they are and fit; the rest stays as the training was built, and is told. A Hugging Face or
Accelerate folder, a Lightning ``.ckpt`` and the usual dicts of ``torch.save`` are understood, by
the names that their parts have, and folders of torch.distributed.checkpoint. Nothing in them can
run code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from forensics.errors import InputError
from forensics.record.checkpoints import load_checkpoint
from forensics.record.recipe import Training
from forensics.record.training_state import FORMAT, gather_state
from forensics.replay.rerun.rank_shares import EXTRA
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.distributed import is_distributed_folder
from forensics.replay.saved_states.distributed_parts import distributed_parts
from forensics.replay.saved_states.finder import open_state
from forensics.replay.saved_states.mapped_file import refuse_outside

_LEVELS = ("module.", "_orig_mod.", "model.")
"""What wrappers and LightningModules put before every name."""
_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "model.pt", "model.bin")
_PARTS = {
    roles.OPTIMIZER: ("optimizer.pt", "optimizer.bin"),
    roles.SCHEDULER: ("scheduler.pt", "scheduler.bin"),
    roles.SCALER: ("scaler.pt",),
}


def adopted_state(path: Path, training: Training, step: int) -> tuple[dict[str, Any], list[str]]:
    """A saved state in this program's form, and what it lacks, a clause each.

    Args:
        path: a file, or a folder of one state.
        training: as the recipe builds it; what the state lacks is left as it is there.
        step: the state is the one before this step.

    Raises:
        InputError: it cannot be read safely, or its weights are another model's.
    """
    if path.is_file():
        whole = load_checkpoint(path) if path.suffix != ".safetensors" else {}
        if whole.get("format") == FORMAT:
            return whole, []
    parts = _parts_of(path, training)
    weights = parts.get(roles.PARAM)
    if not isinstance(weights, Mapping):
        raise InputError("holds no weights that a model could load", where=path)
    state, _ = gather_state(training, step, {})
    state["model"] = _fitted(weights, state["model"], path)
    missing = ["random generators"]
    for role, key, what in (
        (roles.OPTIMIZER, "optimizers", "the optimizer's state"),
        (roles.SCHEDULER, "schedulers", "the schedule"),
    ):
        taken = _as_many(parts.get(role), len(state[key]))
        if taken is None and state[key]:
            missing.append(what)
        state[key] = taken if taken is not None else state[key]
    for role, key in ((roles.SCALER, "scaler"), (roles.EMA, "ema")):
        owner = getattr(training, key)
        if parts.get(role) and owner is not None:
            state[key] = parts[role]
        elif state[key]:
            missing.append(f"the {key}")
    extra = [f"extra.{name}" for name in training.extra if name != EXTRA]
    return state, missing + extra


def _parts_of(path: Path, training: Training) -> dict[str, Any]:
    """The parts of a state by their role."""
    if is_distributed_folder(path):
        return distributed_parts(path, training)
    if not path.is_dir():
        if path.suffix == ".safetensors":
            return {roles.PARAM: dict(_tensors(path, path.parent))}
        return _by_role(load_checkpoint(path))
    weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
    found: dict[str, Any] = {}
    if weights is None:
        found[roles.PARAM] = dict(_tensors(path, path))
    elif weights.suffix == ".safetensors":
        found[roles.PARAM] = dict(_tensors(weights, path))
    else:
        found |= _by_role(_loaded(weights, path))
    for role, names in _PARTS.items():
        file = next((path / name for name in names if (path / name).is_file()), None)
        if file is not None:
            found[role] = _loaded(file, path)
    return found


def _loaded(file: Path, root: Path) -> dict[str, Any]:
    refuse_outside(file, root)
    return load_checkpoint(file)


def _by_role(whole: Mapping[str, Any]) -> dict[str, Any]:
    """The first part of each role; a dict of tensors alone is a model's."""
    if whole and all(isinstance(value, Tensor) for value in whole.values()):
        return {roles.PARAM: whole}
    found: dict[str, Any] = {}
    for key, value in whole.items():
        if isinstance(value, Mapping | list | tuple) and value:
            found.setdefault(roles.role_of(str(key)), value)
    return found


def _tensors(path: Path, root: Path) -> Iterator[tuple[str, Tensor]]:
    for value in open_state(path, root).values():
        if isinstance(value.value, Tensor):
            yield value.name, value.value


def _fitted(saved: Mapping[str, Any], own: Mapping[str, Any], where: Path) -> dict[str, Any]:
    """Weights under the model's own names; a tied tensor that was saved once stays tied."""
    weights = dict(saved)
    while weights and not weights.keys() & own.keys():
        level = next((p for p in _LEVELS if all(name.startswith(p) for name in weights)), None)
        if level is None:
            break
        weights = {name.removeprefix(level): value for name, value in weights.items()}
    tied = {id(_first_of(value, own)): name for name, value in own.items() if name in weights}
    for name, value in own.items():
        other = tied.get(id(_first_of(value, own)))
        if name not in weights and other is not None:
            weights[name] = weights[other]
    lost = [name for name in own if name not in weights]
    if lost:
        raise InputError(f"has no {lost[0]}, which the recipe's model has", where=where)
    return {name: weights[name] for name in own}


def _first_of(value: Any, own: Mapping[str, Any]) -> Any:
    """The first of the model's tensors that lies where this one does."""
    if not isinstance(value, Tensor) or not value.numel():
        return value
    same = (t for t in own.values() if isinstance(t, Tensor) and t.data_ptr() == value.data_ptr())
    return next((t for t in same if t.shape == value.shape), value)


def _as_many(saved: Any, count: int) -> list[Any] | None:
    """A state or a list of them as a list of the wanted length; None for any other."""
    if isinstance(saved, Mapping):
        saved = [saved]
    fits = isinstance(saved, Sequence) and len(saved) == count and count
    return list(saved) if fits else None
