"""poisoned-state: bad moments, averages and statistics beside finite weights."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.diagnose.rules.poisoned_state import poisoned_state
from forensics.runlog.params import ParamMatrix
from forensics.runlog.run import CheckpointInfo
from tests.unit.diagnose.snapshot_runs import MemoryStore, found, store
from tests.unit.diagnose.step_logs import calm, run_of

SUBJECTS = {
    "buffer": ("bn.running_mean", "bn.running_var"),
    "ema": ("body.weight", "head.weight"),
    "optimizer": ("body.weight.exp_avg", "body.weight.exp_avg_sq"),
}


@dataclass(frozen=True)
class KindStore:
    """A store that has counts of non-finite values for every kind of state."""

    kinds: dict[str, MemoryStore]

    def matrix(self, statistic: str, kind: str = "param") -> ParamMatrix:
        return self.kinds[kind].matrix(statistic)


def states(**bad: dict[tuple[int, int], int]) -> KindStore:
    def counts(cells: dict[tuple[int, int], int], names: tuple[str, ...]) -> MemoryStore:
        values = np.zeros((10, len(names)), dtype=np.int64)
        for at, count in cells.items():
            values[at] = count
        return store({"value_nonfinite": values}, names)

    names = {"param": ("body.weight", "head.weight"), **SUBJECTS}
    return KindStore({kind: counts(bad.get(kind, {}), names[kind]) for kind in names})


def test_fires_on_running_statistics_that_only_evaluation_uses() -> None:
    params = states(buffer={(at, 1): 4 for at in range(5, 10)})
    (finding,) = found(poisoned_state, run_of(calm(100), params=params))
    assert finding.severity is Severity.ERROR
    assert finding.subject == "bn.running_var"
    assert (finding.earliest_step, finding.first_step, finding.last_step) == (41, 50, 99)
    assert "at step 50 (4 elements, still finite at step 40)" in finding.message
    assert "evaluation uses these statistics" in finding.message
    assert "a skipped step does not protect them" in finding.cause


def test_silent_on_a_mask_that_is_infinite_by_nature() -> None:
    params = states(buffer={(at, 0): 10 for at in range(10)}, ema={(at, 0): 10 for at in range(10)})
    assert not found(poisoned_state, run_of(calm(100), params=params))


def test_fires_on_a_mask_in_which_more_becomes_non_finite() -> None:
    params = states(buffer={(at, 0): 10 + (at >= 6) for at in range(10)})
    (finding,) = found(poisoned_state, run_of(calm(100), params=params))
    assert finding.first_step == 60


def test_fires_as_critical_on_a_moment_before_it_reaches_the_weights() -> None:
    weights = {(at, 0): 64 for at in range(6, 10)}
    params = states(optimizer={(at, 1): 64 for at in range(5, 10)}, param=weights)
    (finding,) = found(poisoned_state, run_of(calm(100), params=params))
    assert finding.severity is Severity.CRITICAL
    assert (finding.first_step, finding.subject) == (50, "body.weight.exp_avg_sq")
    assert finding.earliest_step == 40  # a snapshot shows moments before its step's own update


def test_fires_on_an_average_and_says_that_it_is_one() -> None:
    params = states(ema={(5, 0): 1})
    (finding,) = found(poisoned_state, run_of(calm(100), params=params))
    assert finding.subject == "EMA of body.weight"
    assert (finding.first_step, finding.last_step) == (50, 50)


def test_fires_on_a_checkpoint() -> None:
    listed = {"bad": [{"name": "ema.shadow.head.weight", "kind": "ema", "nan": 2}]}
    saved = [
        CheckpointInfo(20, Path("step-20.pt"), True, {}),
        CheckpointInfo(40, Path("step-40.pt"), False, listed),
    ]
    (finding,) = found(poisoned_state, run_of(calm(100), checkpoints=saved))
    assert finding.first_step == 40
    assert "checkpoint before step 40" in finding.message


def test_silent_where_the_weights_are_bad_as_well() -> None:
    both = {(5, 0): 3}
    params = states(buffer=both, optimizer=both, ema=both, param=both)
    assert found(poisoned_state, run_of(calm(100), params=params)) == []
    listed = {"bad": [{"name": "a", "kind": "param"}, {"name": "b", "kind": "ema"}]}
    saved = [CheckpointInfo(40, Path("step-40.pt"), False, listed)]
    assert found(poisoned_state, run_of(calm(100), checkpoints=saved)) == []


def test_silent_on_finite_state_and_on_a_health_file_of_another_shape() -> None:
    odd = CheckpointInfo(40, Path("step-40.pt"), None, {"bad": "unreadable"})
    signals = run_of(calm(100), params=states(), checkpoints=[odd, replace(odd, health={})])
    assert found(poisoned_state, signals) == []
