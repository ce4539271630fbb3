"""Random numbers that backward draws where forward drew others: recomputation gone wrong.

A function that recomputes its forward in backward must draw the same random numbers again. This
needs no knowledge of how it recomputes: each draw of forward is kept, and a draw of backward in the
same module is held against it. Where two draws cannot be told apart, nothing is claimed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from forensics.replay.applied.saved_tensors import fingerprint
from forensics.replay.tracing.call_site import Parts, call_site
from forensics.replay.tracing.node_sites import site_of_node
from forensics.replay.tracing.operator_call import operator_name

_DRAWS = frozenset(
    {
        *("native_dropout", "dropout", "bernoulli", "rand", "rand_like", "randn", "randn_like"),
        *("randint", "randint_like", "randperm", "normal", "uniform", "exponential", "multinomial"),
        *("geometric", "log_normal", "cauchy", "random", "rrelu_with_noise"),
    }
)

_Key = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class _Draw:
    """What forward drew: its fingerprints, and copies where it may have to be drawn again."""

    prints: tuple[tuple[float, int], ...]
    copies: tuple[Tensor, ...]

    @classmethod
    def of(cls, out: Any, *, keep: bool) -> _Draw:
        tensors = [tensor.detach() for tensor in _tensors(out)]
        copies = tuple(tensor.clone() for tensor in tensors) if keep else ()
        return cls(tuple(fingerprint(tensor) for tensor in tensors), copies)


class RandomDraws(TorchDispatchMode):
    """Keeps the draws of forward, and compares those of backward with them.

    Args:
        parts: who is who.
        repeat: give a draw of backward what forward drew.
    """

    def __init__(self, parts: Parts, *, repeat: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.others: list[tuple[str, str]] = []
        """Module and the user's line of each place where backward drew other numbers."""
        self._parts, self._repeat = parts, repeat
        self._kept: dict[_Key, list[_Draw]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = operator_name(func).rpartition(".")[2].lstrip("_")
        if name not in _DRAWS:
            return func(*args, **(kwargs or {}))
        node = torch._C._current_autograd_node()
        site = call_site(self._parts, depth=2, in_backward=node is not None)
        out = func(*args, **(kwargs or {}))
        key = name, site.module, tuple(_first(out).shape)
        if node is None:
            self._kept.setdefault(key, []).append(_Draw.of(out, keep=self._repeat))
            return out
        return self._again(key, out, node)

    def _again(self, key: _Key, out: Any, node: Any) -> Any:
        """A draw of backward: compare it with the one of forward, where there is exactly one."""
        kept = self._kept.get(key, [])
        if len(kept) != 1:
            return out
        (before,) = self._kept.pop(key)
        if before.prints == _Draw.of(out, keep=False).prints:
            return out
        made = site_of_node(node)
        self.others.append((made.module, made.source_line) if made else (key[1], ""))
        for target, value in zip(_tensors(out), before.copies, strict=self._repeat):
            target.copy_(value)
        return out


def _tensors(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [t for t in out if isinstance(t, Tensor)]


def _first(out: Any) -> Tensor:
    return _tensors(out)[0]
