"""frozen-parameter: no gradient, a zero gradient, or an update that does nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.open_questions import not_judged
from forensics.diagnose.rules.frozen_parameter import frozen_parameter
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest, ParameterInfo
from tests.unit.diagnose.snapshot_runs import (
    NAMES,
    any_run,
    assert_sane,
    found,
    manifest_of,
    noisy,
    signals_of,
    store,
)


def gradients(snapshots: int = 10) -> np.ndarray:
    return noisy(np.random.default_rng(0), snapshots)


def changed(manifest: Manifest, column: int, **changes: object) -> Manifest:
    infos = list(manifest.parameters)
    infos[column] = replace(infos[column], **changes)  # type: ignore[arg-type]
    return replace(manifest, parameters=tuple(infos))


def test_fires_on_a_gradient_that_is_zero_all_along() -> None:
    norms = gradients()
    norms[:, :3] = 0
    (finding,) = found(frozen_parameter, signals_of(store({"grad_l2": norms})))
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[2]  # the one nearest the loss: there the signal ends
    assert "2 more" in finding.message
    assert (finding.first_step, finding.last_step) == (0, 90)


def test_fires_on_a_graph_that_is_cut() -> None:
    absent = np.zeros((10, 8), bool)
    absent[:, :4] = True
    params = store({"grad_l2": gradients()}, absent={"grad_l2": absent})
    (finding,) = found(frozen_parameter, signals_of(params, manifest=manifest_of()))
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[3]
    assert "detach" in finding.cause


def test_fires_as_info_on_one_unused_branch() -> None:
    absent = np.zeros((10, 8), bool)
    absent[:, 4] = True
    params = store({"grad_l2": gradients()}, absent={"grad_l2": absent})
    (finding,) = found(frozen_parameter, signals_of(params, manifest=manifest_of()))
    assert finding.severity is Severity.INFO
    assert finding.subject == NAMES[4]


def test_fires_on_bf16_weights_that_round_every_update_away() -> None:
    params = store({"grad_l2": gradients(), "update_l2": np.zeros((10, 8))})
    (finding,) = found(frozen_parameter, signals_of(params, manifest=manifest_of(dtype="bfloat16")))
    assert finding.severity is Severity.WARNING
    assert "rounded away" in finding.message
    assert "fp32" in finding.remedy


def test_fires_on_a_parameter_that_no_optimizer_holds() -> None:
    manifest = changed(manifest_of(), 6, group=-1)
    (finding,) = found(
        frozen_parameter, signals_of(store({"grad_l2": gradients()}), manifest=manifest)
    )
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[6]
    assert "no optimizer" in finding.message


def test_fires_as_info_where_a_head_alone_is_trained() -> None:
    manifest = manifest_of(group=-1)
    manifest = changed(manifest, 7, group=0)
    (finding,) = found(
        frozen_parameter, signals_of(store({"grad_l2": gradients()}), manifest=manifest)
    )
    assert finding.severity is Severity.INFO


def test_silent_where_it_is_frozen_by_design() -> None:
    norms = gradients()
    norms[:, 2] = 0
    manifest = changed(manifest_of(), 2, requires_grad=False)
    assert not found(frozen_parameter, signals_of(store({"grad_l2": norms}), manifest=manifest))


def test_silent_on_a_branch_that_is_used_now_and_then() -> None:
    norms = gradients()
    norms[::2, 2] = 0
    absent = np.zeros((10, 8), bool)
    absent[1::2, 5] = True
    params = store({"grad_l2": norms}, absent={"grad_l2": absent})
    assert not found(frozen_parameter, signals_of(params, manifest=manifest_of()))


def test_silent_when_every_gradient_is_zero() -> None:
    assert not found(frozen_parameter, signals_of(store({"grad_l2": np.zeros((10, 8))})))


def test_silent_when_steps_were_skipped_or_the_rate_was_zero() -> None:
    params = store({"grad_l2": gradients(), "update_l2": np.zeros((10, 8))})
    log = {"step": np.arange(100), "lr": np.full(100, 1e-3), "skipped": np.ones(100)}
    assert not found(frozen_parameter, signals_of(params, columns=log))
    log = {"step": np.arange(100), "lr": np.zeros(100)}
    assert not found(frozen_parameter, signals_of(params, columns=log))


def test_silent_with_few_snapshots() -> None:
    norms = gradients(4)
    norms[:, 2] = 0
    assert not found(frozen_parameter, signals_of(store({"grad_l2": norms})))
    norms = gradients(10)
    norms[:, 2] = 0
    params = store({"grad_l2": norms}, steps=np.arange(10))
    assert not found(frozen_parameter, signals_of(params))


@settings(deadline=None, max_examples=60)
@given(any_run())
def test_any_snapshots_are_read_without_an_exception(signals: Signals) -> None:
    assert_sane(frozen_parameter, signals)


def cut_off(snapshots: int, layers: int = 4) -> Signals:
    absent = np.zeros((snapshots, 8), bool)
    absent[:, :layers] = True
    params = store({"grad_l2": gradients(snapshots)}, absent={"grad_l2": absent})
    return signals_of(params, manifest=manifest_of())


def test_three_snapshots_suffice_where_all_first_layers_get_no_gradient() -> None:
    (finding,) = found(frozen_parameter, cut_off(3))
    assert finding.severity is Severity.WARNING
    assert finding.subject == NAMES[3]
    assert "no gradient ever reached blocks.3.fc.weight and 3 more in 3 snapshots" in (
        finding.message
    )
    assert [one.signal for one in finding.evidence] == ["grad_l2 of the median other parameter"]
    norms = gradients(3)
    norms[:, :2] = 0
    assert found(frozen_parameter, signals_of(store({"grad_l2": norms}))) != []
    still = np.full((3, 8), 1e-3)
    still[:, 5] = 0.0
    params = store({"grad_l2": gradients(3), "update_l2": still})
    (finding,) = found(frozen_parameter, signals_of(params))
    assert finding.subject == NAMES[5]


def test_three_snapshots_do_not_suffice_where_a_branch_may_sit_out() -> None:
    norms = gradients(4)
    norms[:, 5] = 0
    assert found(frozen_parameter, signals_of(store({"grad_l2": norms}))) == []
    assert [f.severity for f in found(frozen_parameter, cut_off(2))] == [Severity.INFO]
    assert found(frozen_parameter, cut_off(4, layers=1)) == []


def replaced_head(
    *, shape: tuple[int, ...] = (64, 64), silent: bool = True, snapshots: int = 10
) -> list[Finding]:
    """Seven parameters that learn, one that an optimizer holds, and one that none does."""
    names = (*NAMES[:7], "optimizers.0.7")
    absent = np.zeros((snapshots, 8), bool)
    absent[:, 7] = silent
    at = np.arange(snapshots) * 100
    params = store({"grad_l2": gradients(snapshots)}, names, at, absent={"grad_l2": absent})
    head = ParameterInfo(name="head.weight", shape=shape, group=-1)
    manifest = manifest_of(names)
    manifest = replace(manifest, parameters=(*manifest.parameters, head))
    return found(frozen_parameter, signals_of(params, manifest=manifest))


@pytest.mark.parametrize("snapshots", [10, 2])
def test_fires_on_a_head_that_was_replaced_after_the_optimizer_was_made(snapshots: int) -> None:
    (finding,) = replaced_head(snapshots=snapshots)
    assert finding.severity is Severity.WARNING
    assert finding.subject == "head.weight"
    assert "no optimizer holds it" in finding.message


def test_silent_on_a_parameter_outside_the_model_that_learns() -> None:
    assert replaced_head(silent=False) == []
    assert replaced_head(snapshots=1) == []
    assert all(f.subject != "head.weight" for f in replaced_head(shape=(3,)))


def first_layers_cut(snapshots: int) -> Signals:
    absent = np.zeros((snapshots, 8), bool)
    absent[:, :4] = True
    params = store({"grad_l2": gradients(snapshots)}, absent={"grad_l2": absent})
    return signals_of(params, manifest=manifest_of())


@pytest.mark.parametrize(("snapshots", "told"), [(1, "the only snapshot"), (2, "both snapshots")])
def test_one_or_two_snapshots_of_a_cut_graph_are_an_info_and_an_open_question(
    snapshots: int, told: str
) -> None:
    signals = first_layers_cut(snapshots)
    (finding,) = found(frozen_parameter, signals)
    assert finding.severity is Severity.INFO
    assert f"no gradient reached {NAMES[3]} and 3 more in {told}" in finding.message
    assert any(told in gap and "frozen-parameter" in gap for gap in not_judged(signals))


def test_silent_on_one_snapshot_of_a_branch_that_rests() -> None:
    absent = np.zeros((1, 8), bool)
    absent[:, 4:6] = True
    params = store({"grad_l2": gradients(1)}, absent={"grad_l2": absent})
    signals = signals_of(params, manifest=manifest_of())
    assert not found(frozen_parameter, signals)
    assert not any("frozen-parameter" in gap for gap in not_judged(signals))


@pytest.mark.parametrize("snapshots", [2, 10])
def test_silent_on_players_that_had_no_turn_in_the_snapshots(snapshots: int) -> None:
    """Every hundredth step is one of the critic's; the actor's are the odd ones."""
    absent = np.zeros((snapshots, 8), bool)
    absent[:, :4] = True
    params = store({"grad_l2": gradients(snapshots)}, absent={"grad_l2": absent})
    told = manifest_of()
    infos = [replace(one, group=int(i < 4)) for i, one in enumerate(told.parameters)]
    told = replace(told, parameters=tuple(infos))
    assert found(frozen_parameter, signals_of(params, manifest=told))
    told = replace(told, loop={"in_turn_steps": 400, "first_in_turn": 1})
    assert not found(frozen_parameter, signals_of(params, manifest=told))
    absent[:, 4:6] = True  # of the one that had its turns
    params = store({"grad_l2": gradients(snapshots)}, absent={"grad_l2": absent})
    assert found(frozen_parameter, signals_of(params, manifest=told)) or snapshots == 2
