"""Work on the next blocks of a file goes on while the current one is taken in."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import TypeVar

T = TypeVar("T")

AHEAD = min(max(os.cpu_count() or 1, 2), 4)
"""Blocks that are worked on at once; taking one in costs about a fifth of parsing it."""


def worked_ahead(blocks: Iterator[bytes], work: Callable[[bytes], T]) -> Iterator[tuple[bytes, T]]:
    """Each block and what ``work`` makes of it, in order.

    Args:
        blocks: the blocks of a file. A single one costs no thread.
        work: a pure function of the block that leaves Python's lock for most of its time.
    """
    first, second = next(blocks, None), next(blocks, None)
    if first is None:
        return
    if second is None:
        yield first, work(first)
        return
    from concurrent.futures import Future, ThreadPoolExecutor

    every = chain((first, second), blocks)
    del first, second
    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[tuple[bytes, Future[T]]] = deque()
        for block in every:
            waiting.append((block, pool.submit(work, block)))
            if len(waiting) > AHEAD:
                done, result = waiting.popleft()
                yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
