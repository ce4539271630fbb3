"""What the rules look at: the run's columns and series derived from them, each computed once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from forensics.diagnose.blocks import blocks, mask_where
from forensics.diagnose.finding import Evidence
from forensics.diagnose.finite import FiniteSeries
from forensics.diagnose.parts import available, missing
from forensics.diagnose.scaler_reading import read_scaler
from forensics.diagnose.scaling import Scaling
from forensics.diagnose.series import merged, spread_out
from forensics.diagnose.wording import counted
from forensics.runlog.log_facts import PER_STEP
from forensics.runlog.manifest import ParameterInfo, ScalerPolicy
from forensics.runlog.params import ParamMatrix
from forensics.runlog.run import Run
from forensics.runlog.schema import SKIP_NONFINITE_LOSS
from forensics.runlog.steps import BoolArray, FloatArray, IntArray

T = TypeVar("T")


class Signals:
    """The signals of one run. Arrays have shape (rows,); rows are in ascending order of step.

    Float columns hold NaN where nothing was written; ``present(name)`` tells that from a NaN
    that was. Everything derived is computed on first use and kept.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.table = run.steps
        self._matrices: dict[tuple[str, str], ParamMatrix | None] = {}
        self._derived: dict[tuple[object, ...], Any] = {}
        self._uniform: dict[bool, BoolArray] = {}
        self._written: dict[str, bool] = {}

    # -- the table -------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.table)

    @property
    def step(self) -> IntArray:
        """Step of each row."""
        return self.table.step

    @property
    def last_step(self) -> int:
        """The last step of the log; 0 in an empty one."""
        return int(self.step[-1]) if len(self) else 0

    def step_at(self, row: int) -> int:
        """Step of one row."""
        return int(self.step[row])

    def has(self, *names: str) -> bool:
        """Are all these columns there, each with a cell written?"""
        for name in names:  # asked hundreds of times a run, and each looked at once
            if name not in self._written:
                self._written[name] = self.table.has(name)
            if not self._written[name]:
                return False
        return True

    def present(self, name: str) -> BoolArray:
        """Where a column was written; all False where there is none."""
        mask = self.table.present(name)
        # A table's mask of a full (or missing) column takes no memory, but numpy reads it ten times
        # as slowly as a plain one: all such columns share one that is plain.
        return self._plain(bool(mask[0])) if len(mask) > 1 and mask.strides == (0,) else mask

    def _plain(self, value: bool) -> BoolArray:
        if value not in self._uniform:
            self._uniform[value] = np.full(len(self), value)
            self._uniform[value].flags.writeable = False
        return self._uniform[value]

    def column(self, name: str) -> FloatArray:
        """A column as float64; NaN where absent, all NaN where there is no such column."""
        if name not in self.table:
            return np.full(len(self), np.nan)
        return np.asarray(self.table[name], dtype=np.float64)

    def flag(self, name: str) -> BoolArray:
        """A 0/1 column; False where absent."""
        if name not in self.table:
            return np.zeros(len(self), dtype=bool)
        return np.asarray(self.table[name], dtype=bool)

    def missing(self, needs: Iterable[str], parts: Iterable[str]) -> str:
        """What a rule needs and this run lacks, for a person to read; empty when nothing."""
        return missing(self, needs, parts)

    def offers(self, part: str) -> bool:
        """Is this part of a run, or column, there? The names are those that ``Rule`` lists."""
        return self.derived(available, part)

    # -- snapshots --------------------------------------------------------------------------

    def param_matrix(self, statistic: str, kind: str = "param") -> ParamMatrix | None:
        """One statistic of one kind over all snapshots; None where it was never taken."""
        store = self.run.params
        return self._matrix(
            (statistic, kind), None if store is None else lambda: store.matrix(statistic, kind)
        )

    def activation_matrix(self, statistic: str) -> ParamMatrix | None:
        """One activation statistic, snapshots × modules; None where it was never taken."""
        store = self.run.activations
        return self._matrix(
            (statistic, "activation"), None if store is None else lambda: store.matrix(statistic)
        )

    def _matrix(
        self, key: tuple[str, str], read: Callable[[], ParamMatrix] | None
    ) -> ParamMatrix | None:
        """A matrix read once and kept; None where nothing in it is present."""
        if key not in self._matrices:
            matrix = None if read is None else read()
            taken = matrix is not None and bool(np.any(matrix.present))
            self._matrices[key] = matrix if taken else None
        return self._matrices[key]

    @cached_property
    def parameter_info(self) -> Mapping[str, ParameterInfo]:
        """What run.json says about each parameter, by name; empty where there is none."""
        manifest = self.run.manifest
        return {} if manifest is None else {info.name: info for info in manifest.parameters}

    def rows_at(self, steps: IntArray) -> IntArray:
        """The last row at or before each step (0 where there is none), shape of ``steps``."""
        if len(self) == 0:
            return np.zeros(len(steps), dtype=np.int64)
        return np.maximum(np.searchsorted(self.step, steps, side="right") - 1, 0)

    def derived(self, compute: Callable[..., T], *settings: Hashable) -> T:
        """``compute(self, *settings)``, computed once a run: for what several rules share."""
        key = (compute, *settings)
        if key not in self._derived:
            self._derived[key] = compute(self, *settings)
        result: T = self._derived[key]
        return result

    def evidence(
        self,
        signal: str,
        values: FloatArray,
        rows: IntArray | list[int],
        threshold: float | None = None,
    ) -> Evidence:
        """Evidence from some rows of a series (at most 12 of them; rows outside are dropped).

        So are rows in which the column of that name is empty: what was not written is not NaN.
        """
        asked = np.asarray(rows, dtype=np.int64)
        asked = asked[(asked >= 0) & (asked < len(self))]
        if signal in self.table.columns:
            asked = asked[self.present(signal)[asked]]
        picked = spread_out(merged(asked))
        return Evidence(
            signal=signal,
            steps=tuple(int(s) for s in self.step[picked]),
            values=tuple(float(v) for v in values[picked]),
            threshold=None if threshold is None or np.isnan(threshold) else threshold,
        )

    # -- the columns, by the names the rules use --------------------------------------------

    @cached_property
    def loss(self) -> FloatArray:
        """Unscaled loss."""
        return self.column("loss")

    @cached_property
    def finite_loss(self) -> FiniteSeries:
        """The finite losses."""
        return FiniteSeries.of(self.loss)

    @cached_property
    def norm(self) -> FloatArray:
        """Global gradient norm before clipping."""
        return self.column("grad_l2_pre_clip")

    @cached_property
    def post_norm(self) -> FloatArray:
        """Global gradient norm after clipping."""
        return self.column("grad_l2_post_clip")

    @cached_property
    def lr(self) -> FloatArray:
        """Learning rate of the first parameter group."""
        return self.column("lr")

    @cached_property
    def scale(self) -> FloatArray:
        """Loss scale in force during each step."""
        return self.column("scaler_scale")

    @cached_property
    def interval(self) -> int:
        """Steps that a row usually covers; 1 where every step is logged."""
        return self.table.interval

    def told_rows(self, count: int) -> str:
        """A count of rows in words: steps or epochs where each is one, else rows."""
        unit = self.table.facts.unit if self.table.facts is not None else PER_STEP
        return counted(count, unit if self.interval == 1 else "row")

    @cached_property
    def lost_steps(self) -> NDArray[np.integer[Any]]:
        """How many of the steps of each row the optimizer did not take; shape (rows,)."""
        if "covered_steps" not in self.table and "skipped_steps" not in self.table:
            return self.flag("skipped").view(np.int8)  # 0 or 1, and no second array of them
        lost = self.flag("skipped").astype(np.int64)
        if "covered_steps" in self.table:
            lost *= np.maximum(self.table["covered_steps"], 1)
        if "skipped_steps" in self.table:
            lost = np.where(self.present("skipped_steps"), self.table["skipped_steps"], lost)
        return np.asarray(np.maximum(lost, 0), dtype=np.int64)

    @cached_property
    def skipped(self) -> BoolArray:
        """Did the optimizer not step; in a row of many steps, in none of them?"""
        if "skipped_steps" not in self.table:
            return self.flag("skipped")
        covered = np.maximum(self.column("covered_steps"), 1.0)
        whole = self.lost_steps >= np.where(np.isfinite(covered), covered, 1.0)
        return np.asarray((self.lost_steps > 0) & whole, dtype=bool)

    @cached_property
    def skips_known(self) -> BoolArray:
        """Does the row say whether, or how many of, its steps were skipped? Shape (rows,)."""
        said = self.present("skipped")
        return said | self.present("skipped_steps") if "skipped_steps" in self.table else said

    @property
    def counts_steps(self) -> bool:
        """Can a row stand for several steps, or count several skips?"""
        return "covered_steps" in self.table or "skipped_steps" in self.table

    @cached_property
    def loss_bad(self) -> BoolArray:
        """Loss written, and NaN or Inf."""
        return self.present("loss") & ~np.isfinite(self.loss)

    @cached_property
    def norm_bad(self) -> BoolArray:
        """Pre-clip norm written, and NaN or Inf."""
        return self.present("grad_l2_pre_clip") & ~np.isfinite(self.norm)

    @cached_property
    def norm_overflowed(self) -> BoolArray:
        """A norm overflowed though every element was finite (recorded as such)."""
        return self.flag("norm_overflow")

    @property
    def skipped_for_loss(self) -> BoolArray:
        """Skipped before backward because the loss was non-finite (as the log says itself)."""
        return self.reason_starts(SKIP_NONFINITE_LOSS)

    def reason_starts(self, prefix: str) -> BoolArray:
        """Rows whose skip reason starts so; all False where no reasons are logged."""
        return self.derived(_reason_starts, prefix)

    def skip_reason(self, row: int) -> str:
        """The skip reason of one row, or the empty text."""
        column = self.table.columns.get("skip_reason")
        return column.text_at(row) if column is not None and column.categories else ""

    # -- log space -------------------------------------------------------------------------

    @cached_property
    def log_norm(self) -> FiniteSeries:
        """Natural log of the pre-clip norm, where that is finite and positive."""
        norm = self.norm
        positive = mask_where(len(norm), lambda at: np.isfinite(norm[at]) & (norm[at] > 0))
        return FiniteSeries.mapped(norm, positive, np.log)

    # -- precision and scaler ---------------------------------------------------------------

    @cached_property
    def precision(self) -> str:
        """fp32, fp16 or bf16; from run.json, else fp16 where a loss scale is at work, else ''."""
        manifest = self.run.manifest
        if manifest is not None and manifest.precision:
            return manifest.precision
        if self.table.facts is not None and self.table.facts.precision:
            return self.table.facts.precision
        return "fp16" if self.scaler_active else ""

    @cached_property
    def scaler_active(self) -> bool:
        """Was a loss scaler at work: did the scale ever differ from 1, or skip a step at it?"""
        scale = self.scale
        facts = self.table.facts
        if facts is not None and facts.precision == "fp16" and bool(self.skipped.any()):
            return True
        return any(
            bool((np.isfinite(scale[rows]) & (scale[rows] != 1.0)).any())
            for rows in blocks(len(scale))
        )

    @cached_property
    def policy(self) -> ScalerPolicy | None:
        """The scaler policy as run.json states it; None when unknown."""
        manifest = self.run.manifest
        return manifest.scaler if manifest is not None else None

    def scale_log2(self, rows: IntArray | slice) -> FloatArray:
        """Base-2 log of the loss scale in some rows; NaN where it is not finite and positive."""
        scale = self.scale[rows]
        return np.log2(np.where(np.isfinite(scale) & (scale > 0), scale, np.nan))

    @cached_property
    def scaling(self) -> Scaling:
        """What the loss scaler did: falls, growths, its interval, and which skips are routine."""
        return read_scaler(self)


def _reason_starts(signals: Signals, prefix: str) -> BoolArray:
    if "skip_reason" not in signals.table:
        return np.zeros(len(signals), dtype=bool)
    column = signals.table.columns["skip_reason"]
    chosen = np.array([text.startswith(prefix) for text in column.categories], dtype=bool)
    if not chosen.any():
        return np.zeros(len(signals), dtype=bool)
    return np.asarray(chosen[column.values], dtype=bool)
