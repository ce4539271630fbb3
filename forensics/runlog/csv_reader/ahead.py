"""Work on the next blocks of a file goes on while the current one is taken in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

AHEAD = 2
"""Blocks that are worked on at once; parsing has threads of its own, but waits at their ends."""


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

    with ThreadPoolExecutor(AHEAD) as pool:
        waiting: deque[tuple[bytes, Future[T]]] = deque()
        waiting.append((first, pool.submit(work, first)))
        waiting.append((second, pool.submit(work, second)))
        del first, second
        for block in blocks:
            waiting.append((block, pool.submit(work, block)))
            done, result = waiting.popleft()
            yield done, result.result()
        while waiting:
            done, result = waiting.popleft()
            yield done, result.result()
