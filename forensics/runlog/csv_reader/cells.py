"""One cell of a log: the many spellings of a number, a flag, a step, and of nothing at all."""

from __future__ import annotations

import math
import re

ABSENT = frozenset(
    (
        *("", "NA", "N/A", "na", "n/a", "None", "none", "NONE", "null", "Null", "NULL", "-", "--"),
        "No log",  # Hugging Face's table of results, before the first logged loss
    )
)
"""Texts that say that nothing was written; NaN is not one of them."""
ARROW_ABSENT = ("", "NA", "None", "null")
"""The same for pyarrow, whose own list counts ``nan`` and ``NaN`` as absent."""
TRUE = frozenset(("1", "true", "yes", "y", "t", "on"))
FALSE = frozenset(("0", "false", "no", "n", "f", "off"))
ARROW_TRUE = ("1", "True", "true", "TRUE")
ARROW_FALSE = ("0", "False", "false", "FALSE")
INT64 = range(-(2**63), 2**63)

_AROUND = " \t\r\f\v\"'"
_WRAPPED = re.compile(r"[A-Za-z_][\w.]*+\(([^(),]++)(?:,[^()]*+)?\)")
"""``tensor(0.5, device='cuda:0')``, ``np.float64(0.5)``, ``array(nan)``."""
WRAPPED = re.compile(
    rb"(?:tensor|array|(?:np\.|numpy\.)?float\d+)\(\s*([-+.\w]+)\s*(?:,[^()\n\"]*)?\)"
)
"""The same in a line of bytes, for the wrappers that whole logs are full of; group 1 the number."""
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][+-]?\d+)?")
_THOUSANDS_DOTTED = re.compile(r"[+-]?[1-9]\d{0,2}(?:\.\d{3})+,\d*")
_COUNTED = re.compile(
    r"(?:epoch|step|iter(?:ation)?)\s*(?:[:#=]\s*)?(\d{1,18})(?:\s*/\s*\d{1,18})?|(\d{1,18})\s*/\s*\d{1,18}",
    re.IGNORECASE,
)
"""A count with its name in front or its end behind: ``Epoch 3``, ``3/80``."""
_WINDOWS_NAN = re.compile(r"[+-]?(?:1\.#(?:QNAN|SNAN|IND|NAN)0*|nan\(\w+\))", re.IGNORECASE)
_WINDOWS_INF = re.compile(r"([+-]?)1\.#INF0*", re.IGNORECASE)


def parse_number(text: str, decimal: str = ".") -> float | None:
    """A cell as a number; None where it is none.

    Takes every spelling of NaN and infinity, a decimal comma (``decimal=","``), separated
    thousands where they cannot mean anything else, flags (as 1 and 0), and a number wrapped as
    a tensor or a numpy scalar prints itself.
    """
    if decimal == "." and text.isascii() and "_" not in text:
        try:
            return float(text)
        except ValueError:
            pass
    bare = text.strip(_AROUND)
    if decimal == ",":
        if _THOUSANDS_DOTTED.fullmatch(bare):
            bare = bare.replace(".", "")
        if bare.count(",") == 1:
            bare = bare.replace(",", ".")
    elif "," in bare and _THOUSANDS.fullmatch(bare):
        bare = bare.replace(",", "")
    return _plain_number(bare)


def _plain_number(bare: str) -> float | None:
    if "_" not in bare and bare.isascii():
        try:
            return float(bare)
        except ValueError:
            pass
    if infinite := _WINDOWS_INF.fullmatch(bare):
        return -math.inf if infinite.group(1) == "-" else math.inf
    if _WINDOWS_NAN.fullmatch(bare):
        return math.nan
    if wrapped := _WRAPPED.fullmatch(bare):
        return _plain_number(wrapped.group(1).strip())
    if bare.lower() in ("true", "false"):
        return float(bare.lower() == "true")
    if counted := _COUNTED.fullmatch(bare):
        return float(counted.group(1) or counted.group(2))
    return None


def parse_flag(text: str, decimal: str = ".") -> bool | None:
    """A cell as a flag; None where it is none. A number other than 0 is true, NaN is neither."""
    word = text.strip(_AROUND).lower()
    if word in TRUE or word in FALSE:
        return word in TRUE
    number = parse_number(text, decimal)
    return None if number is None or math.isnan(number) else number != 0


def parse_step(text: str, decimal: str = ".") -> int | None:
    """A cell as a step: a whole number that fits 64 bits, ``12.0`` too; else None."""
    bare = text.strip(_AROUND)
    try:
        step = int(bare) if "_" not in bare and bare.isascii() else None
    except ValueError:  # also: more digits than Python converts
        step = None
    if step is None:
        number = parse_number(bare, decimal)
        if number is None or not number.is_integer():
            return None
        step = int(number)
    return step if step in INT64 else None


def is_absent(text: str) -> bool:
    """Does the cell say that nothing was written?"""
    return text.strip() in ABSENT
