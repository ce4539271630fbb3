"""Runs with snapshots in memory, for the rules that look into single parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from forensics.diagnose.finding import Finding
from forensics.diagnose.rule import Rule
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest, ParameterInfo
from forensics.runlog.params import COUNTS, ParamMatrix
from forensics.runlog.run import Run
from forensics.runlog.steps import Repair, StepTable

NAMES = tuple(f"blocks.{i}.fc.weight" for i in range(8))


@dataclass(frozen=True)
class MemoryStore:
    """A store with the face of the ones on disk; a NaN in a float statistic is a written NaN
    unless ``absent`` says otherwise."""

    steps: np.ndarray
    subjects: tuple[str, ...]
    stats: Mapping[str, np.ndarray]
    absent: Mapping[str, np.ndarray]
    repairs: tuple[Repair, ...] = ()

    def matrix(self, statistic: str, kind: str = "param") -> ParamMatrix:
        shape = (len(self.steps), len(self.subjects))
        dtype = np.int64 if statistic in COUNTS or statistic == "nonfinite" else np.float32
        if statistic not in self.stats or kind != "param":
            empty = np.full(shape, 0 if dtype is np.int64 else np.nan, dtype)
            return ParamMatrix(self.steps, self.subjects, empty, np.zeros(shape, bool))
        present = ~self.absent.get(statistic, np.zeros(shape, bool))
        values = np.broadcast_to(self.stats[statistic], shape).astype(dtype)
        return ParamMatrix(self.steps, self.subjects, values, present)

    def names(self, kind: str = "param") -> tuple[str, ...]:
        return self.subjects if kind == "param" else ()


def store(
    stats: Mapping[str, Any],
    subjects: Sequence[str] = NAMES,
    steps: Any = None,
    absent: Mapping[str, np.ndarray] | None = None,
) -> MemoryStore:
    """A store of arrays of shape (S, P); without steps one snapshot every 10 steps."""
    arrays = {name: np.asarray(values) for name, values in stats.items()}
    count = len(next(iter(arrays.values()))) if arrays else 0
    at = np.arange(count) * 10 if steps is None else np.asarray(steps)
    return MemoryStore(at.astype(np.int64), tuple(subjects), arrays, absent or {})


def signals_of(
    params: MemoryStore | None = None,
    activations: MemoryStore | None = None,
    *,
    columns: Mapping[str, Any] | None = None,
    manifest: Manifest | None = None,
    ranks: Sequence[StepTable] = (),
    repairs: Sequence[Repair] = (),
    earlier: Sequence[StepTable] = (),
) -> Signals:
    """The signals of a run; without columns a calm log that covers the snapshots."""
    if columns is None:
        taken = [s.steps for s in (params, activations) if s is not None and len(s.steps)]
        rows = max((int(at[-1]) + 1 for at in taken), default=0)
        columns = {"step": np.arange(rows), "lr": np.full(rows, 1e-3), "loss": np.full(rows, 2.0)}
    steps = replace(StepTable.from_arrays(columns), repairs=tuple(repairs), earlier=tuple(earlier))
    run: Any = Run
    return Signals(
        run(
            path=Path("runs/x"),
            steps=steps,
            manifest=manifest,
            params=params,
            activations=activations,
            ranks=tuple(ranks),
        )
    )


def manifest_of(
    names: Sequence[str] = NAMES, shape: tuple[int, ...] = (64, 64), **changes: Any
) -> Manifest:
    """A run.json that knows the parameters; ``dtype``, ``group`` … go to each of them."""
    of_parameter = {
        key: changes.pop(key) for key in ("dtype", "group", "requires_grad") if key in changes
    }
    infos = tuple(ParameterInfo(name=name, shape=shape, **of_parameter) for name in names)
    return replace(Manifest(parameters=infos), **changes)


def found(rule: Rule, signals: Signals) -> list[Finding]:
    """What a rule finds with its default thresholds; it must not be SKIPPED."""
    assert rule.why_skipped(signals) == ""
    with np.errstate(all="ignore"):
        return list(rule.find(signals, rule.defaults))


def noisy(rng: np.random.Generator, snapshots: int, level: Any = 1.0, names: int = 8) -> np.ndarray:
    """Norms around a level with a quarter of lognormal noise, shape (S, P)."""
    return level * np.exp(0.25 * rng.normal(size=(snapshots, names)))


_CELLS = st.sampled_from(
    [0.0, 1.0, -1.0, 1e-8, 2.5, 7e4, 1e30, 3e38, float("nan"), float("inf"), float("-inf")]
)


@st.composite
def any_run(draw: st.DrawFn) -> Signals:
    """Snapshots of any content: NaN, Inf, absent cells, no or one snapshot or parameter."""
    snapshots, width = draw(st.integers(0, 30)), draw(st.integers(0, 8))
    size = snapshots * width
    gaps = draw(st.lists(st.integers(1, 40), min_size=snapshots, max_size=snapshots))
    steps = np.cumsum(gaps) if gaps else np.zeros(0, np.int64)

    def matrix() -> np.ndarray:
        cells = draw(st.lists(_CELLS, min_size=size, max_size=size))
        return np.array(cells, dtype=np.float64).reshape(snapshots, width)

    def mask() -> np.ndarray:
        bits = draw(st.integers(0, 2 ** min(size, 63) - 1)) if size else 0
        flat = np.array([(bits >> (i % 63)) & 1 for i in range(size)], dtype=bool)
        return flat.reshape(snapshots, width)

    names = ("grad_l2", "value_l2", "update_l2", "v_ratio")
    params = store(
        {name: matrix() for name in names}, NAMES[:width], steps, {n: mask() for n in names}
    )
    kinds = ("mean", "std", "absmax", "zero_share", "grad_std")
    modules = tuple(f"layers.{i}" for i in range(width))
    acts = store({n: matrix() for n in kinds}, modules, steps, {n: mask() for n in kinds})
    dtype = draw(st.sampled_from(["float32", "bfloat16"]))
    group = draw(st.sampled_from([0, -1]))
    precision = draw(st.sampled_from(["fp16", "fp32", ""]))
    manifest = manifest_of(NAMES[:width], dtype=dtype, group=group, precision=precision)
    known = draw(st.booleans())
    return signals_of(params, acts, manifest=manifest if known else None)


def assert_sane(rule: Rule, signals: Signals) -> None:
    """Whatever the run holds: findings with steps of the snapshots, texts, finite thresholds."""
    if rule.why_skipped(signals):
        return
    stores = [s for s in (signals.run.params, signals.run.activations) if s is not None]
    taken = np.concatenate([s.steps for s in stores])
    with np.errstate(all="ignore"):
        findings = list(rule.find(signals, rule.defaults))
    for finding in findings:
        assert finding.rule == rule.id
        assert taken.min() <= finding.first_step <= finding.last_step <= taken.max()
        assert finding.message
        assert finding.cause
        assert finding.remedy
        for evidence in finding.evidence:
            assert len(evidence.steps) == len(evidence.values) <= 12
