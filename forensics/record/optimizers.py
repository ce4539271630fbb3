"""The optimizer that a config asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from forensics.record.config import OptimizerConfig


def build_optimizer(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """SGD, Adam or AdamW over ``parameters``, in the flavour the config names.

    Flavours compute the same step in other kernels and so in other bits: ``foreach`` over all
    parameters at once, ``fused`` in one kernel, ``single`` one parameter after the other.
    """
    shared: dict[str, Any] = {
        "lr": config.lr,
        "weight_decay": config.weight_decay,
        "foreach": config.flavour == "foreach",
        "fused": config.flavour == "fused",
    }
    if config.name == "sgd":
        return SGD(parameters, momentum=config.momentum, **shared)
    adam = AdamW if config.name == "adamw" else Adam
    return adam(parameters, betas=config.betas, eps=config.eps, **shared)
