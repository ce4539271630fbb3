"""Per-parameter statistics of one step, taken before the clip and before the update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from forensics.record.clipping import GradNorms
from forensics.record.local_part import counts_here, is_distributed, local_part
from forensics.record.plain_names import named_buffers, named_parameters
from forensics.record.tensor_norms import largest_magnitudes, measure

_VALUES = ("value_l2", "value_nonfinite")
_READ_OFF = ("grad_absmax", "v_ratio")


@dataclass(frozen=True)
class PartOfTensor:
    """What this rank holds of a tensor that is spread over several.

    Attributes:
        l2, nonfinite, absmax, v_ratio: the statistics, of the part alone; None: not taken.
        numel: its elements.
        counts: it goes into a sum over all ranks.
    """

    l2: float
    nonfinite: int
    absmax: float | None
    v_ratio: float | None
    numel: int
    counts: bool


@dataclass
class Snapshot:
    """The rows of one snapshot.

    Attributes:
        step: of the snapshot.
        kinds: per kind (``param``, ``buffer``, ``ema``, ``optimizer``) the names in network order
            and per statistic one value a name, None where it was not taken.
        parts: by kind and name what this rank holds of the tensors that are spread over several;
            their rows are to be made of the parts of all.
    """

    step: int
    kinds: dict[str, tuple[list[str], dict[str, list[Any]]]]
    parts: dict[tuple[str, str], PartOfTensor] = field(default_factory=dict)

    def add_updates(self, updates: Mapping[str, float]) -> None:
        """Add what the step changed in each parameter (L2 norm by name)."""
        if "param" in self.kinds and updates:
            names, stats = self.kinds["param"]
            stats["update_l2"] = [updates.get(name) for name in names]

    def forget_bad_values(self) -> None:
        """Leave out values that are not finite: the step's own update may have made them so.

        For a snapshot that was taken after the update, for want of an occasion before it. The next
        one dates them. Buffers stay: they are what the forward pass made them.
        """
        for kind, (_, stats) in self.kinds.items():
            for row, bad in enumerate(stats["value_nonfinite"]):
                if bad and kind != "buffer":
                    stats["value_l2"][row] = stats["value_nonfinite"][row] = None

    def begin_as(self, earlier: Snapshot) -> None:
        """Take from a snapshot earlier in the same step what has changed since it was taken.

        Where several optimizers step one after the other, or a closure is evaluated again, the
        gradients are measured more than once a step, and tensors have been updated between. Their
        values count as of the first time, and so does what is read off a gradient that was not
        measured again: another backward pass may have added to it.
        """
        for kind, (names, stats) in self.kinds.items():
            was_names, was = earlier.kinds.get(kind, ([], {}))
            row_of = {name: row for row, name in enumerate(was_names)}
            for row, name in enumerate(names):
                if (old := row_of.get(name)) is None:
                    continue
                kept = _VALUES if _measured_again(stats, row, was, old) else (*_VALUES, *_READ_OFF)
                for column in kept:
                    if column in stats and column in was:
                        stats[column][row] = was[column][old]


class SnapshotTaker:
    """Takes snapshots of a training.

    Args:
        model: its parameters and floating buffers.
        parameters: those the optimizers hold, as ``tracked_parameters`` gives them.
        optimizers: their state tensors are snapshotted, too.
        ema: its ``shadow`` values by name, where it has some.
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[tuple[str, Tensor]],
        optimizers: Sequence[Optimizer],
        ema: Any = None,
    ) -> None:
        self._model, self._optimizers, self._ema = model, list(optimizers), ema
        owned = list(named_parameters(model))
        known = {id(parameter) for _, parameter in owned}
        foreign = [(name, p) for name, p in parameters if id(p) not in known]
        self._parameters = [*owned, *foreign]
        self._name_of = {id(parameter): name for name, parameter in self._parameters}

    @torch.no_grad()
    def take(self, step: int, norms: GradNorms | None, *, scaled: bool = False) -> Snapshot:
        """All statistics that can be had now, in one or two blocking reads.

        Args:
            step: the step under way.
            norms: its gradients as measured; None where backward did not run.
            scaled: the gradients are still multiplied by the loss scale, so that Adam's ratio
                would be wrong.
        """
        named = [(kind, name, tensor) for kind, name, tensor in self._values() if tensor.numel()]
        grads = dict(zip(norms.names, norms.grads, strict=True)) if norms is not None else {}
        grads = {name: grad for name, grad in grads.items() if grad.numel()}
        spread = {(k, n): tensor for k, n, tensor in named if is_distributed(tensor)}
        ratios = {} if scaled else dict(self._v_ratios(grads))
        found = measure(
            [tensor for _, _, tensor in named],
            [*largest_magnitudes(list(grads.values())), *ratios.values()],
        )
        absmax = dict(zip(grads, found.alongside, strict=False))
        ratio_of = dict(zip(ratios, found.alongside[len(grads) :], strict=True))
        kinds: dict[str, tuple[list[str], dict[str, list[Any]]]] = {}
        for (kind, name, _), l2, count in zip(named, found.l2, found.nonfinite, strict=True):
            names, stats = kinds.setdefault(kind, ([], {"value_l2": [], "value_nonfinite": []}))
            names.append(name)
            stats["value_l2"].append(l2)
            stats["value_nonfinite"].append(count)
        if norms is not None and "param" in kinds:
            names, stats = kinds["param"]
            stats.update(_gradient_statistics(names, norms, absmax, ratio_of))
        return Snapshot(step, kinds, _parts(spread, kinds, absmax, ratio_of))

    def _values(self) -> Iterator[tuple[str, str, Tensor]]:
        """(kind, name, tensor) of everything floating that a training carries from step to step."""
        for name, parameter in self._parameters:
            if parameter.is_floating_point() or parameter.is_complex():  # not a quantized one
                yield "param", name, parameter.detach()
        for name, buffer in named_buffers(self._model):
            if buffer.is_floating_point():
                yield "buffer", name, buffer
        for name, shadow in getattr(self._ema, "shadow", {}).items():
            if shadow.is_floating_point():
                yield "ema", name, shadow
        for optimizer in self._optimizers:
            for parameter, state in optimizer.state.items():
                owner = self._name_of.get(id(parameter))
                for key, value in state.items() if owner is not None else ():
                    if isinstance(value, Tensor) and value.is_floating_point() and key != "step":
                        yield "optimizer", f"{owner}.{key}", value

    def _v_ratios(self, grads: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """``sqrt(mean(g² / v̂))`` of every parameter with Adam's second moment, shape ().

        v̂ is the bias-corrected second moment that this step is going to divide by, so the ratio
        is near 1 in steady training and jumps where v̂ lags behind g² (the RMS_t of Wortsman et
        al., "Stable and low-precision training for large-scale vision-language models", 2023).
        """
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    name = self._name_of.get(id(parameter), "")
                    state = optimizer.state.get(parameter, {})
                    second = state.get("exp_avg_sq")
                    second = None if second is None else local_part(second)
                    grad = grads.get(name)
                    if second is not None and grad is not None and grad.shape == second.shape:
                        yield name, _v_ratio(grad, second, state["step"], group)


def _measured_again(
    stats: Mapping[str, list[Any]], row: int, was: Mapping[str, list[Any]], old: int
) -> bool:
    """Is the norm of this row's gradient another one than in the snapshot before?"""
    now, then = (s["grad_l2"][i] if "grad_l2" in s else None for s, i in ((stats, row), (was, old)))
    both_nan = now is not None and then is not None and now != now and then != then
    return not (both_nan or (now is not None and now == then))


def _parts(
    spread: Mapping[tuple[str, str], Tensor],
    kinds: Mapping[str, tuple[list[str], dict[str, list[Any]]]],
    absmax: Mapping[str, float],
    ratios: Mapping[str, float],
) -> dict[tuple[str, str], PartOfTensor]:
    """What this rank holds of tensors spread over several, by kind and name."""
    parts = {}
    for kind, (names, stats) in kinds.items() if spread else ():
        for name, l2, bad in zip(names, stats["value_l2"], stats["value_nonfinite"], strict=True):
            tensor = spread.get((kind, name))
            if tensor is not None:
                own = (absmax.get(name), ratios.get(name)) if kind == "param" else (None, None)
                size, counts = local_part(tensor).numel(), counts_here(tensor)
                parts[kind, name] = PartOfTensor(l2, bad, *own, size, counts)
    return parts


def _v_ratio(grad: Tensor, second: Tensor, step: Any, group: Mapping[str, Any]) -> Tensor:
    beta = group["betas"][1]
    square = grad.to(second.dtype).square()
    # In place: fresh pages for a temporary cost more than the arithmetic on them.
    next_second = second.mul(beta).add_(square, alpha=1 - beta)
    corrected = next_second.div_(1 - beta ** (step + 1)).clamp_min_(group["eps"] ** 2)
    return square.div_(corrected).mean().sqrt()


def _gradient_statistics(
    names: Sequence[str],
    norms: GradNorms,
    absmax: Mapping[str, float],
    ratios: Mapping[str, float],
) -> dict[str, list[Any]]:
    l2 = dict(zip(norms.names, norms.l2, strict=True))
    return {
        "grad_l2": [l2.get(name) for name in names],
        "grad_absmax": [absmax.get(name) for name in names],
        "grad_nonfinite": [norms.nonfinite.get(name, 0) if name in l2 else None for name in names],
        "v_ratio": [ratios.get(name) for name in names],
    }
