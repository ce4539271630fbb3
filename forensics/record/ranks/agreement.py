"""Before the first collective: does every rank record, and in the same way?

Sums over ranks wait for all of them. A recorder on some ranks only, or with other options there,
would hold up the training for ever. So the ranks first leave word in the store they met by, where
nobody waits longer than he wants to; the first verdict there counts for all. What rank 0 alone
knows, such as the folder that a trainer has chosen, the others find there, too.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor
from torch import distributed as dist

from forensics.record.ranks.world import World

PATIENCE_S = 120.0
"""Seconds that ranks may come apart: the model was sharded by all of them a moment before."""

_made: Counter[str] = Counter()
"""How many recorders this process has made of a run directory; how often it has told or asked."""


def disagreement(world: World, run_dir: Path, plan: Sequence[Any]) -> str:
    """Why the ranks cannot add up what they measure; empty where they can. Alike on all ranks.

    Args:
        world: this rank among all.
        run_dir: of the run, alike on all ranks.
        plan: all that decides when this rank adds up what.
    """
    store = _store()
    if store is None:
        return ""
    key = _next_key(run_dir)
    store.set(f"{key}/{world.rank}", _digest(repr(list(plan))))
    if world.leads:
        _judge(store, key, world)
    try:
        store.wait([f"{key}/verdict"], timedelta(seconds=PATIENCE_S))
    except RuntimeError:
        store.compare_set(f"{key}/verdict", "", "rank 0 has made no Recorder")
    verdict = store.get(f"{key}/verdict").decode()
    return "" if verdict == "alike" else str(verdict)


def as_rank_zero_knows(what: str, know: Callable[[], str], world: World) -> str:
    """What rank 0 knows and the others may not; rank 0 itself waits for nobody.

    Args:
        what: it is, in a word; each rank asks for it as often as rank 0 does.
        know: asked on rank 0 alone.
        world: this rank among all.

    Returns:
        It; empty where rank 0 does not say.
    """
    if world.size == 1:
        return know()
    store, key = _store(), f"forensics/{what}/{_made[what]}"
    _made[what] += 1
    if world.leads:
        known = know()
        if store is not None:
            store.set(key, known)
        return known
    try:
        if store is None:
            return ""
        store.wait([key], timedelta(seconds=PATIENCE_S))
        return str(store.get(key).decode())
    except RuntimeError:
        return ""


def plan_of(parameters: Sequence[tuple[str, Tensor]]) -> list[Any]:
    """What of the parameters must be the same on all ranks."""
    return [(name, tuple(p.shape), str(getattr(p, "placements", ""))) for name, p in parameters]


def _judge(store: Any, key: str, world: World) -> None:
    """Rank 0's verdict, as soon as all have left word."""
    verdict, own = "alike", store.get(f"{key}/0")
    for rank in range(1, world.size):
        try:
            store.wait([f"{key}/{rank}"], timedelta(seconds=PATIENCE_S))
        except RuntimeError:
            verdict = f"rank {rank} has made no Recorder of this run"
            break
        if store.get(f"{key}/{rank}") != own:
            verdict = f"the Recorder of rank {rank} has other parameters or options than rank 0's"
            break
    store.compare_set(f"{key}/verdict", "", verdict)


def _store() -> Any:
    """Where the ranks met; None where this torch does not say."""
    return getattr(dist.distributed_c10d, "_get_default_store", lambda: None)()


def _next_key(run_dir: Path) -> str:
    """Under which the ranks leave word of this recorder; counted alike on all of them."""
    place = str(run_dir.resolve())
    key = f"forensics/{_digest(place)}/{_made[place]}"
    _made[place] += 1
    return key


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
