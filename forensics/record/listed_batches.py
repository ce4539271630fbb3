"""Lists that ``batch`` gives: of micro-batches, or of what a loader of torch gives as one batch."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from forensics.errors import UsageError


def refuse_one_batch_in_a_list(batches: list[Any]) -> None:
    """Micro-batches of one step are alike: tensors of another kind are the parts of one batch.

    Args:
        batches: what is taken for micro-batches.

    Raises:
        UsageError: they are tensors that differ in their number of dimensions, or of which some
            hold numbers and some hold classes.
    """
    if not all(isinstance(batch, Tensor) for batch in batches):
        return
    if len({(batch.dim(), batch.is_floating_point()) for batch in batches}) > 1:
        raise UsageError(_given(batches), where="batch()", hint="make one batch a tuple")


def may_be_one_batch(batches: list[Any]) -> str:
    """What to say where a step fails that was given bare tensors; empty where it was not."""
    several = len(batches) > 1 and all(isinstance(batch, Tensor) for batch in batches)
    return f"batch() {_given(batches)}: make one batch a tuple" if several else ""


def _given(batches: list[Any]) -> str:
    return f"gave a list of {len(batches)} tensors, which means {len(batches)} micro-batches"
