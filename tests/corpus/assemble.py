"""From a simulated training to a ``Run``: columns chosen, rounded, damaged, with a manifest."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from forensics.runlog.manifest import Ended, Manifest, ParameterInfo, ScalerPolicy, Segment
from forensics.runlog.run import Run
from forensics.runlog.schema import CANONICAL_NAMES
from forensics.runlog.steps import StepTable
from forensics.runlog.steps_csv import read_steps
from tests.corpus.loop import Loop, Reaction, columns, masks, react, reasons
from tests.corpus.noise import Floats
from tests.corpus.training import Bools, Training

PATH = Path("corpus")


@dataclass
class Sheet:
    """The step log before it becomes a table: change ``values`` and ``written`` freely."""

    values: dict[str, Any]
    written: dict[str, Bools] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return len(self.values["step"])

    def drop(self, *names: str) -> Sheet:
        """Without some columns."""
        for name in names:
            self.values.pop(name, None)
            self.written.pop(name, None)
        return self

    def take(self, rows: Any) -> Sheet:
        """At some rows only."""
        return Sheet(
            {name: np.asarray(v)[rows] for name, v in self.values.items()},
            {name: v[rows] for name, v in self.written.items()},
        )

    def rounded(self, digits: int, *names: str) -> Sheet:
        """As a logger prints it: so many decimals."""
        for name in names:
            self.values[name] = np.round(self.values[name], digits)
        return self

    def table(self) -> StepTable:
        """As a table in memory."""
        return StepTable.from_arrays(self.values, self.written)


def sheet(training: Training, loop: Loop, reaction: Reaction | None = None) -> Sheet:
    """What the loop logs of this training."""
    reaction = react(training, loop) if reaction is None else reaction
    values = columns(training, loop, reaction)
    values["skip_reason"] = reasons(training, loop, reaction)  # type: ignore[assignment]
    return Sheet(dict(values), masks(training, loop, reaction))


def with_extras(training: Training, made: Sheet) -> Sheet:
    """The optional columns too: time, epoch, throughput, memory, norms of weights and update."""
    rng, rows = training.rng, made.rows
    param = 50 * (1 + 0.3 * np.linspace(0, 1, rows))
    dead = ~np.isfinite(made.values["loss"]) & (np.arange(rows) > 0)
    stuck = np.maximum.accumulate(dead & ~np.asarray(made.values["skipped"]))
    made.values |= {
        "time_s": np.cumsum(0.3 + 0.02 * rng.random(rows)),
        "epoch": np.arange(rows) / max(1, rows / 3),
        "tokens_per_s": 1e5 * (1 + 0.03 * rng.standard_normal(rows)),
        "peak_memory_bytes": np.full(rows, 3.1e10),
        "param_l2": np.where(stuck, np.nan, param),
        "update_l2": np.where(
            stuck, np.nan, 1e3 * made.values["lr"] * (1 + 0.1 * rng.random(rows))
        ),
    }
    return made


def manifest(training: Training, loop: Loop, **changes: Any) -> Manifest:
    """``run.json`` of such a run."""
    policy = loop.scaler or ScalerPolicy()
    made = Manifest(
        device="cuda",
        precision=loop.precision,
        autocast_device="" if loop.precision == "fp32" else "cuda",
        max_norm=loop.max_norm,
        post_clip="measured",
        optimizer={"name": "adamw", "flavour": "foreach"},
        schedule={
            "name": training.schedule,
            "warmup_steps": training.warmup,
            "total_steps": training.rows,
        },
        scaler=policy,
        columns=CANONICAL_NAMES,
        parameters=network(4),
        segments=(Segment(0, "2026-01-01T00:00:00Z", "2026-01-01T09:00:00Z"),),
        ended=Ended("finished", training.rows),
    )
    return replace(made, **changes)


def network(layers: int) -> tuple[ParameterInfo, ...]:
    """The parameters of a small transformer, in network order."""
    found = [ParameterInfo("embed.weight", (5000, 256))]
    for layer in range(layers):
        block = f"blocks.{layer}"
        found += [
            ParameterInfo(f"{block}.norm.weight", (256,)),
            ParameterInfo(f"{block}.attn.qkv.weight", (768, 256)),
            ParameterInfo(f"{block}.attn.out.weight", (256, 256)),
            ParameterInfo(f"{block}.mlp.up.weight", (1024, 256)),
            ParameterInfo(f"{block}.mlp.down.weight", (256, 1024)),
        ]
    return (*found, ParameterInfo("head.weight", (5000, 256)))


def run_of(
    training: Training,
    loop: Loop,
    made: Sheet | None = None,
    *,
    form: str = "recorded",
    **parts: Any,
) -> Run:
    """A run in one of the forms that logs come in.

    Args:
        training: what was trained.
        loop: how.
        made: the step log, where it was changed by hand.
        form: ``recorded`` (canonical columns and run.json), ``full`` (optional columns too),
            ``canonical`` (the log alone), ``foreign`` (step, lr, loss, norm; scale and skips where
            there is a scaler) or ``bare`` (step, loss, norm).
        parts: further parts of the ``Run``; ``manifest`` replaces the usual one.
    """
    made = sheet(training, loop) if made is None else made
    if form == "full":
        made = with_extras(training, made)
    elif form == "foreign":
        made.drop("grad_l2_post_clip", "skip_reason")
        if loop.scaler is None:
            made.drop("skipped", "scaler_scale")
    elif form == "bare":
        made.drop("lr", "grad_l2_post_clip", "skipped", "skip_reason", "scaler_scale")
    if form in ("recorded", "full"):
        parts.setdefault("manifest", manifest(training, loop))
    return Run(path=PATH, steps=made.table(), **parts)


FORMS = ("recorded", "full", "canonical", "foreign")


def any_form(training: Training, *without: str) -> str:
    """A form at random, but some."""
    return str(training.rng.choice([form for form in FORMS if form not in without]))


def as_text(made: Sheet) -> list[str]:
    """The lines of the log as CSV, header first, without line ends."""
    names = [n for n in CANONICAL_NAMES if n in made.values]
    names += [n for n in made.values if n not in CANONICAL_NAMES]
    cells = [_cells(made.values[n], made.written.get(n)) for n in names]
    return [",".join(names), *(",".join(row) for row in zip(*cells, strict=True))]


def _cells(values: Any, written: Bools | None) -> list[str]:
    array = np.asarray(values)
    if array.dtype == bool:
        array = array.astype(np.int64)
    texts = [str(v) for v in array.tolist()]
    if written is None:
        return texts
    return [text if there else "" for text, there in zip(texts, written.tolist(), strict=True)]


def through_csv(
    lines: Iterable[str] | bytes, damage: Callable[[bytes], bytes] = bytes
) -> StepTable:
    """Write lines, damage the bytes, and read them as the report would."""
    text = lines if isinstance(lines, bytes) else ("\n".join(lines) + "\n").encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps.csv"
        path.write_bytes(damage(text))
        return read_steps(path)


def onset_slack(rows: int, share: float = 0.05) -> int:
    """Steps by which the onset of a slow fault may be off."""
    return max(2, int(share * rows))


def ramp(rows: int, start: int, per_step: float) -> Floats:
    """Exponential growth from ``start`` on: 1 before, then exp(per_step · steps)."""
    return np.asarray(np.exp(np.minimum(per_step * (np.arange(rows) - start).clip(0), 600.0)))
