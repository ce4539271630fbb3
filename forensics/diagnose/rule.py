"""The shape of a rule: an id, thresholds with sources, declared needs, and one pure function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import field, fields
from typing import Any

from forensics.diagnose.finding import Finding
from forensics.diagnose.signals import Signals
from forensics.frozen import dataclass

SECTIONS = ("What it detects", "Why it matters", "Evidence", "Silent when")
"""Docstring sections every rule file has, in this order."""

Find = Callable[[Signals, Any], Iterator[Finding]]
TooLittle = Callable[[Signals, Any], str]
"""``(signals, thresholds) → why silence would mean nothing``, empty where there is enough."""


def threshold(default: Any, source: str) -> Any:
    """A field of a ``Thresholds`` dataclass: its default, and where that number comes from."""
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule.

    Attributes:
        id: the fault in kebab-case, equal to the file's name.
        find: pure function from the run's signals and thresholds to findings, one an episode.
        defaults: the thresholds in force unless a config file says otherwise.
        needs: columns without which the rule is SKIPPED (``a|b``: one of them is enough).
        parts: parts of the run it needs: ``params``, ``checkpoints``, ``manifest``,
            ``activations``, ``ranks``; ``params.update_l2`` asks for one statistic of them;
            ``clip``: what tells which steps were clipped; ``measured_clip``: norms measured after
            the clip (``a|b``: one of them is enough).
        too_little: says why a run with all of these still holds too little to be CLEAR: the rule
            may find something in it, but where it finds nothing it is SKIPPED.
        doc: the file's docstring.
    """

    id: str
    find: Find
    defaults: Any
    needs: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    too_little: TooLittle | None = None
    doc: str = ""

    @property
    def summary(self) -> str:
        """First line of the docstring."""
        return self.doc.strip().splitlines()[0].rstrip(".")

    def sources(self) -> dict[str, str]:
        """Where each threshold's default comes from, by its name."""
        return {f.name: str(f.metadata.get("source", "")) for f in fields(self.defaults)}

    def why_skipped(self, signals: Signals) -> str:
        """Why this rule cannot run here, or the empty text when it can."""
        missing = signals.missing(self.needs, self.parts)
        return f"no {missing}" if missing else ""


def rule(
    *,
    thresholds: type,
    needs: tuple[str, ...] = (),
    parts: tuple[str, ...] = (),
    too_little: TooLittle | None = None,
) -> Callable[[Find], Rule]:
    """Make a ``Rule`` of the function below; its id is the module's name in kebab-case."""

    def wrap(find: Find) -> Rule:
        module = find.__module__
        return Rule(
            id=module.rsplit(".", 1)[-1].replace("_", "-"),
            find=find,
            defaults=thresholds(),
            needs=needs,
            parts=parts,
            too_little=too_little,
            doc=(sys.modules[module].__doc__ or "").strip(),
        )

    return wrap
