"""What the faults with a loop of their own share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from forensics.record.config import Config
from forensics.record.precision import choose_precision
from forensics.record.recipe import Batch, Training


def forward(training: Training, batches: Sequence[Batch], config: Config) -> Tensor:
    """The mean loss of the micro-batches, under autocast of the configured precision."""
    device = next(training.model.parameters()).device
    precision = choose_precision(config.precision, device, lambda _: None)
    with precision.autocast():
        losses = [training.loss(training.model, batch) for batch in batches]
    return sum(losses[1:], losses[0]) / len(losses)


def clip(training: Training, config: Config) -> None:
    """Torch's own clip, where the config has a threshold."""
    if config.max_norm is not None:
        clip_grad_norm_(training.model.parameters(), config.max_norm)
