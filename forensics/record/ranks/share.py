"""Does a recipe give each rank a share of the data of its own?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from forensics.record.recipe import Batch, Recipe


def batch_of(recipe: Recipe, step: int, rank: int, world_size: int) -> list[Batch]:
    """The micro-batches that a rank gets; the recipe's own rank is as before afterwards."""
    before = recipe.rank, recipe.world_size
    recipe.rank, recipe.world_size = rank, world_size
    try:
        return recipe.micro_batches(step)
    finally:
        recipe.rank, recipe.world_size = before


def all_get_the_same(recipe: Recipe, step: int) -> bool:
    """Do rank 0 and rank 1 get the very same data? Then more ranks learn no more than one."""
    size = recipe.world_size
    return _same(batch_of(recipe, step, 0, size), batch_of(recipe, step, 1, size))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return (
            one.shape == other.shape
            and torch.equal(one.isnan(), other.isnan())
            and bool(((one == other) | one.isnan()).all())
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return type(one) is type(other) and bool(one == other)
