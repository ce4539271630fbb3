"""From ``run.json`` back to a recipe, its config and its device, trusting nothing that it names."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from forensics.errors import ForensicsError, NotReplayableError
from forensics.record.config import Config
from forensics.record.precision import Precision, choose_device, choose_precision
from forensics.record.provenance import package_version, processor_name
from forensics.record.recipe import Recipe
from forensics.record.recipe_lookup import find_recipe, split_reference
from forensics.record.threads import threads_for
from forensics.runlog.manifest import Manifest

Say = Callable[[str], None]

_TRAINERS = ("transformers", "lightning", "pytorch-lightning")
"""Packages whose callbacks note their release in ``run.json``."""
_WHOLE = (
    "trained with sharded parameters ({}), replayed with whole ones: sums are made in another "
    "order, so that rows agree to rounding, not bit for bit"
)
MOST_RANKS = 1024
"""Ranks that one process replays one after the other: a step takes as many times as long."""


@dataclass(frozen=True)
class Rebuilt:
    """What a replay is made of.

    Attributes:
        kind: the recipe's class.
        config: as recorded.
        device: where the replay runs.
        precision: as recorded, on that device.
        cross_device: recorded on another type of device.
        exact: the same bits can be expected: a CPU, the same code, torch, threads and processor.
        notes: what differs, a sentence each.
        other_code: the recipe is not what was recorded, as far as can be told.
    """

    kind: type[Recipe]
    config: Config
    device: torch.device
    precision: Precision
    cross_device: bool
    exact: bool
    notes: tuple[str, ...]
    other_code: bool = False


def rebuild(
    manifest: Manifest, *, recipe: str | None = None, device: str | None = None, say: Say = print
) -> Rebuilt:
    """Find what a run was made of.

    A recipe is looked up among the installed packages by its name. A file is loaded only where
    the user names it: a run directory can come from a stranger, and loading a file runs it.

    Args:
        manifest: of the run.
        recipe: what the user names: a registered name or ``file.py:name``.
        device: the device to replay on; by default the recorded type where this machine has it.
        say: told what the user should know.

    Raises:
        NotReplayableError: no recipe, or not one that fits.
        InputError, UsageError: the recipe that the user names cannot be loaded.
    """
    kind = find_recipe(recipe) if recipe else _recorded_recipe(manifest)
    _check_ranks(manifest, kind)
    config = _config(manifest, kind)
    wanted = device or manifest.device or "cpu"
    lacks: list[str] = []
    target = choose_device(wanted.partition(":")[0] if device is None else wanted, lacks.append)
    precision = (
        Precision(manifest.precision, target.type)
        if manifest.precision
        else choose_precision(config.precision, target, lambda _: None)
    )
    recorded_on = manifest.device.partition(":")[0] or "cpu"
    cross = recorded_on != target.type
    code = [*_other_recipe(manifest, kind), *_other_code(manifest, recipe)]
    other = [*_differences(manifest, target), *code]
    notes = list(other)
    if cross:
        notes.insert(0, f"recorded on {recorded_on}, replayed on {target.type}: not the same bits")
    if device is not None:  # whoever asks for one wants to know that it is not there
        notes[:0] = [text.replace("recording on", "replaying on") for text in lacks]
    if manifest.sharding:
        notes.append(_WHOLE.format(manifest.sharding))
    for note in notes:
        say(note)
    # Gradients that a reduction has laid out and added up can differ in their last bits.
    # A loop of one's own has recorded no recipe: this one may compute the same in other last bits.
    known = bool(manifest.recipe) and manifest.world_size == 1
    exact = target.type == "cpu" and not cross and not other and known
    return Rebuilt(kind, config, target, precision, cross, exact, tuple(notes), bool(code))


def _check_ranks(manifest: Manifest, kind: type[Recipe]) -> None:
    """Can one process make the steps of all ranks?"""
    size = manifest.world_size
    if size > 1 and kind.step is not None:
        raise NotReplayableError(
            f"was trained on {size} ranks by a step of its own, which reduces its gradients where "
            "one process cannot",
            where="recipe",
        )
    if size > MOST_RANKS:
        raise NotReplayableError(f"trained on {size:,} ranks: too many for one process")


def _recorded_recipe(manifest: Manifest) -> type[Recipe]:
    name, file = _text(manifest, "name"), _text(manifest, "file")
    if not name and not file:
        raise NotReplayableError(
            "run.json names no recipe",
            where="recipe",
            hint=_what_to_name(manifest),
        )
    if file or split_reference(name)[0] is not None:
        shown = Path(file or name).name
        raise NotReplayableError(
            f"was recorded from the file {shown}, and a file is loaded only if you name it",
            where="recipe",
            hint=f"if you trust it: --recipe path/to/{shown}:{name or 'NAME'}",
        )
    try:
        return find_recipe(name)
    except ForensicsError as error:
        raise NotReplayableError(
            f"{error.what}: it is not installed here",
            where="recipe",
            hint="name the file that holds it: --recipe path/to/file.py:name",
        ) from error


def _what_to_name(manifest: Manifest) -> str:
    """What stands in for a recipe where a trainer recorded the run."""
    if any(name in manifest.versions for name in _TRAINERS):
        return "name the function that makes the trainer: --recipe train.py:make_trainer"
    return "name the one that trains it: --recipe path/to/file.py:name"


def _config(manifest: Manifest, kind: type[Recipe]) -> Config:
    saved = manifest.recipe.get("config", {})
    try:
        config = Config.from_dict(saved, base=kind.defaults, where="run.json")
        # The recorder was told the clip of the loop; the recipe's own default is another's.
        return config if manifest.recipe else replace(config, max_norm=manifest.max_norm)
    except (ForensicsError, AttributeError, TypeError, ValueError) as error:
        what = error.what if isinstance(error, ForensicsError) else str(error)
        raise NotReplayableError(
            f"the recorded config does not fit the recipe {kind.name} ({what})",
            where="recipe",
            hint="is it the version of the recipe that was recorded?",
        ) from error


def _differences(manifest: Manifest, device: torch.device) -> list[str]:
    """What makes other bits on the same type of device."""
    found = []
    recorded, here = manifest.versions.get("torch"), package_version("torch")
    if recorded and recorded != here:
        found.append(f"recorded with torch {recorded}, replayed with {here}")
    if device.type == "cpu":
        name = processor_name()
        if manifest.processor and manifest.processor != name:
            found.append(f"recorded on a processor {manifest.processor}, replayed on {name}")
        threads = threads_for(manifest.threads)
        if manifest.threads not in (0, threads):
            found.append(f"recorded with {manifest.threads} threads, replayed with {threads}")
    return found


def _other_recipe(manifest: Manifest, kind: type[Recipe]) -> list[str]:
    """The recipe that the user names against the recorded one."""
    recorded = _text(manifest, "name")
    if not recorded or recorded == kind.name:
        return []
    return [f"the recipe {kind.name} is not {recorded}, which was recorded"]


def _other_code(manifest: Manifest, recipe: str | None) -> list[str]:
    """The user's file against the recorded one."""
    path = split_reference(recipe)[0] if recipe else None
    recorded = _text(manifest, "file_sha256")
    if path is None or not recorded:
        return []
    try:
        same = hashlib.sha256(path.read_bytes()).hexdigest() == recorded
    except OSError:
        return []
    return [] if same else [f"{path.name} is not the file that was recorded: it has changed since"]


def _text(manifest: Manifest, key: str) -> str:
    value: Any = manifest.recipe.get(key, "")
    return value if isinstance(value, str) else ""
