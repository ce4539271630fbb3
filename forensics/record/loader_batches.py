"""A recipe's ``batch(step)`` from a data loader, which knows no steps, only what comes next."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from forensics.errors import InputError


def batches_of(
    make_loader: Callable[[], Iterable[Any]], *, accumulation: int = 1
) -> Callable[[int], Any]:
    """``batch(step)`` for a recipe: the loader's batch number ``step``, over all its epochs.

    It reads on from where it was, and from the start again where an earlier step is asked for. The
    random state of the training is left as it is.

    Args:
        make_loader: builds the loader anew, as the script does. It must give the same batches in
            the same order each time: where it shuffles, by a ``generator`` that is seeded in it.
        accumulation: batches of the loader that make one step; ``batch`` then gives a list of them.
            An epoch may end within a step.

    Returns:
        The function. A batch that the loader gives as a list, as torch's do, is a tuple here: a
        recipe's list is one of micro-batches.

    Raises:
        InputError: from ``batch``: the loader is empty.
    """
    read = _LoaderBatches(make_loader)
    if accumulation == 1:
        return read
    return lambda step: [read(step * accumulation + i) for i in range(accumulation)]


class _LoaderBatches:
    def __init__(self, make_loader: Callable[[], Iterable[Any]]) -> None:
        self._make_loader = make_loader
        self._reading: Iterator[Any] | None = None
        self._step = -1
        self._batch: Any = None

    def __call__(self, step: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            if self._reading is None or step < self._step:
                self._reading, self._step = self._epochs(), -1
            while self._step < step:
                self._batch = next(self._reading)
                self._step += 1
        batch = copy.deepcopy(self._batch)  # a loss that writes into it spoils this one only
        return tuple(batch) if type(batch) is list else batch

    def _epochs(self) -> Iterator[Any]:
        loader = self._make_loader()
        while True:
            empty = True
            for batch in loader:
                empty = False
                yield batch
            if empty:
                raise InputError("gave no batch", where="make_loader")
