"""CSV files of other loggers: our CSV reader with the names of a format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from forensics.runlog.csv_reader.cells import is_absent, parse_number
from forensics.runlog.csv_reader.header import MOST_COLUMNS, Naming, split_cells
from forensics.runlog.csv_reader.table import read_table
from forensics.runlog.log_facts import LogFacts
from forensics.runlog.reading import Reading
from forensics.runlog.scanner.head import Head
from forensics.runlog.scanner.joining import joined_columns
from forensics.runlog.scanner.names import mapped_names
from forensics.runlog.scanner.rows import finished
from forensics.runlog.scanner.source import LogSource
from forensics.runlog.steps import StepTable

_DELIMITERS = (",", ";", "\t")
_STAMP = re.compile(r"\W?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d")
"""What a line of a log begins with, and no header."""
_MOST_WORDS = 6
"""Words of a column's name; more are a sentence."""


def header_of(head: Head) -> list[str]:
    """The names in the first line of a CSV, stripped; empty where it is no header.

    A header has at least two names and at most ``MOST_COLUMNS``, none of them a number or a
    sentence, and the lines after it have as many cells.
    """
    line = head.first_line.decode("utf-8", errors="replace").lstrip("\ufeff")
    if not line or line.lstrip().startswith(("{", "[")):
        return []
    delimiter = max(_DELIMITERS, key=line.count)
    if line.count(delimiter) >= MOST_COLUMNS:
        return []
    names = [cell.strip().strip('"').strip() for cell in split_cells(line, delimiter)]
    if len(names) < 2 or _STAMP.match(names[0]):
        return []
    if any(parse_number(name) is not None for name in names if name):
        return []
    if any(len(name.split()) > _MOST_WORDS for name in names):
        return []
    rows = [row for row in head.lines if not row.lstrip().startswith(b"#")][1:6]
    whole = rows if head.complete or len(rows) < 2 else rows[:-1]
    texts = [row.decode("utf-8", errors="replace") for row in whole]
    if texts and all(len(split_cells(text, delimiter)) != len(names) for text in texts):
        return []
    return names


def read_named(
    source: LogSource, reading: Reading, name: str, naming: Naming, facts: LogFacts
) -> StepTable:
    """Read one CSV, or several that continue each other.

    Args:
        source: the files.
        reading: what the user maps, which goes before ``naming``.
        name: of the importer.
        naming: canonical names of the columns of a header.
        facts: what the importer knows of the format.
    """

    def names(written: Sequence[str]) -> dict[str, str]:
        mapped = mapped_names(written, reading.mapping)
        own = {n: target for n, target in naming(written).items() if target not in mapped.values()}
        return {**own, **mapped}

    tables = [read_table(path, names, reading.progress) for path in source.paths]
    if len(tables) == 1 and tables[0].source_format == "forensics":
        return tables[0]
    for table in tables:
        for repair in table.repairs:
            source.log.take(repair)
    own = tables[0].earlier if len(tables) == 1 else ()
    table = finished(joined_columns(tables), name, facts, source.log)
    return replace(table, earlier=(*own, *table.earlier))


def numbers_in(head: Head, column: int, delimiter: str = ",") -> list[float]:
    """The numbers of one column in the first rows."""
    found = []
    for line in head.lines[1:50]:
        cells = split_cells(line.decode("utf-8", errors="replace"), delimiter)
        if column < len(cells) and not is_absent(cells[column]):
            value = parse_number(cells[column].strip())
            if value is not None:
                found.append(value)
    return found
