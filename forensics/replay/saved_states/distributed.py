"""Folders of torch.distributed.checkpoint: ``.metadata``, a pickle, and ``*.distcp`` files.

``FileSystemReader.read_metadata`` is a plain ``pickle.load``: it runs what the folder's author
wrote. Here ``.metadata`` is read as data, and refused where it names anything but the classes that
make up such metadata. A ``.distcp`` file is a row of small files of ``torch.save``.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import InputError
from forensics.replay.saved_states import roles
from forensics.replay.saved_states.inert_pickle import Built, InertPickleError, read_pickle
from forensics.replay.saved_states.mapped_file import MappedFile
from forensics.replay.saved_states.owners import KnownParameters, known_parameters
from forensics.replay.saved_states.resume_parts import missing_parts
from forensics.replay.saved_states.saved_state import SavedState, StateValue
from forensics.replay.saved_states.state_tree import leaves, refusing
from forensics.replay.saved_states.stored_tensor import StoredTensor
from forensics.replay.saved_states.torch_file import read_torch_file
from forensics.replay.saved_states.zip_records import Window

METADATA = ".metadata"
_LARGEST = 256 << 20
_PLACES = (
    "torch.distributed.checkpoint.metadata",
    "torch.distributed.checkpoint.filesystem",
    "torch.distributed._shard.sharded_tensor.metadata",
    "torch.distributed._shard.metadata",
)
_CLASSES = [
    "Metadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "BytesStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
    "MEM_FORMAT_ENCODING",
    "_StorageInfo",
    "_StoragePrefix",
    "ShardMetadata",
]
_DTYPES = [
    "float64",
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "complex32",
    "complex64",
    "complex128",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint64",
    "uint32",
    "uint16",
    "uint8",
    "bool",
    "quint8",
    "qint8",
    "qint32",
]
ALLOWED = frozenset(
    [f"{place}.{name}" for place in _PLACES for name in _CLASSES]
    + [f"torch.{name}" for name in _DTYPES]
    + ["torch.Size", "torch.serialization._get_layout", "torch.device"]
    + ["collections.OrderedDict", "builtins.set", "copyreg._reconstructor", "builtins.object"]
    + [f"pathlib{m}.{p}Path" for m in ("", "._local") for p in ("Posix", "PurePosix", "Windows")]
)
"""What ``.metadata`` may name; nothing of it is imported even so."""
_WRAPPERS = frozenset(
    ["model", "models", "state_dict", "module", "net", "app", "model_state_dict", "model_state"]
)


@dataclass(frozen=True)
class _Item:
    """One entry of a ``.distcp`` file: a tensor, a part of one, or another value."""

    name: str
    offsets: tuple[int, ...]
    file: str
    start: int
    length: int


def is_distributed_folder(folder: Path) -> bool:
    """Is this a checkpoint of torch.distributed.checkpoint?"""
    return (folder / METADATA).exists()


def open_distributed_state(folder: Path) -> SavedState:
    """Open a folder of torch.distributed.checkpoint.

    Raises:
        InputError: it cannot be read safely; the message says why.
    """
    items = _items(folder)
    sizes = {}
    for item in items:
        if item.file not in sizes:
            sizes[item.file] = MappedFile(folder / item.file, folder).size
        if item.start + item.length > sizes[item.file]:
            raise InputError(
                f"is cut off: {item.name[:60]} would end at byte {item.start + item.length:,} of "
                f"{sizes[item.file]:,}",
                where=folder / item.file,
            )
    first = {item.name.partition(".")[0] for item in items}
    wrapped = bool(first & _WRAPPERS)
    known = known_parameters(folder)
    present = {roles.role_of(name) for name in first} | ({roles.PARAM} if not wrapped else set())
    return SavedState(
        path=folder,
        format=f"torch.distributed.checkpoint, {len(sizes)} files",
        step=_step(folder, items),
        size=sum(sizes.values()),
        values=lambda: _values(folder, items, known, wrapped=wrapped),
        missing=missing_parts(present),
    )


def _values(
    folder: Path, items: list[_Item], known: KnownParameters | None, *, wrapped: bool
) -> Iterator[StateValue]:
    """File after file, in the order they lie on the disk."""
    parts_of: dict[str, int] = {}
    for item in items:
        parts_of[item.name] = parts_of.get(item.name, 0) + 1
    parameters = {_inner(item.name, wrapped) for item in items}
    file: MappedFile | None = None
    for item in sorted(items, key=lambda item: (item.file, item.start)):
        path = folder / item.file
        if file is None or file.path != path:
            file = MappedFile(path, folder)
        tree = read_torch_file(Window(file, item.start, item.length)).tree
        part = f" (part at {', '.join(map(str, item.offsets))})" if parts_of[item.name] > 1 else ""
        with refusing(path):
            for inner, leaf in leaves(tree):
                name = ".".join((item.name, *inner))
                kind = _kind(name, wrapped)
                inner_name = _inner(name, wrapped)
                if kind == roles.PARAM and known is not None and inner_name not in known.names:
                    kind = roles.BUFFER
                owner = inner_name if kind == roles.PARAM else _owner(name, parameters)
                value = leaf.open() if isinstance(leaf, StoredTensor) else leaf
                yield StateValue(name + part, kind, owner, value)


def _kind(name: str, wrapped: bool) -> str:
    parts = name.split(".")
    bare = not wrapped and roles.role_of(parts[0]) in (roles.OTHER, roles.PARAM)
    return roles.kind_of(parts, bare=bare)


def _inner(name: str, wrapped: bool) -> str:
    return name.partition(".")[2] if wrapped else name


def _owner(name: str, parameters: set[str]) -> str:
    """The parameter in ``optim.state.layer.weight.exp_avg``."""
    inner = name.partition(".state.")[2].rpartition(".")[0]
    return inner if inner in parameters else ""


def _step(folder: Path, items: list[_Item]) -> int | None:
    """The step among the values that are no tensors."""
    for item in items:
        if item.name.rpartition(".")[2] in ("step", "global_step", "iteration") and (
            not item.offsets and ".state." not in item.name
        ):
            file = MappedFile(folder / item.file, folder)
            try:
                value = read_torch_file(Window(file, item.start, item.length)).tree
            except InputError:
                continue
            if type(value) is int and 0 <= value < 1 << 62:
                return value
    return None


def _items(folder: Path) -> list[_Item]:
    """What ``.metadata`` says lies where."""
    path = folder / METADATA
    file = MappedFile(path, folder)
    if file.size > _LARGEST:
        raise InputError(f"has {file.size:,} bytes", where=path)
    try:
        found = read_pickle(
            io.BytesIO(file.read(0, file.size)),
            reducers={"torch.Size": lambda args: tuple(args[0]) if args else ()},
            allowed=ALLOWED,
        )
        state = found.state
        items = [_item(key, info) for key, info in state["storage_data"].items()]
        _check_whole(state["state_dict_metadata"], items, path)
    except InertPickleError as error:
        raise InputError(str(error), where=path) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError("is no metadata of a distributed checkpoint", where=path) from error
    return items


def _item(key: Any, info: Any) -> _Item:
    if not isinstance(key, Built) or not isinstance(info, Built):
        raise TypeError("no index")
    name, offsets = key.state["fqn"], key.state.get("offset") or ()
    file, start, length = (info.state[part] for part in ("relative_path", "offset", "length"))
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in (start, length, *offsets)):
        raise ValueError("an offset is no natural number")
    if not isinstance(name, str) or not isinstance(file, str):
        raise TypeError("a name is no text")
    if info.state.get("transform_descriptors"):
        raise InertPickleError(f"{name[:60]} is stored through an extension that is not known here")
    if "\0" in file or Path(file).is_absolute() or ".." in Path(file).parts:
        raise InertPickleError(f"names a file outside its folder: {file[:80]!r}")
    return _Item(name, tuple(offsets), file, start, length)


def _check_whole(declared: Mapping[str, Any], items: list[_Item], path: Path) -> None:
    """Every value that the metadata declares must lie somewhere."""
    if not items:
        raise InputError("holds no tensors", where=path)
    lost = declared.keys() - {item.name for item in items}
    if lost:
        raise InputError(
            f"is not whole: {len(lost)} of {len(declared)} values lie nowhere, {min(lost)[:60]} "
            "first",
            where=path,
        )
