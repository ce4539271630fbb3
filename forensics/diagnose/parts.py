"""What a rule needs of a run, and in which words a report says that it is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forensics.diagnose.signals import Signals

_NAMES = {
    "params": "per-parameter snapshots",
    "checkpoints": "checkpoints",
    "manifest": "run.json",
    "activations": "activation statistics",
    "ranks": "per-rank logs (one rank only)",
    "rank_marks": "marks of the ranks (one rank only)",
    "clip": "clip threshold in run.json or norms after the clip",
    "measured_clip": "norms measured after the clip (derived ones say nothing about it)",
}


def missing(signals: Signals, needs: Iterable[str], parts: Iterable[str]) -> str:
    """What a rule needs and this run lacks, for a person to read; empty when nothing.

    Args:
        signals: the run.
        needs: columns; ``a|b``: one of them is enough.
        parts: parts of the run by the names that ``Rule`` lists, alternatives alike; a name that
            is no part is a column. ``params.update_l2`` asks for one statistic of the snapshots.
    """
    lacking = [
        f"{need.replace('|', ' or ')} column"
        for need in needs
        if not signals.has(need) and not any(map(signals.has, need.split("|")))
    ]
    lacking += [
        " or ".join(dict.fromkeys(_name(signals, name) for name in part.split("|")))
        for part in parts
        if not any(map(signals.offers, part.split("|")))
    ]
    return ", ".join(dict.fromkeys(lacking)) if lacking else ""


def in_words(needs: Iterable[str], parts: Iterable[str]) -> list[str]:
    """What a rule needs of any run, one text each: its columns, then parts of the run."""
    columns = [f"{need.replace('|', ' or ')} column" for need in needs]
    return [*columns, *(" or ".join(map(_words, part.split("|"))) for part in parts)]


def _words(part: str) -> str:
    part, _, statistic = part.partition(".")
    if part not in _NAMES:
        return f"{part} column"
    return f"{statistic} in the {_NAMES[part].partition(' (')[0]}" if statistic else _NAMES[part]


def _name(signals: Signals, part: str) -> str:
    """The part in words; a statistic is named where the part is there without it."""
    whole, _, statistic = part.partition(".")
    return _words(part if statistic and signals.offers(whole) else whole)


def available(signals: Signals, part: str) -> bool:
    """Is a part of the run, or a column, there? ``Signals.offers`` remembers it."""
    part, _, statistic = part.partition(".")
    run = signals.run
    if part == "params":
        return (signals.param_matrix(statistic) if statistic else run.params) is not None
    if part == "activations":
        return (signals.activation_matrix(statistic) if statistic else run.activations) is not None
    if part == "ranks":
        return any(not statistic or table.has(statistic) for table in run.ranks)
    if part in ("clip", "measured_clip"):
        return _clips(signals, measured=part == "measured_clip")
    if part == "manifest":
        return run.manifest is not None
    if part in ("checkpoints", "rank_marks"):
        return bool(getattr(run, part))
    return part in signals.table


def _clips(signals: Signals, measured: bool) -> bool:
    """Can the log tell what the clip did? Norms derived from its coefficient repeat its promise."""
    manifest = signals.run.manifest
    after = signals.has("grad_l2_post_clip")
    if measured:
        return after and (manifest is None or manifest.post_clip == "measured")
    return after or (manifest is not None and manifest.max_norm is not None)
