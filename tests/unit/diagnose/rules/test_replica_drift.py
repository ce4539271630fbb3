"""replica-drift: replicas that began alike have different weights."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.rules.replica_drift import replica_drift
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.snapshot_runs import found, signals_of

ROWS = 200
NORM = np.linspace(10, 12, ROWS)


def judge(own: dict[str, object], *others: dict[str, object]) -> list[Finding]:
    step = {"step": np.arange(ROWS)}
    ranks = [StepTable.from_arrays({**step, **other}) for other in others]
    signals = signals_of(columns={**step, "loss": np.ones(ROWS), **own}, ranks=ranks)
    return found(replica_drift, signals)


def drifted(since: int, factor: float = 1.01) -> dict[str, object]:
    return {"param_l2": np.where(np.arange(ROWS) >= since, NORM * factor, NORM)}


def test_fires_at_the_first_step_apart() -> None:
    (finding,) = judge({"param_l2": NORM}, {"param_l2": NORM}, drifted(80), drifted(120))
    assert finding.severity is Severity.ERROR
    assert finding.subject == "rank 2"
    assert (finding.first_step, finding.last_step) == (80, ROWS - 1)
    assert "2 ranks" in finding.message


def test_fires_on_digests() -> None:
    own = [f"{i:016x}" for i in range(ROWS)]
    other = [*own[:150], *(f"{i:016x}f" for i in range(150, ROWS))]
    (finding,) = judge({"param_digest": own}, {"param_digest": other})
    assert finding.first_step == 150


def test_fires_after_one_meeting() -> None:
    norm = np.array(drifted(150)["param_l2"])
    norm[50:60] *= 1.01
    (finding,) = judge({"param_l2": NORM}, {"param_l2": norm})
    assert finding.first_step == 150


def test_silent_when_alike_up_to_rounding() -> None:
    assert not judge({"param_l2": NORM}, {"param_l2": NORM * (1 + 5e-7)})


def test_silent_under_sharding() -> None:
    assert not judge({"param_l2": NORM}, {"param_l2": NORM * 1.3})
    own = [f"{i:016x}" for i in range(ROWS)]
    assert not judge({"param_digest": own}, {"param_digest": [f"x{text}" for text in own]})


def test_silent_where_replicas_are_averaged_by_design() -> None:
    norm = np.where(np.arange(ROWS) % 20 < 5, NORM, NORM * 1.01)
    assert not judge({"param_l2": NORM}, {"param_l2": norm})


def test_skipped_without_a_norm_or_digest_of_the_ranks() -> None:
    ranks = [StepTable.from_arrays({"step": np.arange(3), "loss": np.ones(3)})]
    signals = signals_of(columns={"step": np.arange(3), "param_l2": np.ones(3)}, ranks=ranks)
    assert "param_l2" in replica_drift.why_skipped(signals)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from([1.0, 1.1, np.nan, np.inf, -1.0, 0.0]), min_size=1, max_size=20),
    st.lists(st.sampled_from([1.0, 1.1, np.nan, np.inf, -1.0, 0.0]), min_size=1, max_size=20),
)
def test_any_norms_are_read_without_an_exception(own: list[float], other: list[float]) -> None:
    ranks = [StepTable.from_arrays({"param_l2": other})]
    for finding in found(replica_drift, signals_of(columns={"param_l2": own}, ranks=ranks)):
        assert 0 <= finding.first_step <= finding.last_step == len(own) - 1
