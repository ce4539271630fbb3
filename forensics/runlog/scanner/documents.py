"""The history of a run in a JSON document: lists of numbers by name, or a list of records."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from forensics.frozen import dataclass
from forensics.runlog.csv_reader.header import USABLE
from forensics.runlog.scanner.loss_like import loss_like
from forensics.runlog.scanner.names import name_columns
from forensics.runlog.scanner.records import flattened, json_object, value

Record = Mapping[str, Any]

_DEEPEST = 3
_LOOKED_AT = 20
"""Records of a list by whose names it is judged."""
_LIST = re.compile(rb'"([^"\\\n]{1,200})"\s*:\s*\[([-+\w.,\s"]*)')
_SIDES = {"train": "loss", "training": "loss", "val": "val_loss", "valid": "val_loss"}
_SIDES |= {"validation": "val_loss", "test": "val_loss"}
"""Names of lists that say whose loss they are and leave out that they are one."""


@dataclass(frozen=True)
class History:
    """What a document tells of a run.

    Attributes:
        records: one for each row, in order.
        mapping: canonical name → name in the records, where the name alone does not tell.
        notes: what was left out, a clause each.
    """

    records: Sequence[Record]
    mapping: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> frozenset[str]:
        """The columns by which a training can be judged."""
        return _known(_names(self.records)) | frozenset(self.mapping)


def history_in(document: Any, mapped: Collection[str] = ()) -> History | None:
    """The history in a document; None where there is none.

    Of several, one with names that the user maps, else one that tells a loss, else one that tells
    anything, else the longest. It may lie under names (``{"results": {"train_losses": […]}}``),
    have its lists on both sides of one (``{"train": {"loss": […]}, "val": …}``), or be what pandas
    writes of a frame, by column or by row.
    """
    found = [*_of_records(document, _DEEPEST), *_of_lists(dict(_lists(document, "", _DEEPEST)))]
    return _best(found, mapped)


def _best(found: Iterable[History], mapped: Collection[str]) -> History | None:
    def rank(history: History) -> tuple[int, bool, bool, int]:
        meant = sum(name in mapped for name in _names(history.records))
        return meant, "loss" in history.known, bool(history.known), len(history.records)

    return max(found, key=rank, default=None)


def salvaged(text: bytes, mapped: Collection[str] = ()) -> History | None:
    """What is left of a document that is cut: its whole records, or the lists as far as they go."""
    lists = {
        m.group(1).decode("utf-8", "replace"): _numbers(m.group(2)) for m in _LIST.finditer(text)
    }
    return _best(_of_lists({n: v for n, v in lists.items() if v}, cut=True), mapped)


def _names(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(key for r in islice(records, _LOOKED_AT) for key in flattened(r)))


def _known(names: Sequence[str]) -> frozenset[str]:
    return (frozenset(name_columns(names).values()) | frozenset(loss_like(names).values())) & USABLE


def _of_records(node: Any, depth: int) -> Iterator[History]:
    """Lists of objects, and objects of objects whose names are numbers, wherever they are."""
    if isinstance(node, list):
        records = [item for item in node if isinstance(item, dict)]
        if records and len(records) * 2 > len(node):
            yield History(records, {})
    elif isinstance(node, dict):
        inner = [item for item in node.values() if isinstance(item, dict)]
        if len(inner) == len(node) > 1 and all(key.isdecimal() for key in node):
            yield History(inner, {})
        elif depth:
            for item in node.values():
                yield from _of_records(item, depth - 1)


def _lists(node: Any, path: str, depth: int) -> Iterator[tuple[str, list[Any]]]:
    """The lists of numbers in a document by their names, those of outer objects in front."""
    if not isinstance(node, dict):
        return
    for name, item in node.items():
        full = f"{path}/{name}" if path else name
        if isinstance(item, dict) and len(item) > 1 and all(key.isdecimal() for key in item):
            item = list(item.values())
        if isinstance(item, list) and item and all(map(_is_number, item)):
            yield full, item
        elif depth:
            yield from _lists(item, full, depth - 1)


def _is_number(item: Any) -> bool:
    return item is None or value(item) is not None


def _of_lists(lists: Mapping[str, Sequence[Any]], *, cut: bool = False) -> Iterator[History]:
    """Lists of one length as the columns of a history; of a cut document shorter ones as well."""
    for length in {len(numbers) for numbers in lists.values()} - {1}:
        inside = {n: v for n, v in lists.items() if len(v) == length or (cut and len(v) < length)}
        names = _short(list(inside))
        filled = [[*v, *[None] * (length - len(v))] for v in inside.values()]
        records = [dict(zip(names, row, strict=True)) for row in zip(*filled, strict=True)]
        mapping = {} if "loss" in _known(names) else _sides(dict(zip(names, filled, strict=True)))
        others = {n: len(v) for n, v in lists.items() if n not in inside and _known(_short([n]))}
        notes = tuple(
            f"{name!r} has {count:,} values and not {length:,}: left out"
            for name, count in others.items()
        )
        yield History(records, mapping, notes)


def _short(paths: Sequence[str]) -> list[str]:
    """Names without the outer ones that all have in common; ``epochs`` numbers the rows."""
    parts = [path.split("/") for path in paths]
    common = 0
    while all(len(part) > common + 1 for part in parts) and len({p[common] for p in parts}) == 1:
        common += 1
    names = ["/".join(part[common:]) for part in parts]
    return ["epoch" if name == "epochs" and "epoch" not in names else name for name in names]


def _sides(columns: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """``train`` and ``val`` as the losses that they must be where the first one falls."""
    mapping: dict[str, str] = {}
    for name in columns:
        mapping.setdefault(_SIDES.get(name.lower(), ""), name)
    mapping.pop("", None)
    if set(mapping) != {"loss", "val_loss"}:
        return {}
    numbers = [n for item in columns[mapping["loss"]] if (n := value(item)) is not None]
    third = len(numbers) // 3
    falls = third > 0 and sum(numbers[-third:]) < sum(numbers[:third])
    return mapping if falls else {}


def _numbers(text: bytes) -> list[float | None]:
    """The numbers of a list as far as it goes; none if it holds anything else."""
    inside = json_object(b'{"it": [%s]}' % text.rstrip().rstrip(b","))
    items = inside["it"] if inside is not None else []
    return items if all(map(_is_number, items)) else []
