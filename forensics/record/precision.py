"""Precision: the autocast device and dtype, a loss scaler or none, and the fallback to the CPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch.amp.grad_scaler import GradScaler

from forensics.errors import UsageError

AUTOCAST_DTYPE: dict[str, torch.dtype] = {"fp16": torch.float16, "bf16": torch.bfloat16}
"""What matrix products run in; fp32 uses no autocast."""

NATIVE_BF16_CAPABILITY = (8, 0)
"""CUDA devices from Ampere on compute bfloat16 in hardware; older ones emulate it."""


@dataclass(frozen=True)
class Precision:
    """``fp32``, ``fp16`` or ``bf16`` on one device type, which is always the optimizer's."""

    name: str
    device_type: str

    @property
    def uses_scaler(self) -> bool:
        """Only fp16 needs loss scaling: bf16 has the exponent range of fp32."""
        return self.name == "fp16"

    @property
    def uses_autocast(self) -> bool:
        """Does the forward pass run under autocast?"""
        return self.name in AUTOCAST_DTYPE

    def autocast(self) -> AbstractContextManager[object]:
        """The context of the forward pass; one that does nothing for fp32."""
        dtype = AUTOCAST_DTYPE.get(self.name)
        return torch.autocast(self.device_type, dtype=dtype, enabled=dtype is not None)

    def check(self, scaler: GradScaler) -> None:
        """Refuse what loses gradients or scales in vain.

        Raises:
            UsageError: fp16 autocast without a scaler, or a scaler without fp16 autocast.
        """
        if self.uses_scaler and not scaler.is_enabled():
            raise UsageError(
                "fp16 autocast without a GradScaler: small gradients would become 0",
                where="precision",
                hint="enable the scaler, or use bf16 or fp32",
            )
        if scaler.is_enabled() and not self.uses_scaler:
            raise UsageError(
                f"a GradScaler with {self.name}: only gradients of fp16 autocast need scaling",
                where="precision",
                hint="use fp16, or disable the scaler",
            )


def choose_device(wanted: str, say: Callable[[str], None]) -> torch.device:
    """The device to train on: the one asked for, or the CPU where this machine lacks it.

    Args:
        wanted: ``auto`` (CUDA where there is one) or a torch device such as ``cuda:1``.
        say: told in one line when the CPU stands in.

    Raises:
        UsageError: not the name of a device.
    """
    try:
        device = torch.device("cuda" if wanted == "auto" else wanted)
    except RuntimeError as error:
        raise UsageError(
            f"{wanted!r} is no device", where="device", hint="use auto, cpu, cuda, cuda:1 or mps"
        ) from error
    if device.type == "cpu" or _is_there(device):
        return device
    say(f"no {device.type.upper()} device here{_which(device)}: recording on the CPU instead")
    return torch.device("cpu")


def choose_precision(wanted: str, device: torch.device, say: Callable[[str], None]) -> Precision:
    """``fp32``, ``fp16`` or ``bf16`` as asked for; ``auto`` takes what the device does natively.

    Args:
        wanted: ``fp32``, ``fp16``, ``bf16`` or ``auto``: bf16 on CUDA devices of compute
            capability 8.0 and above, fp16 on older ones, fp32 anywhere else.
        device: where the optimizer's parameters are.
        say: told in one line where the device only stands in for the real thing.
    """
    name = _native(device) if wanted == "auto" else wanted
    if name == "fp16" and device.type == "cpu":
        say("fp16 on a CPU is a slow stand-in: unlike CUDA it keeps softmax, exp and norms in fp16")
    return Precision(name, device.type)


def _native(device: torch.device) -> str:
    if device.type != "cuda":
        return "fp32"
    capability = torch.cuda.get_device_capability(device)
    return "bf16" if capability >= NATIVE_BF16_CAPABILITY else "fp16"


def _is_there(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    if device.type == "mps":
        return torch.backends.mps.is_available()
    backend = getattr(torch, device.type, None)
    return bool(backend is not None and hasattr(backend, "is_available") and backend.is_available())


def _which(device: torch.device) -> str:
    return f" of index {device.index}" if device.index else ""
