"""How numbers and steps are written in messages, the same everywhere."""

from __future__ import annotations

import math

from forensics.diagnose.finding import Finding


def number(value: float, digits: int = 3) -> str:
    """A number for a person: 3 significant digits, thousands separators, NaN and inf as words."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return (
            f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}e{int(exponent)}"
        )
    if value == int(value):
        return f"{int(value):,}"
    if size >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" in text else text


def power_of_two(value: float) -> str:
    """A loss scale: plain while it is readable, else as a power of two where it is one."""
    if value > 0 and math.isfinite(value):
        exponent = math.log2(value)
        if exponent == round(exponent) and not 1 / 64 <= value < 1e7:
            return f"2^{round(exponent)}"
    return number(value)


def steps(count: int) -> str:
    """A count of steps: ``1 step``, ``12,480 steps``."""
    return counted(count, "step")


def counted(count: int, singular: str, plural: str = "") -> str:
    """A count of anything: ``1 snapshot``, ``3 snapshots``, ``2 matrices`` (its own plural)."""
    return f"{count:,} {singular if count == 1 else plural or f'{singular}s'}"


def every(count: int) -> str:
    """How often something comes: ``every step``, ``every 7 steps``."""
    return "every step" if count == 1 else f"every {steps(count)}"


def times(count: int) -> str:
    """A count of occurrences: ``once``, ``twice``, ``14 times``."""
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def span(first: int, last: int) -> str:
    """A stretch of steps: ``step 8,218`` or ``steps 8,218 to 8,362``."""
    return f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"


def start_of(finding: Finding) -> str:
    """Where a finding starts: ``8,218``, or ``31–40`` where it lies between two snapshots."""
    if finding.earliest_step is None or finding.earliest_step == finding.first_step:
        return f"{finding.first_step:,}"
    return f"{finding.earliest_step:,}–{finding.first_step:,}"


def percent(share: float) -> str:
    """A share of 1 as a percentage: whole above 10 %, one digit below."""
    value = 100 * share
    return f"{value:.0f} %" if value >= 10 or value == int(value) else f"{value:.2g} %"


def factor(ratio: float) -> str:
    """A ratio: ``×38`` or ``×0.12``."""
    return f"×{number(ratio)}"


def clause(text: str) -> str:
    """A message of another program as part of a sentence: on one line, without its full stop."""
    line = " ".join(text.split())
    return line if line.endswith("..") else line.removesuffix(".")


def sentence(text: str) -> str:
    """A message as a sentence; the name of a column or parameter keeps its own spelling."""
    text = text.strip()
    first = text.split(" ", 1)[0].rstrip(".")
    if not any(mark in first for mark in "._0123456789"):
        text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
