"""What the logs of all ranks say of a bad step: one of them alone, or all at once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.ranks import all_bad_at_once, unheard_ranks
from forensics.diagnose.rules.nonfinite_gradient import nonfinite_gradient
from forensics.diagnose.rules.nonfinite_loss import nonfinite_loss
from forensics.diagnose.rules.rank_divergence import rank_divergence
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest
from forensics.runlog.steps import StepTable
from tests.unit.diagnose.snapshot_runs import found, signals_of

ROWS, BAD = 200, 120
Log = dict[str, object]


def own_log(**bad: float) -> Log:
    return _log(0, ("loss", "grad_l2_pre_clip"), bad) | {"skipped": np.zeros(ROWS)}


def rank_log(rank: int, **bad: float) -> Log:
    return _log(rank, ("loss", "grad_l2_local"), bad)


def _log(seed: int, names: tuple[str, str], bad: dict[str, float]) -> Log:
    rng = np.random.default_rng(seed)
    columns: Log = {"step": np.arange(ROWS)}
    for name in names:
        values = 2 + 0.1 * rng.random(ROWS)
        values[BAD] = bad.get(name, values[BAD])
        columns[name] = values
    return columns


def run(own: Log, *others: Log, zero: Log | None = None, world_size: int = 0) -> Signals:
    tables = [StepTable.from_arrays(log) for log in others]
    signals = signals_of(columns=own, ranks=tables)
    held = replace(
        signals.run,
        rank_zero=None if zero is None else StepTable.from_arrays(zero),
        manifest=Manifest(precision="fp32", world_size=world_size or 1 + len(others)),
    )
    return Signals(held)


def test_a_loss_that_is_bad_on_all_ranks_at_once_is_no_rank_s_data() -> None:
    signals = run(own_log(loss=np.nan), *(rank_log(i, loss=np.nan) for i in (1, 2)))
    (finding,) = found(nonfinite_loss, signals)
    assert "loss is NaN at step 120 on all 3 ranks (last finite" in finding.message
    assert "it is not one rank's data or device" in finding.cause
    assert not found(rank_divergence, signals)


def test_a_local_norm_of_rank_zero_is_named_where_its_loss_is_finite() -> None:
    zero = rank_log(0, grad_l2_local=np.nan)
    signals = run(own_log(grad_l2_pre_clip=np.nan), rank_log(1), zero=zero)
    (finding,) = found(rank_divergence, signals)
    assert finding.message.startswith("the local gradient norm of rank 0 is NaN at step 120 while")
    norm, loss = finding.evidence
    assert (norm.signal, loss.signal) == ("local gradient norm of rank 0", "loss of rank 0")
    at = norm.steps.index(120)
    assert np.isnan(norm.values[at])
    assert np.isfinite(loss.values).all()


def test_a_loss_that_is_bad_on_one_rank_alone_is_that_rank_s() -> None:
    signals = run(own_log(loss=np.nan), rank_log(1))
    (finding,) = found(nonfinite_loss, signals)
    assert "ranks" not in finding.message
    assert "not one rank's" not in finding.cause
    (divergence,) = found(rank_divergence, signals)
    assert divergence.subject == "rank 0"


def test_gradients_that_are_bad_on_all_ranks_before_the_reduction() -> None:
    own, bad = own_log(grad_l2_pre_clip=np.nan), {"grad_l2_local": np.nan}
    signals = run(own, rank_log(1, **bad), zero=rank_log(0, **bad))
    (finding,) = found(nonfinite_gradient, signals)
    assert "it is not one rank's data or device" in finding.cause
    alone = run(own, rank_log(1, **bad), zero=rank_log(0))
    (finding,) = found(nonfinite_gradient, alone)
    assert "not one rank's" not in finding.cause


@pytest.mark.parametrize("bad_before", [0, 1])
def test_what_one_rank_began_a_step_earlier_is_not_said_of_all(bad_before: int) -> None:
    """A NaN gradient of one rank is in the weights of all a step later."""
    logs = [own_log(loss=np.nan), rank_log(1, loss=np.nan)]
    name = "loss" if bad_before == 0 else "grad_l2_local"
    np.asarray(logs[bad_before][name])[BAD - 1] = np.nan
    assert all_bad_at_once(run(*logs), BAD) == 0


def test_a_rank_whose_log_is_missing_may_have_been_sound() -> None:
    logs = own_log(loss=np.nan), rank_log(1, loss=np.nan)
    assert all_bad_at_once(run(*logs, world_size=2), BAD) == 2
    assert all_bad_at_once(run(*logs, world_size=4), BAD) == 0
    assert all_bad_at_once(run(logs[0]), BAD) == 0


def test_two_ranks_are_both() -> None:
    signals = run(own_log(loss=np.nan), rank_log(1, loss=np.nan))
    (finding,) = found(nonfinite_loss, signals)
    assert " on both ranks (" in finding.message
    assert "Both ranks went bad in the same step" in finding.cause


@pytest.mark.parametrize(
    ("own", "zero", "said"),
    [
        ({"grad_l2_pre_clip": np.nan}, {}, "its own gradient is finite at step 120, so another"),
        ({"loss": np.nan}, {}, "rank 0's own values are bad at step 120"),
        ({"grad_l2_pre_clip": np.nan}, {"grad_l2_local": np.nan}, "rank 0's own values are bad"),
        ({"grad_l2_pre_clip": np.nan}, None, "which rank was bad cannot be told"),
    ],
)
def test_where_rank_zero_alone_recorded_the_others_are_not_known(
    own: dict[str, float], zero: dict[str, float] | None, said: str
) -> None:
    log = None if zero is None else rank_log(0, **zero)
    assert said in unheard_ranks(run(own_log(**own), zero=log, world_size=2), BAD)
    assert not unheard_ranks(run(own_log(**own), zero=log), BAD)
    assert not unheard_ranks(run(own_log(**own), rank_log(1), zero=log, world_size=2), BAD)


def test_a_report_says_that_rank_zero_alone_recorded() -> None:
    own, rows = own_log(), np.arange(ROWS)
    own["grad_l2_pre_clip"] = np.where(rows < BAD, 1.0, np.nan)
    own["loss"] = np.where(rows <= BAD, 2.0, np.nan)
    diagnosis = diagnose(run(own, zero=rank_log(0), world_size=2).run)
    (told,) = [text for text in diagnosis.verdict.undecided if "rank" in text]
    assert told.startswith(
        "Of 2 ranks only rank 0 has a log: its own gradient is finite at step 120"
    )
