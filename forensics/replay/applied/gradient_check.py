"""Gradients that are finite and wrong: the step is run again as it should be, and compared.

Two things make backward differentiate another function than forward computed: an activation
checkpoint whose recomputation draws other random numbers, and a saved activation that is edited
without autograd's knowledge. Where a step shows either, it is run once more from the same state
with every checkpoint called plainly and every saved tensor as it was saved; gradients that then
differ were wrong. Nothing else is suspected, so noise of the hardware raises no alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from forensics.diagnose.bisection_result import ChainLink, FaultKind, Origin
from forensics.replay.applied.movement import SAMPLED
from forensics.replay.applied.random_draws import RandomDraws
from forensics.replay.applied.recomputation import Recomputation
from forensics.replay.applied.saved_tensors import EditedTensor, SavedTensors
from forensics.replay.tracing.call_site import Parts, Phase
from forensics.replay.tracing.judgement import facts_of

TOLERANCE = 0.02
"""Relative difference of a gradient from which on it is wrong. Recomputing in half precision moves
gradients by 1e-3 (eps of bfloat16: 8e-3), another dropout mask by 1."""


@dataclass
class GradientWatch:
    """What one run of a step shows of its gradients.

    Attributes:
        first: the first gradient of each parameter, before it is accumulated: a sample of its
            elements, flat float64. Later micro-batches may draw other random numbers.
        saved: the tensors saved for backward.
        recomputation: the checkpointed regions.
        draws: random numbers of forward and backward, for recomputations that are not torch's.
    """

    saved: SavedTensors
    recomputation: Recomputation
    draws: RandomDraws
    first: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, parts: Parts, *, sound: bool = False) -> GradientWatch:
        """A watch; with ``sound``, backward gets what forward made."""
        return cls(
            SavedTensors(model, repair=sound),
            Recomputation(parts, plain=sound),
            RandomDraws(parts, repeat=sound),
        )

    @property
    def suspicious(self) -> bool:
        """Is there anything that could make finite gradients wrong?"""
        return bool(self.saved.edited or self.recomputed)

    @property
    def recomputed(self) -> list[tuple[str, str]]:
        """Module and line of what may have recomputed something else than forward computed."""
        return self.recomputation.regions or self.draws.others

    @contextmanager
    def watching(self, model: nn.Module) -> Iterator[None]:
        """Watch a step while the context lasts."""
        nodes = {  # held, for a parameter holds its node only weakly
            name: _accumulator(parameter)
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and parameter.is_leaf
        }
        handles = [node.register_prehook(self._note(name)) for name, node in nodes.items()]
        try:
            with self.saved.watching(), self.recomputation.watching(), self.draws:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, name: str) -> Callable[[tuple[Tensor | None, ...]], None]:
        def look(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[0]
            if name not in self.first and gradient is not None:
                with _disable_current_modes(), torch.no_grad():
                    self.first[name] = _sample(gradient)

        return look


def _accumulator(parameter: Tensor) -> Any:
    """The node that adds to ``.grad``: what ``autograd.grad`` hands to a loop passes it by."""
    with torch.enable_grad():
        node: Any = parameter.expand_as(parameter).grad_fn
    return node.next_functions[0][0]


def wrong_gradients(got: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, float]:
    """The relative error of every gradient that is wrong, in the order they arrived.

    Args:
        got: as the step made them.
        wanted: as they should be.
    """
    errors: dict[str, float] = {}
    for name, gradient in got.items():
        if name not in wanted or wanted[name].shape != gradient.shape:
            continue
        size = max(float(wanted[name].norm()), float(gradient.norm()))
        error = float((gradient - wanted[name]).norm()) / size if size else 0.0
        if error > TOLERANCE:
            errors[name] = error
    return errors


def gradient_origin(
    actual: GradientWatch, sound: GradientWatch, sizes: Mapping[str, int]
) -> Origin | None:
    """The origin of wrong gradients; None where both runs agree.

    Args:
        actual: of the step as it is.
        sound: of the same step from the same state, as it should be.
        sizes: elements of every parameter, by name.
    """
    errors = wrong_gradients(actual.first, sound.first)
    if not errors:
        return None
    name = _nearest(errors, sizes)
    if actual.saved.edited:
        return _edited(actual.saved.edited[0], errors, name)
    return _recomputed(actual.recomputed, errors, name)


def _edited(edited: EditedTensor, errors: Mapping[str, float], name: str) -> Origin:
    where = f" in {edited.module}" if edited.module else ""
    return Origin(
        kind=FaultKind.APPLIED,
        phase=str(Phase.BACKWARD),
        operator=edited.autograd_node,
        autograd_node=edited.autograd_node,
        module=edited.module,
        parameter=name,
        parameters=tuple(errors),
        source_line=edited.source_line,
        inputs=() if edited.stats is None else (facts_of(edited.stats, "saved tensor"),),
        chain=_chain(edited.autograd_node, edited.module, name),
        summary=(
            f"a tensor that {edited.autograd_node}{where} saved was edited in place before "
            f"backward used it, without autograd's knowledge (.data?): the gradient of {name} is "
            f"off by {errors[name]:.0%}, {len(errors)} of them are wrong."
        ),
    )


def _recomputed(
    regions: Sequence[tuple[str, str]], errors: Mapping[str, float], name: str
) -> Origin:
    inside = [region for region in regions if f"{name}.".startswith(f"{region[0]}.")]
    module, line = max(inside or regions[-1:], key=lambda region: len(region[0]))
    return Origin(
        kind=FaultKind.APPLIED,
        phase=str(Phase.BACKWARD),
        operator="recompute",
        module=module,
        parameter=name,
        parameters=tuple(errors),
        source_line=line,
        chain=_chain("recompute", module, name),
        summary=(
            f"the activation checkpoint in {module or 'the model'} recomputes something else than "
            f"forward computed (preserve_rng_state=False under dropout?): the gradient of {name} "
            f"is off by {errors[name]:.0%}, {len(errors)} of them are wrong."
        ),
    )


def _chain(what: str, module: str, name: str) -> tuple[ChainLink, ...]:
    phase = str(Phase.BACKWARD)
    return (
        ChainLink(phase=phase, what=what, name=module),
        ChainLink(phase=phase, what="gradient", name=name),
    )


def _nearest(errors: Mapping[str, float], sizes: Mapping[str, int]) -> str:
    """The first wrong gradient, or the larger one of its layer."""
    first = next(iter(errors))
    layer = first.rpartition(".")[0]
    beside = [name for name in errors if name.rpartition(".")[0] == layer]
    return max(beside, key=lambda name: sizes.get(name, 0))


def _sample(gradient: Tensor) -> Tensor:
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    flat = dense.detach().reshape(-1)
    wide = torch.float32 if flat.device.type == "mps" else torch.float64
    return flat[:: max(1, flat.numel() // SAMPLED)].to(wide, copy=True)
