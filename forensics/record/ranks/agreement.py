"""Before the first collective: does every rank record the same parameters?

Sums over ranks wait for all of them. A recorder on some ranks only, or of other parameters there,
would hold up the training for ever. So the ranks first leave word in the store they met by, where
nobody waits longer than he wants to; the first verdict there counts for all. Where all record, they
do it as rank 0's options say. What rank 0 alone knows, such as the folder that a trainer has
chosen, the others find there, too.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor
from torch import distributed as dist

from forensics.record.ranks.world import World

PATIENCE_S = 120.0
"""Seconds that ranks may come apart: the model was sharded by all of them a moment before."""

NO_LEADER = "rank 0 has made no Recorder of this run in time"

_made: Counter[str] = Counter()
"""How many recorders this process has made of a run directory."""


def agreement(
    world: World, run_dir: Path, alike: Sequence[Any], options: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """What the ranks can do together, the same on all of them.

    Args:
        world: this rank among all.
        run_dir: of the run, alike on all ranks.
        alike: what must be the same on all ranks for a sum over them.
        options: plain values that decide when something is added up; rank 0's count.

    Returns:
        Why the ranks cannot add up what they measure, empty where they can; and rank 0's options,
        where they can.
    """
    store = _store()
    if store is None:
        return "", options
    key = _next_key(run_dir)
    word = _digest(repr(list(alike)))
    store.set(f"{key}/{world.rank}", f"{word} {json.dumps(options)}")
    if world.leads:
        _judge(store, key, world)
    try:
        store.wait([f"{key}/verdict"], timedelta(seconds=PATIENCE_S))
    except RuntimeError:
        store.compare_set(f"{key}/verdict", "", NO_LEADER)
    verdict = store.get(f"{key}/verdict").decode()
    if verdict != "alike":
        return str(verdict), options
    return "", json.loads(_word_of(store, key, 0)[1])


def as_rank_zero_knows(what: str, know: Callable[[], str], world: World) -> str:
    """What rank 0 knows and the others may not; rank 0 itself waits for nobody.

    It counts until ``no_longer_known``: rank 0 may have told it before to nobody.

    Args:
        what: it is, in a word.
        know: asked on rank 0 alone.
        world: this rank among all.

    Returns:
        It; empty where rank 0 does not say.
    """
    if world.size == 1:
        return know()
    store, key = _store(), f"forensics/{what}"
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


def no_longer_known(what: str, world: World) -> None:
    """Rank 0 takes back what it has told; the others have asked for it before."""
    store = _store() if world.size > 1 and world.leads else None
    if store is not None:
        store.delete_key(f"forensics/{what}")


def plan_of(
    parameters: Sequence[tuple[str, Tensor]], shapes: Mapping[int, tuple[int, ...]]
) -> list[Any]:
    """What of the parameters must be the same on all ranks.

    Args:
        parameters: of the run.
        shapes: by ``id`` of those of which each rank holds another part.
    """
    return [
        (name, shapes.get(id(p), tuple(p.shape)), str(getattr(p, "placements", "")))
        for name, p in parameters
    ]


def _judge(store: Any, key: str, world: World) -> None:
    """Rank 0's verdict, as soon as all have left word."""
    verdict, (own, _) = "alike", _word_of(store, key, 0)
    for rank in range(1, world.size):
        try:
            store.wait([f"{key}/{rank}"], timedelta(seconds=PATIENCE_S))
        except RuntimeError:
            verdict = f"rank {rank} has made no Recorder of this run"
            break
        if _word_of(store, key, rank)[0] != own:
            verdict = f"the Recorder of rank {rank} has other parameters than rank 0's"
            break
    store.compare_set(f"{key}/verdict", "", verdict)


def _word_of(store: Any, key: str, rank: int) -> tuple[str, str]:
    """What a rank has left: the digest of what must be alike, and its options."""
    word, _, options = store.get(f"{key}/{rank}").decode().partition(" ")
    return word, options


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
