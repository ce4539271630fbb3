"""Reading a folder of torch.distributed.checkpoint without running anything that is in it.

torch's own reader takes ``.metadata`` and every value that is no tensor by a plain ``pickle.load``.
"""

from __future__ import annotations

import io
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from forensics.errors import InputError
from forensics.record.saved_file import MOST_EXPANDED

_MODULES = ("torch.distributed.checkpoint.metadata", "torch.distributed.checkpoint.filesystem")
_CLASSES = frozenset(
    (
        "Metadata",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "BytesStorageMetadata",
        "MetadataIndex",
        "StorageMeta",
        "_StorageInfo",
        "_StoragePrefix",
        "_MEM_FORMAT_ENCODING",
    )
)
_OTHERS = frozenset(
    (
        "torch.Size",
        "torch.device",
        "torch.serialization._get_layout",
        "collections.OrderedDict",
        "builtins.set",
        "pathlib.PosixPath",
        "pathlib.PurePosixPath",
        "pathlib.WindowsPath",
    )
)
_SLACK = 1 << 20


class DistributedFolder:
    """What a folder holds.

    Args:
        path: with ``.metadata`` in it.

    Raises:
        InputError: it cannot be read safely.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            found = _Reader(path).read_metadata()
            entries = found.state_dict_metadata
            self.tensors: dict[str, tuple[torch.Size, torch.dtype]] = {
                name: (entry.size, entry.properties.dtype)
                for name, entry in entries.items()
                if isinstance(entry, TensorStorageMetadata)
            }
            self.others = entries.keys() - self.tensors.keys()
            self.paths = {n: tuple(at) for n, at in (found.planner_data or {}).items()}
            """By name the keys that led to a value in the state that was saved, as far as known;
            an integer is a place in a list."""
        except (OSError, pickle.UnpicklingError, AttributeError, TypeError, EOFError) as error:
            line = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
            raise InputError(f"is no readable checkpoint ({line})", where=path) from error
        held = sum(part.stat().st_size for part in path.iterdir())
        claimed = sum(size.numel() * dtype.itemsize for size, dtype in self.tensors.values())
        if claimed > MOST_EXPANDED * held + _SLACK:
            raise InputError(f"claims {claimed:,} bytes of tensors and has {held:,}", where=path)

    def read(self, targets: Mapping[str, Any]) -> dict[str, Any]:
        """Fill tensors in place, each rank its own parts; other values come as they were saved.

        Args:
            targets: by name a tensor of the size that was saved, or None for another value.

        Raises:
            InputError: something is missing or damaged.
        """
        state = dict(targets)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that this is one process, where it is
                load(state, storage_reader=_Reader(self._path), planner=_Planner(), no_dist=True)
        except (Exception, CheckpointException) as error:  # the latter is no Exception
            line = str(error).strip().splitlines()[-1][:160] if str(error).strip() else "damaged"
            raise InputError(f"is no readable checkpoint ({line})", where=self._path) from error
        return state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        known = (module in _MODULES and name in _CLASSES) or f"{module}.{name}" in _OTHERS
        dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if known or dtype:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, and nothing of it was run")


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            found = _Unpickler(file).load()
        if not isinstance(found, Metadata):
            raise pickle.UnpicklingError("it is no metadata")
        found.storage_meta = found.storage_meta or StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


class _Planner(DefaultLoadPlanner):
    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)
