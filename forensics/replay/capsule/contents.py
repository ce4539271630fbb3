"""What lies in a capsule, and reading it: a capsule can come from a stranger."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forensics.diagnose.capsule_verdict import FaultFacts
from forensics.errors import InputError
from forensics.record.checkpoints import why_unreadable
from forensics.record.saved_file import load_saved
from forensics.runlog.json_fields import FieldError, dataclass_from_json, plain_json
from forensics.runlog.manifest import Manifest

FORMAT_VERSION = 1
"""Version 1 (2026): the first."""
KIND = "forensics-capsule"

FACTS = "capsule.json"
STATE = "state.pt"
BATCH = "batch.pt"
RECIPE = "recipe_source.py"
OPERATOR = "op.pt"
REPRO = "repro.py"
REPRO_OPERATOR = "repro_op.py"

_LARGEST = 64 << 20


@dataclass(frozen=True, kw_only=True)
class CapsuleFacts:
    """The contents of ``capsule.json``.

    Attributes:
        format_version: of the capsule.
        kind: says that it is one.
        step: the bad step.
        run: directory of the run that it was cut out of.
        manifest: the run's ``run.json``.
        rows: recorded rows, present cells by column: of the bad step, and of those before it that
            a judgement goes by.
        expected: what a replay must come to.
        samples: indices of the samples kept; empty where the whole batch is.
        batch_size: samples of the recorded step.
        batch_stored: the batch lies in ``batch.pt``; otherwise the recipe makes it.
        recipe_file: name of the user's recipe file; empty for a registered recipe.
        recipe_sha256: of that file, as copied.
        replayed_by: name of the recipe that the capsule was written with.
        operator: full name of the operator whose inputs lie in ``op.pt``, or empty.
        operator_note: why there are none.
        missing: what the state lacks, a clause each.
    """

    format_version: int = FORMAT_VERSION
    kind: str = KIND
    step: int = 0
    run: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[Mapping[str, Any], ...] = ()
    expected: FaultFacts = field(default_factory=FaultFacts)
    samples: tuple[int, ...] = ()
    batch_size: int = 0
    batch_stored: bool = True
    recipe_file: str = ""
    recipe_sha256: str = ""
    replayed_by: str = ""
    operator: str = ""
    operator_note: str = ""
    missing: tuple[str, ...] = ()

    @property
    def recipe_name(self) -> str:
        """The name of the recipe: the one that replayed it, else the recorded one.

        A loop of one's own has recorded none.
        """
        if self.replayed_by:
            return self.replayed_by
        recipe = self.manifest.get("recipe")
        name = recipe.get("name") if isinstance(recipe, Mapping) else None
        return name if isinstance(name, str) else ""

    def to_text(self) -> str:
        """As ``capsule.json`` holds it."""
        return json.dumps(plain_json(self), allow_nan=False, indent=1, ensure_ascii=False) + "\n"


def read_facts(directory: Path) -> CapsuleFacts:
    """``capsule.json`` of a capsule, every field checked.

    Raises:
        InputError: there is none, or it is not one that this version can read.
    """
    path = part(directory, FACTS)
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) > _LARGEST:
            raise InputError(f"is larger than {_LARGEST >> 20} MiB: no capsule", where=path)
        data = json.loads(text)
    except OSError as error:
        raise InputError(error.strerror or str(error), where=path) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"is not readable as JSON ({str(error)[:120]})", where=path) from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise InputError("is no capsule", where=path)
    version = data.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise InputError(
            f"is of capsule format {version}; this version reads up to {FORMAT_VERSION}",
            where=path,
            hint="upgrade the checkout that forensics was installed from",
        )
    try:
        facts = dataclass_from_json(CapsuleFacts, data)
        Manifest.from_json(facts.manifest)
    except FieldError as error:
        raise InputError(f"is damaged: {error}", where=path) from error
    if not 0 <= facts.step < 1 << 62:
        raise InputError("is damaged: its step is no step", where=path)
    return facts


def part(directory: Path, name: str) -> Path:
    """The path of one part of a capsule.

    Raises:
        InputError: it is not there, is no file, or a link out of the capsule.
    """
    if not directory.is_dir():
        raise InputError("is no capsule: no such directory", where=directory)
    path = directory / name
    if path.is_symlink() and not path.resolve().is_relative_to(directory.resolve()):
        raise InputError("is a link out of the capsule", where=path)
    if not path.is_file():
        hint = "a capsule is the folder that `forensics bisect --capsule` wrote"
        raise InputError("is missing", where=path, hint=hint)
    return path


def load_part(directory: Path, name: str) -> Any:
    """A saved part, on the CPU and memory-mapped; nothing in the file can run code.

    Raises:
        InputError: it cannot be read, or holds more than tensors and plain values.
    """
    path = part(directory, name)
    try:
        return load_saved(path, mmap=True)
    except InputError as error:
        raise InputError(f"cannot be read (it {error.what})", where=path) from error
    except Exception as error:
        raise InputError(f"cannot be read ({why_unreadable(error)})", where=path) from error
