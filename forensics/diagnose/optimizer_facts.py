"""What the optimizer does to the size of a gradient, as far as run.json names it."""

from __future__ import annotations

from forensics.diagnose.signals import Signals

_ADAPTIVE = ("ada", "lamb", "rmsprop", "lion", "shampoo", "soap", "muon", "novograd")
"""Parts of the names of optimizers whose update does not grow with the gradient."""


def divides_by_its_size(signals: Signals) -> bool | None:
    """Does the update keep its size whatever the gradient's (Adam and its like)? None: unknown."""
    manifest = signals.run.manifest
    name = str(manifest.optimizer.get("name", "")).lower() if manifest is not None else ""
    return any(part in name for part in _ADAPTIVE) if name else None


def climbs_the_loss(signals: Signals) -> bool:
    """Was the optimizer made to maximize what backward is called on?"""
    manifest = signals.run.manifest
    return manifest is not None and manifest.optimizer.get("maximize") is True
