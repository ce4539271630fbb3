"""The columns of ``steps.csv``: names, types, units, and the history of the format."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache

from forensics.frozen import dataclass

SCHEMA_VERSION = 1
"""Version 1 (2026): the first. Readers accept every older version and refuse newer ones."""


class Kind(StrEnum):
    """How a column's cells are stored in memory."""

    INT = "int64"
    FLOAT = "float64"
    FLAG = "bool"
    TEXT = "text"


@dataclass(frozen=True)
class ColumnSpec:
    """One column of the step log: its name, type, unit and meaning."""

    name: str
    kind: Kind
    meaning: str
    unit: str = ""


CANONICAL: tuple[ColumnSpec, ...] = (
    ColumnSpec("step", Kind.INT, "0-based index of the attempted optimizer step; skips count"),
    ColumnSpec("lr", Kind.FLOAT, "learning rate in force, first parameter group"),
    ColumnSpec("grad_l2_pre_clip", Kind.FLOAT, "global L2 norm that the clip saw"),
    ColumnSpec("grad_l2_post_clip", Kind.FLOAT, "the same after clipping; empty on skipped steps"),
    ColumnSpec("loss", Kind.FLOAT, "unscaled loss, mean over micro-batches"),
    ColumnSpec("skipped", Kind.FLAG, "1 where the optimizer did not step"),
    ColumnSpec("skip_reason", Kind.TEXT, "nonfinite_loss, nonfinite_grad or other; detail after :"),
    ColumnSpec("scaler_scale", Kind.FLOAT, "loss scale in force, before update(); 1 without one"),
)

EXTRA: tuple[ColumnSpec, ...] = (
    ColumnSpec("time_s", Kind.FLOAT, "elapsed, monotonic within a segment", "s"),
    ColumnSpec("epoch", Kind.FLOAT, "epoch"),
    ColumnSpec("val_loss", Kind.FLOAT, "validation loss"),
    ColumnSpec("tokens_per_s", Kind.FLOAT, "throughput", "1/s"),
    ColumnSpec("peak_memory_bytes", Kind.FLOAT, "peak device memory", "B"),
    ColumnSpec("update_l2", Kind.FLOAT, "L2 norm of the parameter update"),
    ColumnSpec("param_l2", Kind.FLOAT, "L2 norm of all parameters"),
    ColumnSpec("ema_l2_distance", Kind.FLOAT, "L2 distance of parameters from their EMA"),
    ColumnSpec("norm_overflow", Kind.FLAG, "1 where a norm was Inf though every element is finite"),
    ColumnSpec("grads_scaled", Kind.FLAG, "1 where the clip saw gradients still times the scale"),
    ColumnSpec("covered_steps", Kind.INT, "steps that the row tells of; absent: only its own"),
    ColumnSpec("skipped_steps", Kind.INT, "how many of those the optimizer did not take"),
    ColumnSpec("param_digest", Kind.TEXT, "digest of all parameters before the step"),
    ColumnSpec("grad_l2_local", Kind.FLOAT, "a rank's own gradient norm before the reduction"),
    ColumnSpec("grad_local_nonfinite", Kind.INT, "NaN and Inf elements in a rank's own gradients"),
    ColumnSpec("first_nonfinite", Kind.TEXT, "first parameter whose own gradient has any"),
    ColumnSpec("data_position", Kind.INT, "where a rank is in its data, as the loop counts"),
)

CANONICAL_NAMES: tuple[str, ...] = tuple(c.name for c in CANONICAL)
_BY_NAME = {c.name: c for c in (*CANONICAL, *EXTRA)}
_GROUP_LR = re.compile(r"lr_[1-9]\d*\Z")

SKIP_NONFINITE_LOSS = "nonfinite_loss"
SKIP_NONFINITE_GRAD = "nonfinite_grad"
SKIP_OTHER = "other"


def is_group_lr(name: str) -> bool:
    """Is it the learning rate of a further parameter group (``lr_1``, ``lr_2`` …)?"""
    return bool(_GROUP_LR.match(name))


@lru_cache(maxsize=1024)
def spec_of(name: str) -> ColumnSpec | None:
    """The spec of a known column (``lr_1``, ``lr_2``… included), or None for a foreign one."""
    if is_group_lr(name):
        return ColumnSpec(name, Kind.FLOAT, "learning rate of a further parameter group")
    return _BY_NAME.get(name)
