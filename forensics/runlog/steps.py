"""The step log in memory: one numpy array a column, and what is absent told apart from NaN."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from forensics.runlog.schema import CANONICAL_NAMES, Kind, spec_of

if TYPE_CHECKING:
    import pandas as pd

BoolArray = NDArray[np.bool_]
FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
    """

    columns: Mapping[str, Column]
    repairs: tuple[Repair, ...] = ()
    source_format: str = "forensics"
    earlier: tuple[StepTable, ...] = ()

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

    def take(self, rows: Any) -> StepTable:
        """The same table at some rows (an index array, a mask or a slice)."""
        columns = {name: column.take(rows) for name, column in self.columns.items()}
        return StepTable(columns, self.repairs, self.source_format)

    def to_pandas(self, masks: bool = False) -> pd.DataFrame:
        """A data frame of the values; with ``masks`` a ``NAME.present`` column beside each.

        Without ``masks`` an absent cell and a written NaN look alike.
        """
        import pandas as pd

        data: dict[str, Any] = {}
        for name, column in self.columns.items():
            data[name] = (
                np.array(column.categories, dtype=object)[column.values]
                if column.categories
                else column.values
            )
            if masks:
                data[f"{name}.present"] = np.array(column.present)
        return pd.DataFrame(data)

    @classmethod
    def from_pandas(cls, frame: pd.DataFrame) -> Self:
        """A table from a data frame; ``NAME.present`` columns are masks, else NaN is kept as NaN.

        Rows are sorted by ``step``; of repeated steps the last one is kept.
        """
        names = [str(name) for name in frame.columns if not str(name).endswith(".present")]
        arrays = {name: frame[name].to_numpy() for name in names}
        masks = {
            name: frame[f"{name}.present"].to_numpy(dtype=bool)
            for name in names
            if f"{name}.present" in frame.columns
        }
        return cls.from_arrays(arrays, masks)

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, Any], masks: Mapping[str, BoolArray] | None = None
    ) -> Self:
        """A table from plain arrays (a missing ``step`` becomes 0, 1, 2 …).

        Args:
            arrays: per column an array-like of shape (rows,).
            masks: where a cell is present, for the columns that have gaps.
        """
        rows = len(next(iter(arrays.values()))) if arrays else 0
        arrays = {"step": arrays.get("step", np.arange(rows)), **arrays}
        masks = masks or {}
        step = np.asarray(arrays["step"], dtype=np.int64)
        order = np.argsort(step, kind="stable")
        last = np.append(np.diff(step[order]) != 0, True) if rows else np.zeros(0, dtype=bool)
        kept = order[last]
        columns = {
            name: _column(name, values, masks.get(name)).take(kept)
            for name, values in arrays.items()
        }
        known = [name for name in CANONICAL_NAMES if name in columns]
        rest = [name for name in columns if name not in CANONICAL_NAMES]
        return cls({name: columns[name] for name in (*known, *rest)})


def _column(name: str, values: Any, mask: BoolArray | None) -> Column:
    """A column of the type the schema gives this name (foreign names: what the values are)."""
    spec = spec_of(name)
    array = np.asarray(values)
    present = all_present(len(array)) if mask is None else np.asarray(mask, dtype=bool)
    kind = spec.kind if spec else (Kind.TEXT if array.dtype.kind in "OUS" else Kind.FLOAT)
    if kind is Kind.TEXT:
        return text_column([str(v) for v in array.tolist()])
    dtype = {Kind.INT: np.int64, Kind.FLAG: np.bool_, Kind.FLOAT: np.float64}[kind]
    return Column(array.astype(dtype), present)


def text_column(texts: list[str]) -> Column:
    """A text column from one text a row; the empty text is absent."""
    categories: dict[str, int] = {"": 0}
    codes = np.fromiter(
        (categories.setdefault(t, len(categories)) for t in texts), dtype=np.int32, count=len(texts)
    )
    return Column(codes, codes != 0, tuple(categories))
