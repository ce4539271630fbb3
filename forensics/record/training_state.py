"""The full state of a training, gathered for a checkpoint and put back from one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from forensics.errors import InputError
from forensics.record.portable import NotPortableError, portable
from forensics.record.recipe import Training
from forensics.record.rng import restore_rng, rng_state

FORMAT = "forensics-checkpoint"
VERSION = 1
"""Version 1 (2026): the first."""


def gather_state(
    training: Training, step: int, parts: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """Everything the training needs to go on before ``step``.

    The keys are ``format``, ``version``, ``step``, ``model``, ``optimizers`` and ``schedulers``
    (a list each), ``scaler``, ``ema``, ``extra`` (by name), ``rng``, ``data`` (the position),
    ``threads``, and those of ``parts``. Tensors are not copied: save the state at once.

    Args:
        training: with its scaler and EMA in place.
        step: the state is the one before this step.
        parts: further objects with ``state_dict``, by key.

    Returns:
        The state, and one clause for each part that is missing from it.
    """
    missing: list[str] = []

    def part(name: str, owner: Any) -> Any:
        return _part(name, owner, missing)

    state = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "model": part("model", training.model),
        "optimizers": [part(f"optimizers.{i}", o) for i, o in enumerate(training.optimizers)],
        "schedulers": [part(f"schedulers.{i}", s) for i, s in enumerate(training.schedulers)],
        "scaler": part("scaler", training.scaler),
        "ema": part("ema", training.ema),
        "extra": {name: part(f"extra.{name}", owner) for name, owner in training.extra.items()},
        "rng": rng_state(),
        "data": {"position": step},
        "threads": torch.get_num_threads(),
        **{name: part(name, owner) for name, owner in parts.items()},
    }
    return state, missing


def restore_state(training: Training, state: Mapping[str, Any], *, where: object) -> None:
    """Put a gathered state back into a freshly built training; random generators come last.

    Args:
        training: as the recipe builds it, with its scaler and EMA in place.
        state: as loaded.
        where: the file, for errors.

    Raises:
        InputError: the state is of another training, or damaged.
    """
    put_part("state", lambda whole: _restore(training, whole, where), state, where)


def _restore(training: Training, state: Mapping[str, Any], where: object) -> None:
    if state.get("format") != FORMAT or state.get("version", 0) > VERSION:
        raise InputError("is no checkpoint that this version can resume from", where=where)

    def put(name: str, owner: Any, saved: Any) -> None:
        if owner is not None and saved is not None:
            put_part(name, owner.load_state_dict, saved, where)

    put("model", training.model, state["model"])
    for kind in ("optimizers", "schedulers"):
        owners, saved = getattr(training, kind), state[kind]
        if len(owners) != len(saved):
            raise InputError(f"has {len(saved)} {kind}, the recipe {len(owners)}", where=where)
        for i, (owner, entry) in enumerate(zip(owners, saved, strict=True)):
            put(f"{kind}.{i}", owner, entry)
    put("scaler", training.scaler, state["scaler"])
    put("ema", training.ema, state["ema"])
    for name, owner in training.extra.items():
        put(f"extra.{name}", owner, state["extra"].get(name))
    restore_rng(state["rng"])


def _part(name: str, owner: Any, missing: list[str]) -> Any:
    """One owner's state; None, and a clause in ``missing``, where a safe load could not take it."""
    if owner is None:
        return None
    if not hasattr(owner, "state_dict"):
        missing.append(f"{name}: has no state_dict")
        return None
    try:
        return portable(owner.state_dict(), name)
    except NotPortableError as error:
        missing.append(f"{name}: {error}, which cannot be saved safely")
        return None


def put_part(name: str, load: Callable[[Any], Any], saved: Any, where: object) -> None:
    """Load one part of a state; InputError where it does not fit, or makes no sense."""
    try:
        load(saved)
    except (
        RuntimeError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        OverflowError,
    ) as error:
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise InputError(f"does not fit this recipe's {name}: {line}", where=where) from error
