"""The step log in memory: one numpy array a column, and what is absent told apart from NaN."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from forensics.frozen import dataclass
from forensics.runlog.log_facts import LogFacts, SkipBracket
from forensics.runlog.schema import CANONICAL_NAMES, Kind, spec_of

if TYPE_CHECKING:
    import pandas as pd

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


_MASK = ".present"


def all_present(rows: int) -> BoolArray:
    """A mask of ``rows`` True values that takes no memory; shape (rows,), read-only."""
    return np.broadcast_to(np.True_, (rows,))


@dataclass(frozen=True)
class Column:
    """One column: its values, and where a value was written at all.

    Attributes:
        values: shape (rows,); float64, int64 or bool. Where nothing was written a float holds
            NaN, an integer 0 and a flag False. A text column holds int32 codes into
            ``categories`` (code 0 is the empty text).
        present: shape (rows,), bool. A NaN whose ``present`` is True was written as NaN.
        categories: the texts of a text column, else empty.
    """

    values: NDArray[Any]
    present: BoolArray
    categories: tuple[str, ...] = ()

    def text_at(self, row: int) -> str:
        """The text of one row of a text column."""
        return self.categories[int(self.values[row])]

    def texts(self) -> NDArray[np.object_]:
        """The text of each row of a text column, shape (rows,)."""
        texts: NDArray[np.object_] = np.array(self.categories, dtype=object)[self.values]
        return texts

    def take(self, rows: Any) -> Column:
        """The same column at some rows (an index array, a mask or a slice)."""
        return Column(self.values[rows], self.present[rows], self.categories)


@dataclass(frozen=True)
class Repair:
    """Something the reader had to mend.

    Attributes:
        kind: kebab-case name, such as ``torn-last-line`` or ``unordered-steps``.
        message: one clause a person can read.
        line: 1-based line in the file, where there is one.
        step: step it concerns, where there is one.
        lossy: True where a row or a value was lost or is in doubt.
        count: how many lines or cells are meant.
    """

    kind: str
    message: str
    line: int | None = None
    step: int | None = None
    lossy: bool = False
    count: int = 1


@dataclass(frozen=True)
class StepTable:
    """The step log. Rows are unique in ``step`` and in ascending order.

    Attributes:
        columns: by name, in file order; ``step`` is always there and always present.
        repairs: what the reader mended, in the order met.
        source_format: ``forensics`` for our own CSV, else the importer's name.
        earlier: what the same file holds of earlier runs, or of a time line that a restart left
            behind; oldest first.
        facts: what an importer learned beside the rows; None for a log of every step in our own
            columns.
    """

    columns: Mapping[str, Column]
    repairs: tuple[Repair, ...] = ()
    source_format: str = "forensics"
    earlier: tuple[StepTable, ...] = ()
    facts: LogFacts | None = None

    def __len__(self) -> int:
        return len(self.columns["step"].values)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __getitem__(self, name: str) -> NDArray[Any]:
        """The values of a column, shape (rows,); KeyError where there is none."""
        return self.columns[name].values

    @property
    def step(self) -> IntArray:
        """Step of each row, shape (rows,), int64, strictly ascending."""
        return self.columns["step"].values

    def present(self, name: str) -> BoolArray:
        """Where the column was written, shape (rows,); all False where there is no such column."""
        if name not in self.columns:
            return np.broadcast_to(np.False_, (len(self),))
        return self.columns[name].present

    def has(self, name: str) -> bool:
        """Is the column there with at least one cell written?"""
        return name in self.columns and bool(self.columns[name].present.any())

    @property
    def interval(self) -> int:
        """Steps that a row usually covers; 1 where every step is logged."""
        if "covered_steps" not in self.columns:
            return 1
        covered = self["covered_steps"][self.present("covered_steps")]
        return max(int(np.median(covered)), 1) if len(covered) else 1

    def first_of(self, row: int) -> int:
        """First of the steps that a row covers; its own step where every step is logged."""
        step = int(self.step[row])
        if "covered_steps" not in self.columns:
            return step
        return step - max(int(self["covered_steps"][row]), 1) + 1

    @property
    def skip_brackets(self) -> tuple[SkipBracket, ...]:
        """Skipped steps that are dated only to the steps of a row, in order."""
        if "skipped_steps" not in self.columns:
            return ()
        counts = self["skipped_steps"]
        return tuple(
            SkipBracket(
                first_step=self.first_of(row),
                last_step=int(self.step[row]),
                count=int(counts[row]),
            )
            for row in np.flatnonzero(counts > 0).tolist()
        )

    def take(self, rows: Any) -> StepTable:
        """The same table at some rows (an index array, a mask or a slice)."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return replace(self, columns=columns)

    def to_pandas(self, masks: bool = False) -> pd.DataFrame:
        """A data frame of the values; texts as text, the rest as numbers.

        Args:
            masks: put a ``NAME.present`` column beside each; without them an absent cell and a
                written NaN look alike.
        """
        import pandas as pd

        data: dict[str, Any] = {}
        for name, column in self.columns.items():
            data[name] = column.texts() if column.categories else column.values
            if masks:
                data[f"{name}{_MASK}"] = np.array(column.present)
        return pd.DataFrame(data)

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame) -> Self:
        """A table from a data frame, such as ``to_pandas`` gives.

        ``NAME.present`` columns beside a ``NAME`` are its mask. Without one, a NaN of a plain
        float column is a NaN that was written; a missing value of any other column is absent.
        Rows are sorted by ``step``; of repeated steps the last one is kept.

        Raises:
            ValueError: a step is missing, not whole, or does not fit 64 bits.
        """
        labels = {str(name): name for name in frame.columns}
        arrays: dict[str, Any] = {}
        masks: dict[str, BoolArray] = {}
        for name, label in labels.items():
            if name.endswith(_MASK) and name.removesuffix(_MASK) in labels:
                continue
            series = frame[label]
            arrays[name] = series.to_numpy()
            if not isinstance(series.dtype, np.dtype) or series.dtype.kind not in "fiub":
                masks[name] = series.notna().to_numpy(dtype=bool)
            if name + _MASK in labels:
                masks[name] = frame[labels[name + _MASK]].to_numpy(dtype=bool)
        return cls.from_arrays(arrays, masks)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], masks: Mapping[str, BoolArray] | None = None
    ) -> Self:
        """A table from plain arrays (a missing ``step`` becomes 0, 1, 2 …).

        Columns of the schema get the schema's type; of the others texts stay texts and all else
        becomes float. Rows are sorted by ``step``; of repeated steps the last one is kept.

        Args:
            arrays: per column an array-like of shape (rows,). None is an absent cell.
            masks: where a cell is present, for the columns that have gaps.

        Raises:
            ValueError: the columns differ in length, a value does not fit its column, or a step
                is missing, not whole, or does not fit 64 bits.
        """
        given = {name: np.asarray(values) for name, values in arrays.items()}
        rows = len(next(iter(given.values()))) if given else 0
        given.setdefault("step", np.arange(rows))
        masks = masks or {}
        columns = {
            name: _column(name, given[name], masks.get(name)) for name in canonical_order(given)
        }
        if any(column.values.shape != (rows,) for column in columns.values()):
            raise ValueError(
                f"columns differ in length: {[len(c.values) for c in columns.values()]}"
            )
        if not columns["step"].present.all():
            raise ValueError("a row has no step")
        kept = _kept_rows(columns["step"].values)
        return cls({name: column.take(kept) for name, column in columns.items()})


def canonical_order(names: Iterable[str]) -> tuple[str, ...]:
    """The canonical columns first, in their order, then the others in theirs."""
    there = list(names)
    known = [name for name in CANONICAL_NAMES if name in there]
    return tuple(dict.fromkeys((*known, *there)))


def _kept_rows(step: IntArray) -> Any:
    """The rows of a table in order of step, the last one of each."""
    if (step[1:] > step[:-1]).all():
        return slice(None)
    order = np.argsort(step, kind="stable")
    return order[np.append(np.diff(step[order]) != 0, True)]


def _column(name: str, array: NDArray[Any], mask: BoolArray | None) -> Column:
    """A column of the type the schema gives this name (foreign names: what the values are)."""
    spec = spec_of(name)
    kind = spec.kind if spec else (Kind.FLOAT if array.dtype.kind in "fiub" else Kind.TEXT)
    if spec is None and array.dtype.kind == "O" and not any(isinstance(v, str) for v in array):
        kind = Kind.FLOAT
    present = _written(array, kind) if mask is None else np.asarray(mask, dtype=bool)
    if present.shape != array.shape:
        raise ValueError(f"the mask of {name} has shape {present.shape}, not {array.shape}")
    if kind is Kind.TEXT:
        values = array.tolist()
        return text_column([str(v) if p else "" for v, p in zip(values, present, strict=True)])
    if kind is Kind.INT and array.dtype.kind not in "iu":
        array = _whole(array, present)
    dtype = {Kind.INT: np.int64, Kind.FLAG: np.bool_, Kind.FLOAT: np.float64}[kind]
    if present.all():
        return Column(array.astype(dtype), present)
    filler = np.nan if kind is Kind.FLOAT else 0
    return Column(np.where(present, array, filler).astype(dtype), present)


def _written(array: NDArray[Any], kind: Kind) -> BoolArray:
    """Where an array without mask holds a value: not where it holds None (or, for a flag, NaN)."""
    if array.dtype.kind == "O":
        return np.array([value is not None for value in array.tolist()], dtype=bool)
    if array.dtype.kind == "f" and kind is Kind.FLAG:
        return np.asarray(~np.isnan(array))
    return all_present(len(array))


def _whole(array: NDArray[Any], present: BoolArray) -> IntArray:
    """Floats (or objects) as integers; ValueError where one is not a whole 64-bit number."""
    if array.dtype.kind == "O":
        whole = [int(value) if there else 0 for value, there in zip(array, present, strict=True)]
        if not all(-(2**63) <= step < 2**63 for step in whole):
            raise ValueError("a step does not fit 64 bits")
        return np.array(whole, dtype=np.int64)
    wide = np.where(present, array, 0).astype(np.float64)
    if not (np.abs(wide) < 2.0**63).all() or (wide % 1 != 0).any():
        raise ValueError("a step is not a whole number of 64 bits")
    return wide.astype(np.int64)


def text_column(texts: list[str]) -> Column:
    """A text column from one text a row; the empty text is absent."""
    categories: dict[str, int] = {"": 0}
    codes = np.fromiter(
        (categories.setdefault(t, len(categories)) for t in texts), dtype=np.int32, count=len(texts)
    )
    return Column(codes, codes != 0, tuple(categories))
