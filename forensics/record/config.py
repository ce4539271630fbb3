"""The configuration of a recording: one frozen value, read from TOML, copied into ``run.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer: ``sgd``, ``adam`` or ``adamw``; flavour ``foreach``, ``fused`` or ``single``."""

    name: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    flavour: str = "foreach"


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning-rate schedule: ``constant`` or ``cosine``, each after a linear warm-up."""

    name: str = "constant"
    warmup_steps: int = 0
    min_lr_ratio: float = 0.1


@dataclass(frozen=True)
class ScalerConfig:
    """The loss scaler of an fp16 run; ``floor`` is the least scale (0: none)."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    floor: float = 1.0


@dataclass(frozen=True)
class Config:
    """Everything that decides what a recording computes.

    Attributes:
        steps: attempted optimizer steps.
        seed: for torch, numpy and python; data derive theirs from it.
        precision: ``fp32``, ``fp16``, ``bf16`` or ``auto``.
        device: ``auto``, ``cpu``, ``cuda`` …
        max_norm: clip threshold (global L2 norm); None where nothing clips.
        accumulation: micro-batches an optimizer step.
        ema_decay: per step; None for no EMA.
        model: settings of the recipe's model.
        data: settings of the recipe's data.
    """

    steps: int = 100
    seed: int = 0
    precision: str = "fp32"
    device: str = "auto"
    max_norm: float | None = 1.0
    accumulation: int = 1
    ema_decay: float | None = None
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    scaler: ScalerConfig = ScalerConfig()
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
