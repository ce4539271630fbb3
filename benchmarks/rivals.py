"""The public linters of training logs: how each is installed, fed, started and read.

Each lives in a virtual environment of its own under a temporary folder that outlives a run, so that
none shares a package with another or with this project. One that cannot be installed is left out,
and the reason is told. Every linter reads a CSV under the column names that it documents, and its
own program starts it; gradsnitch has none, and gets the call that its guide shows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HOME = Path(tempfile.gettempdir()) / f"forensics-rivals-{os.getuid()}"
INSTALL_S = 300
"""Seconds that an installation may take."""
COLUMNS = {
    "step": "step",
    "loss": "loss",
    "val_loss": "val_loss",
    "lr": "learning_rate",
    "grad_l2_pre_clip": "grad_norm",
}
"""Our columns that the linters read, and the names that all four of them know."""

Said = tuple[str, str]
"""A finding: its name and its severity, in the linter's words."""


@dataclass(frozen=True)
class Linter:
    """One of them.

    Attributes:
        name: on PyPI.
        arguments: of its program, before the file; code for Python where it has none.
        read: its findings, from what it printed.
        means: per name of a finding the families that it may stand for.
    """

    name: str
    arguments: tuple[str, ...]
    read: Callable[[str], list[Said]]
    means: Mapping[str, tuple[str, ...]]

    @property
    def sees(self) -> frozenset[str]:
        """Every family that it has a check for."""
        return frozenset(family for families in self.means.values() for family in families)

    @property
    def home(self) -> Path:
        """Its environment."""
        return HOME / self.name

    def command(self, log: Path) -> list[str]:
        """What lints a file and prints JSON."""
        program = self.home / "bin" / self.name
        if self.arguments[0] == "-c":
            program = self.home / "bin" / "python"
        return [str(program), *(part.replace("LOG", str(log)) for part in self.arguments)]


def install(package: str, *, system_packages: bool = False) -> str:
    """Put a package into an environment of its own; empty when it is there, else why it is not."""
    home = HOME / package
    if (home / "ready").exists():
        return ""
    flags = ["--system-site-packages"] if system_packages else []
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "-q", "--no-input", package]
    try:
        subprocess.run([sys.executable, "-m", "venv", *flags, str(home)], check=True, timeout=60)
        done = subprocess.run(pip, capture_output=True, text=True, timeout=INSTALL_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"no environment for it ({type(error).__name__})"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["pip failed"])[-1]
    (home / "ready").touch()
    return ""


def installed_version(package: str) -> str:
    """Of a package in its environment."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    python = str(HOME / package / "bin" / "python")
    return subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.strip()


def available() -> tuple[list[Linter], list[str]]:
    """The linters that can be had, and a sentence for each that cannot."""
    found, notes = [], []
    for linter in LINTERS:
        why = install(linter.name)
        if why:
            notes.append(f"{linter.name} is left out: {why}.")
        else:
            found.append(linter)
    return found, notes


def lint(linter: Linter, log: Path, limit: float) -> list[Said] | None:
    """A linter's findings on a log; None where it fails or takes too long."""
    try:
        done = subprocess.run(linter.command(log), capture_output=True, text=True, timeout=limit)
        return linter.read(done.stdout)
    except (subprocess.TimeoutExpired, ValueError, KeyError, IndexError):
        return None


def _findings(data: Mapping[str, Any], name: str) -> list[Said]:
    return [(one[name], one["severity"]) for one in data["findings"]]


def _losslint(text: str) -> list[Said]:
    return _findings(json.loads(text), "check")


def _runmedic(text: str) -> list[Said]:
    return [said for run in json.loads(text) for said in _findings(run, "check")]


def _trainspotter(text: str) -> list[Said]:
    return _findings(json.loads(text), "title")


def _gradsnitch(text: str) -> list[Said]:
    return [(code, severity) for code, severity in json.loads(text)]


_GRADSNITCH = (
    "import gradsnitch, json, sys; "
    "json.dump([(f.code, f.severity) for f in gradsnitch.lint_csv('LOG')], sys.stdout)"
)
LINTERS: Sequence[Linter] = (
    Linter(
        "losslint",
        ("check", "--format", "json", "LOG"),
        _losslint,
        {
            "nan_inf": ("nonfinite",),
            "step_backtrack": ("log",),
            "parse": ("log",),
            "loss_spike": ("spike",),
            "divergence": ("divergence",),
            "overfit_onset": ("overfitting",),
            "stagnation": ("not learning",),
        },
    ),
    Linter(
        "runmedic",
        ("diagnose", "--json", "LOG"),
        _runmedic,
        {
            "non_finite": ("nonfinite",),
            "divergence": ("divergence",),
            "loss_spikes": ("spike",),
            "no_learning": ("not learning", "learning rate"),
            "overfitting": ("overfitting",),
            "grad_spikes": ("divergence", "spike"),
            "constant_lr_plateau": ("not learning",),
        },
    ),
    Linter(
        "gradsnitch",
        ("-c", _GRADSNITCH),
        _gradsnitch,
        {
            "GS001": ("nonfinite",),
            "GS002": ("nonfinite",),
            "GS003": ("spike",),
            "GS004": ("overfitting",),
            "GS005": ("not learning",),
            "GS006": ("divergence",),
            "GS007": ("not learning",),
            "GS009": ("oscillation",),
            "GS010": ("learning rate",),
        },
    ),
    Linter(
        "trainspotter",
        ("analyze", "--output", "json", "LOG"),
        _trainspotter,
        {
            "Diverged (non-finite values)": ("nonfinite",),
            "Diverged (sustained growth)": ("divergence",),
            "Gradient-norm explosion": ("divergence", "spike"),
            "Gradient clipping likely saturated": ("clipping",),
            "LR discontinuity": ("learning rate",),
            "LR increased after its peak": ("learning rate",),
            "Overfitting onset": ("overfitting",),
            "Plateau": ("not learning",),
            "Loss spike": ("spike",),
        },
    ),
)
