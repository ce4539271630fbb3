"""How a run is recorded: what is kept on disk and how often; it changes nothing computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forensics.errors import UsageError

_KEEP = re.compile(r"(last|every):(\d+)\Z")

FREE_EXTRAS: tuple[str, ...] = ("time_s", "norm_overflow", "grads_scaled")
"""Extra columns that every recording has: they cost nothing."""

OPTIONAL_EXTRAS: tuple[str, ...] = (
    "epoch",
    "val_loss",
    "tokens_per_s",
    "peak_memory_bytes",
    "update_l2",
    "param_l2",
    "ema_l2_distance",
    "param_digest",
)
"""Extra columns on request. ``epoch`` and ``val_loss`` are filled by the loop, with ``note``."""


@dataclass(frozen=True)
class KeepPolicy:
    """Which checkpoints stay: the newest ``last``, and those whose step ``every`` divides.

    ``every`` 0 keeps none for good. Pinned ones, the best one and the newest healthy one stay
    whatever the policy says.
    """

    last: int = 3
    every: int = 0

    @classmethod
    def parse(cls, text: str | KeepPolicy) -> KeepPolicy:
        """From ``last:N,every:K``, either part optional; UsageError for anything else."""
        if isinstance(text, KeepPolicy):
            return text
        parts = [_KEEP.match(part.strip()) for part in text.split(",")]
        found = {match[1]: int(match[2]) for match in parts if match}
        if len(found) != len(parts) or found.get("last") == 0:
            raise UsageError(
                f"{text!r} is no policy", where="--keep", hint="write last:N,every:K with N ≥ 1"
            )
        return cls(**found)

    def __str__(self) -> str:
        """The text that ``parse`` takes back."""
        return f"last:{self.last},every:{self.every}" if self.every else f"last:{self.last}"


KEPT: Mapping[str, type] = {
    "checkpoint_every": int,
    "keep": str,
    "snapshot_every": int,
    "activations": bool,
    "extras": list,
    "log_every": int,
    "abort_on_skip_rate": bool,
}
"""Options that belong to the run and not to one command, with their types in ``run.json``, from
which a resume takes them."""


@dataclass(frozen=True)
class RecordOptions:
    """What ``forensics record`` can be told beside the config.

    Attributes:
        out: the run directory.
        resume: continue the run that is there.
        overwrite: remove the run that is there and begin anew.
        checkpoint_every: steps between checkpoints; 0 saves none.
        keep: which checkpoints stay; a policy or its text.
        snapshot_every: steps between per-parameter snapshots; 0 takes them on bad steps only.
        activations: take activation statistics per module beside each regular snapshot.
        extras: further columns of the step log, of ``OPTIONAL_EXTRAS``.
        log_every: the optional extras are taken on every step that it divides; the cells of the
            other rows stay empty, and no step in between waits for the device on their behalf.
        abort_on_skip_rate: end the run (exit 3) when the skip-rate alarm goes off.
        max_skip_rate: skips in the last 1,000 steps ÷ 1,000 above which the alarm counts.
        max_skips_in_a_row: the alarm also goes off after so many.
        recipe_file: where the recipe was loaded from, when it is a user's file.
    """

    out: Path
    resume: bool = False
    overwrite: bool = False
    checkpoint_every: int = 100
    keep: KeepPolicy | str = KeepPolicy()
    snapshot_every: int = 100
    activations: bool = False
    extras: tuple[str, ...] = ()
    log_every: int = 1
    abort_on_skip_rate: bool = False
    max_skip_rate: float = 0.05
    max_skips_in_a_row: int = 100
    recipe_file: Path | None = None

    def to_manifest(self) -> dict[str, Any]:
        """What a resume goes on with, for ``run.json``."""
        plain = {name: getattr(self, name) for name in KEPT}
        return {**plain, "keep": str(KeepPolicy.parse(self.keep)), "extras": list(self.extras)}

    def __post_init__(self) -> None:
        if self.resume and self.overwrite:
            raise UsageError("--resume and --overwrite exclude each other")
        if unknown := [name for name in self.extras if name not in OPTIONAL_EXTRAS]:
            raise UsageError(
                f"no extra column is called {unknown[0]!r}",
                where="extras",
                hint=f"choose from {', '.join(OPTIONAL_EXTRAS)}",
            )
        for name in ("checkpoint_every", "snapshot_every"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be 0 or more", where=name)
        if self.log_every < 1:
            raise UsageError("log_every must be 1 or more", where="log_every")
