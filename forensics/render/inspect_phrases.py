"""What is said of a saved state, in text and in Markdown alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from forensics.diagnose.state_health import BadValue, StateHealth
from forensics.diagnose.wording import counted, number, percent, power_of_two

MOST_BAD = 12
"""Bad tensors told one by one; JSON has them all."""
MOST_NUMBERS = 4
"""Learning rates and scales that are told."""
_DTYPES_SHOWN = 3
_KINDS = {
    "param": "parameter",
    "buffer": "buffer",
    "optimizer": "optimizer state",
    "ema": "averaged value",
    "scaler": "loss scaler",
    "lr": "learning rate",
    "other": "other value",
}
HEADER = ("TENSOR", "kind", "NaN", "Inf", "of", "first at")


def facts(health: StateHealth) -> str:
    """``step 700 · torch · 1.2 GB · 148 tensors, 310,000,000 elements: float32``."""
    step = "no step" if health.step is None else f"step {health.step:,}"
    tensors = counted(health.tensors, "tensor")
    elements = counted(health.elements, "element")
    mix = f": {_mix(health.dtypes)}" if health.dtypes else ""
    parts = (step, health.format, size_text(health.size), f"{tensors}, {elements}{mix}")
    return " · ".join(parts)


def _mix(dtypes: Mapping[str, int]) -> str:
    """``float32 62 %, bfloat16 38 %``; a single one without its share."""
    if len(dtypes) == 1:
        return next(iter(dtypes))
    total = max(sum(dtypes.values()), 1)
    shown = [f"{name} {percent(count / total)}" for name, count in dtypes.items()]
    more = len(shown) - _DTYPES_SHOWN
    return ", ".join(shown[:_DTYPES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def size_text(size: int) -> str:
    """Bytes for a person: ``834 bytes``, ``28.4 kB``, ``1.2 GB``."""
    value, unit = float(size), ""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{size:,} bytes" if unit == "bytes" else f"{value:.3g} {unit}"


def verdict(health: StateHealth) -> str:
    """One sentence: is it finite?"""
    if health.finite:
        return "finite: nothing in it is NaN, nor infinite where it must not be."
    kinds = Counter(_KINDS.get(tensor.kind, tensor.kind) for tensor in health.bad)
    told = [counted(count, kind) for kind, count in kinds.most_common()]
    who = " and ".join(part for part in (", ".join(told[:-1]), told[-1]) if part)
    return f"not finite: {who} {'holds' if len(health.bad) == 1 else 'hold'} NaN or Inf."


def bad_cells(bad: BadValue) -> tuple[str, ...]:
    """A row of the table under ``HEADER``."""
    owner = f" ({bad.parameter})" if bad.parameter and not bad.name.endswith(bad.parameter) else ""
    first = f"[{', '.join(map(str, bad.first))}]" if bad.first else "–"
    return (
        f"{bad.name}{owner}",
        bad.kind,
        f"{bad.nan:,}" if bad.nan else "–",
        f"{bad.inf:,}" if bad.inf else "–",
        f"{bad.numel:,}",
        first,
    )


def largest(health: StateHealth) -> list[tuple[str, str, str]]:
    """Kind, largest magnitude and its tensor, for each kind that has a finite one."""
    return [
        (_KINDS.get(kind, kind), number(entry["absmax"]), entry["name"])
        for kind, entry in health.extremes.items()
    ]


def numbers(health: StateHealth) -> str:
    """``lr 0.001 (optimizers.0.param_groups.0.lr) · scale 65,536 (scaler.scale)``."""
    told = [
        f"{'scale' if 'scale' in name.rpartition('.')[2] else 'lr'} {power_of_two(value)} ({name})"
        for name, value in health.numbers.items()
    ]
    more = len(told) - MOST_NUMBERS
    return " · ".join(told[:MOST_NUMBERS]) + (f" and {more} more" if more > 0 else "")


def infinite(health: StateHealth) -> str:
    """What is infinite and may be meant; empty for nothing."""
    if not health.infinite:
        return ""
    shown = ", ".join(f"{value.name} ({value.inf:,} Inf)" for value in health.infinite[:3])
    more = len(health.infinite) - 3
    rest = f" and {more} more" if more > 0 else ""
    return f"{shown}{rest}: infinite, as masks and best values so far may be."


def missing(health: StateHealth) -> str:
    """What a resume lacks."""
    return "; ".join(health.missing) if health.missing else "nothing"


def notes(health: StateHealth) -> Sequence[str]:
    """Everything else, most serious first."""
    told = infinite(health)
    return (*health.risks, *([told] if told else []), *health.notes)
