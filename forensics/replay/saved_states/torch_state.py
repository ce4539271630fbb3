"""A file of ``torch.save`` as a saved state: this program's, Lightning's, or anybody's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from forensics.errors import InputError
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.inert_pickle import Built
from forensics.replay.saved_states.mapped_file import MappedFile
from forensics.replay.saved_states.owners import KnownParameters, owners_of
from forensics.replay.saved_states.resume_parts import missing_parts, roles_in
from forensics.replay.saved_states.saved_state import SavedState, StateValue
from forensics.replay.saved_states.state_tree import built_names, leaves, refusing
from forensics.replay.saved_states.stored_tensor import StoredTensor
from forensics.replay.saved_states.torch_file import read_torch_file
from forensics.replay.saved_states.torch_objects import COMPOUND
from forensics.replay.saved_states.zip_records import Window

_STEP_KEYS = ("step", "global_step", "iteration", "iter", "num_updates", "steps")
_DTENSOR = re.compile(r"(\.\d+)?\._local_tensor\Z")
"""Where a DTensor keeps its rank's part."""
_MODULE_PARTS = ("_modules", "_parameters", "_buffers")


def open_torch_state(
    path: Path, root: Path | None = None, known: KnownParameters | None = None
) -> SavedState:
    """Open a file of ``torch.save``.

    Args:
        path: the file.
        root: the folder it must lie in; None where the user named the file.
        known: what a manifest says of the model.

    Raises:
        InputError: it cannot be read safely; the message says why.
    """
    file = MappedFile(path, root)
    found = read_torch_file(Window(file, 0, file.size))
    tree = _contents(found.tree)
    if not found.tensors:
        raise InputError("holds no tensors", where=path)
    present = {roles.PARAM} if is_bare(tree) else roles_in(tree)
    if _plain_models(tree):
        present.add(roles.PARAM)
    left_out = built_names(tree)
    return SavedState(
        path=path,
        format=_format(tree, found.format),
        step=step_inside(tree),
        size=file.size,
        values=lambda: tree_values(tree, path, known=known),
        missing=missing_parts(present),
        notes=(left_out_note(left_out),) if left_out else (),
    )


def tree_values(
    tree: Any, path: Path, *, prefix: str = "", known: KnownParameters | None = None
) -> Iterator[StateValue]:
    """The values of a tree of plain values and stored tensors.

    Args:
        tree: what a pickle held.
        path: the file, for errors.
        prefix: what stands before every name, and decides the kind: ``optimizer``.
        known: what a manifest says of the model.
    """
    namer = _Namer(tree, prefix, known)
    with refusing(path):
        for parts, leaf in leaves(tree):
            value = leaf.open() if isinstance(leaf, StoredTensor) else leaf
            yield namer.named((prefix, *parts) if prefix else parts, value)


class _Namer:
    """Tells the kind and the parameter of every value of one tree."""

    def __init__(self, tree: Any, prefix: str, known: KnownParameters | None) -> None:
        self._bare = not prefix and is_bare(tree)
        self._models = set() if prefix else _plain_models(tree)
        self._known = known
        groups = known.groups if known else ()
        self._owners = owners_of({prefix: tree} if prefix else tree, groups)

    def named(self, parts: tuple[str, ...], value: Tensor | float) -> StateValue:
        name = ".".join(part for part in parts if part not in _MODULE_PARTS)
        name = _DTENSOR.sub("", name)
        if parts[:1] and parts[0] in self._models:
            kind = roles.kind_of(parts[1:], bare=True)
        else:
            kind = roles.kind_of(parts, bare=self._bare)
        top = self._bare or parts[0] in _MODULE_PARTS
        inner = name if top else name.partition(".")[2] or name
        if kind == roles.EMA:
            inner = inner.removeprefix("shadow.").removeprefix("module.")
        if self._known and kind in (roles.PARAM, roles.BUFFER) and parts[0] == "model":
            kind = roles.PARAM if inner in self._known.names else roles.BUFFER
        return StateValue(name, kind, self._parameter(name, kind, inner), value)

    def _parameter(self, name: str, kind: str, inner: str) -> str:
        if kind == roles.PARAM:
            return inner
        if kind == roles.EMA:
            known = inner in self._known.names if self._known else not roles.is_buffer(inner)
            return inner if known else ""
        return self._owners.get(name.rpartition(".")[0], "")


def _plain_models(tree: Any) -> set[str]:
    """Keys that say nothing, under which lies nothing but named tensors: a model's state dict."""
    if not isinstance(tree, dict):
        return set()
    return {
        str(key)
        for key, value in tree.items()
        if roles.role_of(str(key)) == roles.OTHER
        and is_bare(value)
        and any(str(name).endswith(("weight", "bias")) for name in value)
    }


def is_bare(tree: Any) -> bool:
    """Is this a model's ``state_dict`` and nothing else?"""
    return (
        isinstance(tree, dict)
        and any(_is_tensor(value) for value in tree.values())
        # A module may keep anything under that name: Transformer Engine its fp8 scales.
        and all(_is_tensor(v) or str(k).endswith("_extra_state") for k, v in tree.items())
    )


def _is_tensor(value: Any) -> bool:
    return isinstance(value, StoredTensor) or (isinstance(value, Built) and value.name == COMPOUND)


def step_inside(tree: Any) -> int | None:
    """The step that a state says it is of; None where it says none."""
    if not isinstance(tree, dict):
        return None
    found = (tree.get(key) for key in _STEP_KEYS)
    return next((v for v in found if type(v) is int and 0 <= v < 1 << 62), None)


def left_out_note(names: Sequence[str]) -> str:
    """The sentence about objects that were not rebuilt."""
    shown = ", ".join(name[:60] for name in names[:4])
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"Objects that only code could rebuild were left as they are: {shown}{more}."


def _contents(tree: Any) -> Any:
    """The tree itself, or the one that a pickled module keeps its tensors in."""
    if isinstance(tree, Built) and isinstance(tree.state, dict) and "_modules" in tree.state:
        return {key: tree.state[key] for key in _MODULE_PARTS if key in tree.state}
    return tree


def _format(tree: Any, plain: str) -> str:
    if isinstance(tree, dict):
        if tree.get("format") == "forensics-checkpoint":
            return "forensics"
        if "pytorch-lightning_version" in tree:
            return "Lightning"
    return plain
