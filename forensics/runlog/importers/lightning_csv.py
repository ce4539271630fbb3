"""``metrics.csv`` of Lightning's ``CSVLogger``: sparse rows over the union of all metrics.

``step`` counts from 0 and is the last one of the logging interval. Training metrics, learning
rates and validation metrics each have rows of their own, several for one step; an empty cell means
that nothing was logged, ``nan`` that it was NaN. Values logged at a step are of that step, those
that end in ``_epoch`` means over an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from forensics.runlog.importers.importer import Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.epochs import by_epoch
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.named_csv import header_of, read_named
from forensics.runlog.scanner.names import canonical_name, name_columns
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable


def _sniff(head: Head) -> Match | None:
    names = header_of(head)
    if not {"epoch", "step"} <= set(names) or "_step" in names:
        return None
    if not any(target == "loss" or "loss" in name for name, target in _naming(names).items()):
        return None
    # The first rows' keys in order of name; keys that appear later are put behind them.
    ordered = names[: names.index("step") + 1]
    sparse = any(b",," in line for line in head.lines[1:20])
    if ordered == sorted(ordered) and len(ordered) > 1:
        return Match(0.9 if sparse else 0.7, "a CSV of epoch, step and metrics in order of name")
    if names[-2:] == ["epoch", "step"]:  # versions before 1.6: the metrics as they were logged
        return Match(0.7, "a CSV of metrics, epoch and step")
    return Match(0.6, "a sparse CSV of epoch, step and metrics") if sparse else None


def _naming(names: Sequence[str]) -> dict[str, str]:
    """Names of single steps go before those of epochs, which go before guesses."""
    steps = [name for name in names if not name.endswith("_epoch")]
    chosen = name_columns(steps)
    for name in names:
        bare = name.removesuffix("_step").removesuffix("_epoch")
        target = canonical_name(bare) if bare != name else None
        if target is not None and target not in chosen.values():
            chosen[name] = target
    return chosen if "loss" in chosen.values() else {**chosen, **loss_like(names)}


def _read(source: LogSource, reading: Reading) -> StepTable:
    facts = LogFacts(step_base=0, meanings={"loss": Meaning.LAST, "grad_l2_pre_clip": Meaning.LAST})
    return by_epoch(read_named(source, reading, lightning_csv.name, _naming, facts))


lightning_csv = Importer(
    name="lightning-csv",
    description="Lightning CSVLogger: metrics.csv",
    sniff=_sniff,
    read=_read,
    columns=True,
)
