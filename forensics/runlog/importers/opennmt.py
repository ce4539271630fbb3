"""OpenNMT-py's reports, ``Step 50/100000; acc: 5.3; ppl: 1500.21; xent: 7.31; lr: 0.00012; …``.

Means over the steps since the report before. ``xent`` is the loss, of which ``ppl`` is the
exponential; that of a validation stands on a line of its own.
"""

from __future__ import annotations

import math
import re

from forensics.runlog.importers.importer import CERTAIN, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.numbers import NUMBER, quick
from forensics.runlog.scanner.rows import Rows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_EVENT = re.compile(
    rb"Step (?P<step>\d{1,12})/[ \t]{0,12}(?P<total>\d{1,12});[ \t]{0,4}acc:[ \t]{0,6}[\w.]{1,30};"
    rb"[ \t]{0,4}ppl:[ \t]{0,12}[-+\w.]{1,40};[ \t]{0,4}xent:[ \t]{0,9}(?P<loss>%b);"
    rb"(?:[ \t]{0,4}aux: [-+\w.]{1,40};)?[ \t]{0,4}lr:[ \t]{0,9}(?P<lr>%b);"
    rb"|Validation perplexity: (?P<ppl>%b)" % ((NUMBER,) * 3)
)


def _sniff(head: Head) -> Match | None:
    if not any(match["step"] for match in _EVENT.finditer(head.text)):
        return None
    return Match(CERTAIN, "lines such as Step …/…; acc: …; ppl: …; xent: …; lr: …")


def _read(source: LogSource, reading: Reading) -> StepTable:
    rows = Rows(source.log)
    total, step = 0, 0
    for block in source.blocks():
        for match in _EVENT.finditer(block):
            if match["step"] is not None:
                step, total = int(match["step"]), int(match["total"])
                rows.add(step, {"loss": quick(match["loss"]), "lr": quick(match["lr"])})
            elif step:
                rows.add(step, {"val_loss": _log(quick(match["ppl"]))})
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.MEAN, "lr": Meaning.LAST},
        planned_steps=total or None,
        unknown=("gradient norms", "the loss scale"),
    )
    return rows.table(opennmt.name, facts, where=source.path)


def _log(perplexity: float | None) -> float | None:
    """The loss that a perplexity is the exponential of; absent where there is none."""
    if perplexity is None or math.isnan(perplexity):
        return perplexity
    return math.log(perplexity) if perplexity > 0 else None


opennmt = Importer(
    name="opennmt",
    description="OpenNMT-py: Step …/…; acc; ppl; xent; lr lines",
    sniff=_sniff,
    read=_read,
)
