"""Where a run comes from: versions, code, machine, and what was trained with what."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from forensics.record.by_hand import ByHand
from forensics.record.loss_scale import policy_of
from forensics.record.parameters import describe_parameters
from forensics.record.precision import Precision
from forensics.record.ranks.sharding import sharding_of
from forensics.runlog.manifest import Manifest

_PACKAGES = ("torch", "numpy", "pyarrow", "forensics")
_GIT_TIMEOUT_S = 5.0


def describe_run(
    model: nn.Module,
    optimizers: Sequence[Optimizer],
    *,
    scaler: GradScaler | None = None,
    precision: Precision | None = None,
    max_norm: float | None = None,
    scale_floor: float = 0.0,
    code: Path | None = None,
) -> Manifest:
    """The part of ``run.json`` that can be read off a training and its machine.

    Args:
        model: on its device.
        optimizers: at least one.
        scaler: the loss scaler; None or a disabled one where there is none.
        precision: None where the loop does not say.
        max_norm: clip threshold.
        scale_floor: least loss scale; 0 for none.
        code: a file or folder of the code whose git commit is noted; default the working folder.
    """
    device = next(p for o in optimizers for g in o.param_groups for p in g["params"]).device
    return Manifest(
        tool_version=package_version("forensics"),
        device=device.type,
        device_name=_device_name(device),
        precision=precision.name if precision else "",
        autocast_device=device.type if precision is not None and precision.uses_autocast else "",
        max_norm=max_norm,
        optimizer={} if isinstance(optimizers[0], ByHand) else _describe_optimizer(optimizers[0]),
        scaler=policy_of(scaler, scale_floor) if scaler is not None else None,
        parameters=describe_parameters(model, optimizers),
        versions=_versions(),
        git=git_state(code or Path.cwd()),
        threads=torch.get_num_threads(),
        processor=processor_name(),
        sharding=sharding_of(model),
    )


def git_state(code: Path) -> Mapping[str, Any]:
    """``{"commit", "dirty"}`` of the repository that holds ``code``; empty where there is none."""
    folder = code if code.is_dir() else code.parent
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        dirty = bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return {}
    return {"commit": commit, "dirty": dirty}


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
        timeout=_GIT_TIMEOUT_S,
    )
    return done.stdout.strip()


def _describe_optimizer(optimizer: Optimizer) -> dict[str, Any]:
    """Name, flavour and the settings of its first group that are plain numbers."""
    group = optimizer.param_groups[0]
    settings = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in group.items()
        if isinstance(value, bool | int | float | tuple)
        and key not in ("foreach", "fused", "differentiable", "capturable")
    }
    return {
        "name": type(optimizer).__name__.lower(),
        "flavour": _flavour(group),
        **settings,
    }


def _flavour(group: Mapping[str, Any]) -> str:
    """Which loop over the parameters the optimizer runs: it changes bits.

    Where neither is asked for, torch takes foreach on accelerators and the plain loop on a CPU.
    """
    if group.get("fused"):
        return "fused"
    if group.get("foreach"):
        return "foreach"
    on_cpu = all(parameter.device.type == "cpu" for parameter in group["params"])
    return "single" if on_cpu or group.get("foreach") is False else "foreach"


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), "platform": sys.platform} | {
        name: package_version(name) for name in _PACKAGES
    }


def package_version(package: str) -> str:
    """The installed version of a package; empty where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def processor_name() -> str:
    """What the operating system calls this processor; other processors compute other bits."""
    return platform.processor() or platform.machine()


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return processor_name()
