"""Random number generators: seeding all of them, and their state in a form that loads safely."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def seeds_of(seed: int) -> dict[str, int]:
    """The seed that each generator gets; numpy's legacy one takes 32 bits."""
    return {"torch": seed, "numpy": seed % 2**32, "python": seed}


def seed_everything(seed: int) -> None:
    """Seed torch (every device), numpy's global generator and python's."""
    seeds = seeds_of(seed)
    torch.manual_seed(seeds["torch"])
    np.random.seed(seeds["numpy"])
    random.seed(seeds["python"])


def rng_state() -> dict[str, Any]:
    """The state of every global generator, as tensors, numbers and lists only.

    ``torch.load(weights_only=True)`` refuses the numpy array inside ``np.random.get_state()``.
    """
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    version, words, gauss_next = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "device": _device_states(),
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "gauss": float(gauss),
        },
        "python": {"version": version, "words": list(words), "gauss": gauss_next},
    }


def restore_rng(state: Mapping[str, Any]) -> None:
    """Put every generator back; device generators that this machine lacks are left out."""
    torch.set_rng_state(state["torch"].cpu())
    device = state["device"]
    if "cuda" in device and torch.cuda.is_available():
        known = device["cuda"][: torch.cuda.device_count()]
        for index, saved in enumerate(known):
            torch.cuda.set_rng_state(saved.cpu(), index)
    if "mps" in device and torch.backends.mps.is_available():
        torch.mps.set_rng_state(device["mps"].cpu())
    numpy = state["numpy"]
    keys = numpy["keys"].cpu().numpy().astype(np.uint32)
    np.random.set_state(
        (numpy["name"], keys, numpy["position"], numpy["has_gauss"], numpy["gauss"])
    )
    python = state["python"]
    random.setstate((python["version"], tuple(python["words"]), python["gauss"]))


def _device_states() -> dict[str, Any]:
    states: dict[str, Any] = {}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states
