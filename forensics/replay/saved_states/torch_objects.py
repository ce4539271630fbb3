"""What the globals in a pickle of ``torch.save`` stand for, made of plain values alone."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from forensics.replay.saved_states.inert_pickle import Built, Named, Reducer, key_of
from forensics.replay.saved_states.stored_tensor import Storage, StoredTensor, dtype_named

COMPOUND = "a tensor of several parts"
"""Name of the object that stands for a quantised or sparse tensor."""
_FLOATS = {"f2": "e", "f4": "f", "f8": "d"}


class TorchObjects:
    """Reducers for ``read_pickle``; every tensor they make is kept in ``tensors``."""

    def __init__(self) -> None:
        self.tensors: list[StoredTensor] = []
        self.reducers: Mapping[str, Reducer] = {
            **_PLAIN,
            "torch._utils._rebuild_tensor": self._tensor,
            "torch._utils._rebuild_tensor_v2": self._tensor,
            "torch._utils._rebuild_tensor_v3": self._tensor_of_dtype,
            "torch._utils._rebuild_qtensor": self._quantised,
            "torch._utils._rebuild_meta_tensor_no_storage": self._meta,
            "torch._utils._rebuild_parameter": _first,
            "torch._utils._rebuild_parameter_with_state": _first,
            "torch._utils._rebuild_nested_tensor": _first,
            "torch._utils._rebuild_device_tensor_from_cpu_tensor": _first,
            "torch._utils._rebuild_device_tensor_from_numpy": _first,
            "torch._utils._rebuild_xla_tensor": _first,
            "torch._utils._rebuild_sparse_tensor": _sparse,
            "torch._tensor._rebuild_from_type_v2": self._subclass,
            "torch._tensor._rebuild_from_type": self._subclass,
        }

    def _keep(self, tensor: StoredTensor) -> StoredTensor:
        self.tensors.append(tensor)
        return tensor

    def _tensor(self, args: tuple[Any, ...]) -> Any:
        storage, offset, size, stride = args[:4]
        if not isinstance(storage, Storage):
            return Built("torch._utils._rebuild_tensor", args)
        return self._keep(StoredTensor(storage, storage.dtype, offset, tuple(size), tuple(stride)))

    def _tensor_of_dtype(self, args: tuple[Any, ...]) -> Any:
        storage, offset, size, stride = args[:4]
        if not isinstance(storage, Storage):
            return Built("torch._utils._rebuild_tensor_v3", args)
        return self._keep(
            StoredTensor(storage, dtype_named(args[6].name), offset, tuple(size), tuple(stride))
        )

    def _quantised(self, args: tuple[Any, ...]) -> Built:
        """The integers are finite by nature; the scales need not be."""
        scheme = args[4]
        return Built(COMPOUND, state={"int_repr": self._tensor(args), "scale": scheme[1]})

    def _meta(self, args: tuple[Any, ...]) -> StoredTensor:
        dtype, size, stride = args[:3]
        return self._keep(
            StoredTensor(None, dtype_named(dtype.name), 0, tuple(size), tuple(stride))
        )

    def _subclass(self, args: tuple[Any, ...]) -> Any:
        """A tensor subclass: the tensor it is, or (a wrapper such as DTensor) those it holds."""
        function, kind, inner, state = args
        reducer = self.reducers.get(function.name)
        made = reducer(inner) if reducer else None
        if isinstance(made, StoredTensor):
            return made
        return Built(kind.name if isinstance(kind, Named) else "", inner, state)


def _first(args: tuple[Any, ...]) -> Any:
    return args[0]


def _dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    """``OrderedDict``, ``Counter`` and their like from a dict or from pairs."""
    given = args[0] if args else {}
    if isinstance(given, dict):
        return dict(given)
    return {key_of(key, i): value for i, (key, value) in enumerate(given)}


def _empty_dict(args: tuple[Any, ...]) -> dict[Any, Any]:
    return {}


def _list(args: tuple[Any, ...]) -> list[Any]:
    return list(args[0]) if args else []


def _size(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(args[0]) if args else ()


def _sparse(args: tuple[Any, ...]) -> Built:
    """The values of a sparse tensor: the one thing of it that can be non-finite."""
    data = args[1]
    coordinates = isinstance(data[2], tuple)  # (indices, values, size, …), else (…, …, values, …)
    return Built(COMPOUND, state={"values": data[1] if coordinates else data[2]})


def _scalar(args: tuple[Any, ...]) -> Any:
    """A numpy scalar: ``(dtype, bytes)``."""
    dtype, raw = args[0], args[1] if len(args) > 1 else b""
    code = _FLOATS.get(dtype.args[0]) if isinstance(dtype, Built) and dtype.args else None
    if isinstance(raw, str):
        raw = raw.encode("latin1")
    return struct.unpack(f"<{code}", raw)[0] if code else 0


def _encode(args: tuple[Any, ...]) -> Any:
    """``_codecs.encode(text, "latin1")``: how old protocols write bytes."""
    return args[0].encode("latin1") if args[1:] == ("latin1",) else Built("_codecs.encode", args)


_PLAIN: Mapping[str, Reducer] = {
    "collections.OrderedDict": _dict,
    "collections.Counter": _dict,
    "collections.defaultdict": _empty_dict,
    "builtins.dict": _dict,
    "builtins.set": _list,
    "builtins.frozenset": _list,
    "builtins.list": _list,
    "builtins.tuple": _list,
    "torch.Size": _size,
    "torch.device": str,
    "_codecs.encode": _encode,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy._core.multiarray.scalar": _scalar,
}
