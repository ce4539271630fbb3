"""Is a saved state finite, and where not? The answer lies beside each checkpoint, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.local_part import local_part
from forensics.record.plain_names import named_parameters
from forensics.record.readback import read_scalars
from forensics.record.tensor_norms import largest_magnitudes
from forensics.runlog.checkpoint_files import BadTensor as BadTensor

SCANNED = ("model", "optimizers", "schedulers", "scaler", "ema", "extra")
"""The parts of a state that the training computes with."""

_KIND_OF_PART = {"optimizers": "optimizer", "ema": "ema", "scaler": "scaler"}


class HealthScan:
    """Scans the states of one run, in the order they are saved.

    A NaN is bad anywhere. An Inf is bad in parameters, their moments and averages, the learning
    rate and the loss scale. Elsewhere (a mask, the best loss so far) it may be meant, and is bad
    only where an earlier state was finite.

    Args:
        model: its parameter names tell parameters from buffers.
        optimizers: whose state belongs to which parameter.
    """

    def __init__(self, model: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        names = {id(p): name for name, p in named_parameters(model)}
        tied = named_parameters(model, remove_duplicate=False)
        self._owner = {f"model.{name}": names[id(p)] for name, p in tied}
        self._owner |= {f"ema.shadow.{name}": name for name in names.values()}
        for i, optimizer in enumerate(optimizers):
            members = [p for group in optimizer.param_groups for p in group["params"]]
            for j, parameter in enumerate(members):
                self._owner[f"optimizers.{i}.state.{j}"] = names.get(id(parameter), "")
        self._finite_before: set[str] = set()

    def scan(self, state: Mapping[str, Any]) -> tuple[list[BadTensor], dict[str, Any]]:
        """What is bad in a state, and per kind the finite tensor with the largest element.

        One foreach pass and one blocking read; more reads only where something is not finite.
        """
        parts = [part for part in SCANNED if part in state]
        leaves = [leaf for part in parts for leaf in leaves_of(part, state[part])]
        tensors = {name: leaf for name, leaf in leaves if isinstance(leaf, Tensor)}
        largest = dict(
            zip(tensors, read_scalars(largest_magnitudes(list(tensors.values()))), strict=True)
        )
        largest |= {name: abs(leaf) for name, leaf in leaves if not isinstance(leaf, Tensor)}
        suspects = [(name, leaf) for name, leaf in leaves if not math.isfinite(largest[name])]
        bad = [found for name, leaf in suspects if (found := self._judge(name, leaf))]
        finite = {name: value for name, value in largest.items() if math.isfinite(value)}
        self._finite_before |= finite.keys()
        return bad, self._extremes({name: finite[name] for name in tensors if name in finite})

    def _judge(self, name: str, leaf: Tensor | float) -> BadTensor | None:
        """A suspect that is really bad, else None."""
        if isinstance(leaf, Tensor):
            part = local_part(leaf)
            nan, inf = map(int, read_scalars([part.isnan().sum(), part.isinf().sum()]))
            numel = leaf.numel()
        else:
            nan, inf, numel = int(math.isnan(leaf)), int(math.isinf(leaf)), 1
        kind, parameter = self._kind(name), self._parameter(name)
        strict = bool(parameter) or kind in ("lr", "scaler")
        if not is_bad(nan, strict=strict, finite_before=name in self._finite_before):
            return None
        return BadTensor(name, kind, parameter, nan, inf, numel)

    def _kind(self, name: str) -> str:
        if name.rpartition(".")[2] == "lr":
            return "lr"
        part = name.partition(".")[0]
        if part == "model":
            return "param" if name in self._owner else "buffer"
        return _KIND_OF_PART.get(part, "other")

    def _parameter(self, name: str) -> str:
        """Whose value, average or optimizer state this is."""
        return self._owner.get(name) or self._owner.get(name.rpartition(".")[0], "")

    def _extremes(self, largest: Mapping[str, float]) -> dict[str, Any]:
        return largest_by_kind((name, self._kind(name), value) for name, value in largest.items())


def is_bad(nan: int, *, strict: bool, finite_before: bool) -> bool:
    """Is a value that is not finite bad?

    Args:
        nan: elements of it that are NaN; it is infinite where there are none.
        strict: it is a parameter, a moment, an average, a learning rate or a loss scale.
        finite_before: an earlier state of the run had it finite.
    """
    return nan > 0 or strict or finite_before


def largest_by_kind(values: Iterable[tuple[str, str, float]]) -> dict[str, Any]:
    """Per kind ``{"name", "absmax"}`` of the largest of (name, kind, largest magnitude)."""
    extremes: dict[str, Any] = {}
    for name, kind, value in values:
        if name.endswith(".step"):
            continue  # an optimizer's step count says nothing
        if kind not in extremes or value > extremes[kind]["absmax"]:
            extremes[kind] = {"name": name, "absmax": value}
    return extremes


def leaves_of(name: str, value: Any) -> Iterator[tuple[str, Tensor | float]]:
    """The floating tensors that have elements and the floats of a nested state, by dotted path."""
    if isinstance(value, Tensor):
        if value.numel() and (value.is_floating_point() or value.is_complex()):
            yield name, value
    elif isinstance(value, float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, entry in value.items():
            yield from leaves_of(f"{name}.{key}", entry)
    elif isinstance(value, list | tuple):
        for i, entry in enumerate(value):
            yield from leaves_of(f"{name}.{i}", entry)
