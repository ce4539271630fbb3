"""The table of training results in a model card, as the Hugging Face Trainer writes it.

A row an evaluation: ``| Training Loss | Epoch | Step | Validation Loss | …``. The training loss is
the one logged last before it (``No log`` before the first), a mean over the logging interval; the
gradient norm and the learning rate are not there.
"""

from __future__ import annotations

import re

from forensics.errors import InputError
from forensics.runlog.csv_reader.cells import is_absent, parse_number
from forensics.runlog.importers.importer import LIKELY, Importer, Match
from forensics.runlog.log_facts import LogFacts, Meaning
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.records import RecordRows
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_HEADER = re.compile(
    rb"^[ \t]*\|(?=[^\n]*\bStep\b)[^\n]*\b(?:Training|Validation) Loss\b[^\n]*\|", re.M
)
_RULE = re.compile(r"[\s|:-]+")
_LARGEST = 4 << 20
_COMMA = re.compile(r"\d+,\d+")


def _sniff(head: Head) -> Match | None:
    if not _HEADER.search(head.text):
        return None
    return Match(LIKELY, "a table of Training Loss, Epoch, Step and Validation Loss")


def _read(source: LogSource, reading: Reading) -> StepTable:
    text = source.whole(_LARGEST).replace(b"\r\n", b"\n")
    match = _HEADER.search(text)
    if match is None:
        raise InputError("has no table of training results", where=source.path)
    header, *lines = text[match.start() :].decode("utf-8", "replace").split("\n")
    rows = RecordRows(source.log, reading)
    names, cells = _cells(header), []
    for line in lines:
        if not line.strip().startswith("|"):
            break
        if not _RULE.fullmatch(line):
            cells.append(_cells(line))
    decimal = "," if sum(bool(_COMMA.fullmatch(c)) for row in cells for c in row) else "."
    for row in cells:
        found = zip(names, row, strict=False)
        rows.add({name: None if is_absent(c) else parse_number(c, decimal) for name, c in found})
    facts = LogFacts(
        step_base=1,
        meanings={"loss": Meaning.MEAN, "val_loss": Meaning.MEAN},
        unknown=("gradient norms", "the loss scale", "what happened between evaluations"),
    )
    return rows.table(hf_model_card.name, facts, source.path)


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


hf_model_card = Importer(
    name="hf-model-card",
    description="Hugging Face model cards: README.md with a table of training results",
    sniff=_sniff,
    read=_read,
    columns=True,
)
