"""A replay of many ranks wants the plain model: it holds it whole, and reduces by itself.

What shards or wraps a model talks to the other ranks while it is built. Under a launcher those wait
for something else then, so it is refused before the first word.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn

from torch import distributed as dist
from torch import nn

from forensics.errors import NotReplayableError
from forensics.record.local_part import is_distributed

_CLASSES = {
    "DistributedDataParallel": "torch.nn.parallel.distributed",
    "DeviceMesh": "torch.distributed.device_mesh",
    "FullyShardedDataParallel": "torch.distributed.fsdp.fully_sharded_data_parallel",
}
"""What a recipe might make, and where it lives; ``fully_shard`` and tensor parallelism take a
mesh."""


@contextmanager
def plain_build(ranks: int) -> Iterator[None]:
    """Around a recipe's ``build``, where several ranks are replayed.

    Args:
        ranks: that trained the run; with one nothing is refused.

    Raises:
        NotReplayableError: the model is sharded or wrapped.
    """
    if ranks == 1 or not dist.is_available():
        yield
        return
    with ExitStack() as replaced:
        for name, module in _CLASSES.items():
            if module in sys.modules:
                _replace(replaced, getattr(sys.modules[module], name), "__init__", name)
        for holder in (dist, dist.distributed_c10d):
            _replace(replaced, holder, "init_process_group", "init_process_group")
        yield


def check_plain(model: nn.Module) -> None:
    """Refuse a model whose parameters are sharded already.

    Raises:
        NotReplayableError: they are.
    """
    if any(map(is_distributed, model.parameters())):
        raise _not_plain("has sharded parameters")


def _replace(replaced: ExitStack, holder: Any, name: str, what: str) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise _not_plain(f"is built with {what}")

    replaced.callback(setattr, holder, name, getattr(holder, name))
    setattr(holder, name, refuse)


def _not_plain(how: str) -> NotReplayableError:
    return NotReplayableError(
        f"the recipe's model {how}, and a replay of several ranks reduces by itself",
        where="recipe",
        hint="let the recipe build the plain model, and shard or wrap it in the training script",
    )
