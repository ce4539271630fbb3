"""The configuration of a recording: one frozen value, read from TOML, copied into ``run.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from forensics.errors import UsageError
from forensics.record.settings import Limits, merge


def _one_of(default: str, *choices: str) -> Any:
    return field(default=default, metadata={"limits": Limits(choices=choices)})


def _within(default: float | None, **limits: float) -> Any:
    """A number whose limits ``merge`` holds; None stays allowed where it is the default."""
    return field(default=default, metadata={"limits": Limits(**limits)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer: ``sgd``, ``adam`` or ``adamw``; flavour ``foreach``, ``fused`` or ``single``.

    ``momentum`` is SGD's, ``betas`` and ``eps`` are Adam's.
    """

    name: str = _one_of("adamw", "sgd", "adam", "adamw")
    lr: float = _within(1e-3, least=0.0)
    weight_decay: float = _within(0.0, least=0.0)
    momentum: float = _within(0.0, least=0.0, below=1.0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = _within(1e-8, above=0.0)
    flavour: str = _one_of("foreach", "foreach", "fused", "single")


@dataclass(frozen=True)
class ScheduleConfig:
    """The learning-rate schedule: ``constant`` or ``cosine``, each after a linear warm-up."""

    name: str = _one_of("constant", "constant", "cosine")
    warmup_steps: int = _within(0, least=0)
    min_lr_ratio: float = _within(0.1, least=0.0, most=1.0)


@dataclass(frozen=True)
class ScalerConfig:
    """The loss scaler of an fp16 run; ``floor`` is the least scale (0: none)."""

    init_scale: float = _within(65536.0, above=0.0)
    growth_factor: float = _within(2.0, above=1.0)
    backoff_factor: float = _within(0.5, above=0.0, below=1.0)
    growth_interval: int = _within(2000, least=1)
    floor: float = _within(1.0, least=0.0)


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

    steps: int = _within(100, least=1)
    seed: int = _within(0, least=0)
    precision: str = _one_of("fp32", "fp32", "fp16", "bf16", "auto")
    device: str = "auto"
    max_norm: float | None = _within(1.0, above=0.0)
    accumulation: int = _within(1, least=1)
    ema_decay: float | None = _within(None, least=0.0, below=1.0)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    scaler: ScalerConfig = ScalerConfig()
    model: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take ``optimizer``, ``schedule`` and ``scaler`` as tables of their settings, too."""
        parts = {"optimizer": OptimizerConfig, "schedule": ScheduleConfig, "scaler": ScalerConfig}
        for name, kind in parts.items():
            given = getattr(self, name)
            if isinstance(given, Mapping):
                object.__setattr__(
                    self, name, merge(kind(), given, where="config", prefix=f"{name}.")
                )
            elif not isinstance(given, kind):
                raise UsageError(f"{name} must be a {kind.__name__} or a table", where="config")

    def to_dict(self) -> dict[str, Any]:
        """As nested plain dicts, lists, numbers and texts: ready for JSON; None stays None."""
        plain = asdict(self)
        plain["optimizer"]["betas"] = list(self.optimizer.betas)
        return {**plain, "model": dict(self.model), "data": dict(self.data)}

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, base: Config | None = None, where: object = "config"
    ) -> Self:
        """``base`` (default: the defaults) with the settings of ``data``, each of them checked.

        Args:
            data: nested settings, as ``to_dict`` and TOML give them; ``"none"`` means None.
            base: what a setting that ``data`` lacks keeps. Its ``model`` and ``data`` tables say
                which settings the recipe knows; an empty table takes any.
            where: the file or option to name in an error.

        Raises:
            UsageError: an unknown setting, a value of the wrong type or outside its limits.
        """
        start = cls() if base is None else base
        return merge(start, data, where=where)  # type: ignore[return-value]
