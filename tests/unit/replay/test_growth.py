"""The root of a growth, in logs and in norms of parameters; and steps that end none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.bisection_result import FaultKind, Origin, TensorFacts
from forensics.replay.growth import as_growth, describe, growth_of, log_growth, parameter_growth
from forensics.replay.parameter_norms import norms_until, parameter_norms
from forensics.replay.session import Session
from forensics.runlog.manifest import Manifest, ParameterInfo
from forensics.runlog.params import ParamStore, ParamWriter
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

OVERFLOW = Origin(kind=FaultKind.INF, phase="loss", operator="aten.mse_loss", summary="it is Inf.")


def log(loss: object, norm: object, lr: object = 0.1) -> StepTable:
    """A step log of these losses and norms."""
    rows = len(np.atleast_1d(np.asarray(loss)))
    rate = np.broadcast_to(np.asarray(lr, dtype=float), rows)
    return StepTable.from_arrays({"loss": loss, "grad_l2_pre_clip": norm, "lr": rate})


def run_of(table: StepTable, params: ParamStore | None = None) -> Run:
    return Run(path=Path("run"), steps=table, params=params)


def blow_up(quiet: int, factor: float, steps: int, noise: float = 0.0) -> StepTable:
    """A loss of 1 and a norm of 2 for some steps, then growth by a factor a step."""
    rng = np.random.default_rng(0)
    exponent = np.concatenate([np.zeros(quiet), np.arange(steps)])
    wobble = rng.normal(0, noise, len(exponent))
    norm = 2.0 * factor**exponent * np.exp(wobble)
    return log(1.0 * factor ** (2 * exponent) * np.exp(wobble), norm, 3.0)


def test_a_growth_from_the_first_step_has_the_root_0():
    growth = growth_of(run_of(blow_up(0, 2.0, 40)), 40, OVERFLOW)
    assert (growth.signal, growth.since_step, growth.until_step) == ("grad_l2_pre_clip", 0, 39)
    assert growth.rate == pytest.approx(2.0, rel=1e-6)
    assert growth.cause == "the learning rate was 3 from the first step on"


@pytest.mark.parametrize("quiet", [50, 400, 3000])
def test_a_growth_that_begins_later_is_dated(quiet):
    table = blow_up(quiet, 1.3, 60, noise=0.05)
    growth = log_growth(table, quiet + 60)
    assert abs(growth.since_step - quiet) <= max(6, quiet // 150)
    assert growth.rate == pytest.approx(1.3, rel=0.05)


def test_the_rate_that_was_raised_before_it_is_the_cause():
    table = blow_up(60, 2.0, 30)
    rates = np.where(np.arange(90) < 55, 0.001, 0.1)
    raised = log(table["loss"], table["grad_l2_pre_clip"], rates)
    growth = growth_of(run_of(raised), 90, OVERFLOW)
    assert growth.cause == "the learning rate had risen from 0.001 to 0.1"


def test_values_beyond_the_bad_step_do_not_count():
    table = blow_up(30, 3.0, 30)
    assert log_growth(table, 32) is None
    assert log_growth(table, 60).until_step == 59


def test_a_warm_up_lifts_the_norm_alone_and_ends_nothing():
    steps = np.arange(60)
    table = log(5.0 * 0.98**steps, 0.01 * 1.12**steps)
    assert log_growth(table, 60) is None


def test_one_leap_after_a_slow_rise_is_a_spike():
    norm = [0.76, 0.91, 1.04, 1.05, 1.47, 7.5e19]
    assert log_growth(log([1.1, 1.6, 2.0, 1.5, 2.7, 1.7e19], norm), 5) is None
    rising = log(np.ones(6), [1.0, 30.0, 1e3, 1e5, 1e9, 1e16])
    assert log_growth(rising, 5) is not None, "ever faster, and no single step makes it"


def test_a_spike_that_came_down_again_ends_nothing():
    norm = np.full(80, 2.0)
    norm[40:50] = 2.0 * 5.0 ** np.arange(10)
    assert log_growth(log(norm, norm), 80) is None


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 400),
    sigma=st.floats(0.01, 0.7),
    drift=st.floats(-0.005, 0.002),
    seed=st.integers(0, 2**16),
)
def test_noise_and_slow_drift_are_no_growth(rows, sigma, drift, seed):
    rng = np.random.default_rng(seed)
    path = drift * np.arange(rows) + rng.normal(0, sigma, rows)
    assert log_growth(log(np.exp(path), np.exp(path + rng.normal(0, 0.1, rows))), rows) is None


@settings(deadline=None, max_examples=60)
@given(
    quiet=st.integers(0, 300),
    rate=st.floats(1.2, 4.0),
    sigma=st.floats(0.0, 0.05),
    seed=st.integers(0, 2**16),
)
def test_every_blow_up_is_seen_and_no_root_is_after_its_first_tenfold(quiet, rate, sigma, seed):
    rng = np.random.default_rng(seed)
    steps = int(np.log(1e8) / np.log(rate)) + 6
    exponent = np.concatenate([np.zeros(quiet), np.arange(1, steps + 1)])
    path = exponent * np.log(rate) + rng.normal(0, sigma, len(exponent))
    growth = log_growth(log(np.exp(2 * path), np.exp(path)), len(path))
    assert growth is not None
    assert growth.since_step <= quiet + np.log(10) / np.log(rate) + 1


def test_the_parameter_that_outgrew_its_operator_is_told_where_the_log_is_calm(tmp_path):
    writer = ParamWriter(tmp_path)
    for step in (0, 10, 20, 30):
        stats = {"value_l2": [2.0 + 3 * step, 4.0]}
        writer.append(step, ("scale", "weight"), "param", stats)
    writer.close()
    origin = Origin(kind=FaultKind.INF, phase="forward", operator="aten.exp", parameter="scale")
    run = run_of(log(np.ones(31), np.ones(31)), ParamStore(tmp_path))
    growth = growth_of(run, 30, origin)
    assert (growth.signal, growth.since_step) == ("param_l2 of scale", 0)
    assert (growth.first_value, growth.last_value) == (2.0, 92.0)
    other = Origin(kind=FaultKind.INF, phase="forward", operator="aten.mm", parameter="weight")
    assert growth_of(run, 30, other) is None


def test_a_parameter_that_grew_long_ago_ends_nothing():
    early = {step: {"w": 1.0 + min(step, 20)} for step in range(0, 200, 10)}
    assert parameter_growth(early, "w", 199) is None
    late = {step: {"w": 1.0 + max(0, step - 100)} for step in range(0, 200, 10)}
    assert parameter_growth(late, "w", 199).since_step == 100
    assert parameter_growth({0: {"w": 1.0}, 9: {"w": 5.0}}, "w", 9) is None
    assert parameter_growth({0: {"w": 1.0}, 9: {"w": 9.0}}, "w", 9) is not None
    assert parameter_growth({}, "w", 9) is None
    assert parameter_growth({0: {"w": 0.0}, 9: {"w": 9.0}}, "w", 9) is None


@pytest.mark.parametrize(
    ("kind", "operator", "phase"),
    [
        (FaultKind.NAN, "input", "input"),
        (FaultKind.NAN, "param:w", "forward"),
        (FaultKind.APPLIED, "clip", "clip"),
        (FaultKind.EXCEPTION, "F.batch_norm", "forward"),
        (FaultKind.NAN, "aten.add", "optimizer"),
    ],
)
def test_bad_data_and_faults_of_what_was_applied_have_another_cause(kind, operator, phase):
    origin = Origin(kind=kind, phase=phase, operator=operator)
    assert growth_of(run_of(blow_up(0, 2.0, 40)), 40, origin) is None
    assert growth_of(run_of(blow_up(0, 2.0, 40)), 40, None) is not None


def test_the_origin_stays_the_operator_that_overflowed():
    growth = log_growth(blow_up(0, 2.0, 40), 40)
    grown = as_growth(OVERFLOW, growth)
    assert (grown.kind, grown.operator, grown.phase) == (FaultKind.GROWTH, "aten.mse_loss", "loss")
    assert grown.chain[0].what == "growth"
    assert grown.summary == f"it is Inf; {describe(growth)}."
    assert as_growth(grown, growth) is grown
    norm = Origin(
        kind=FaultKind.NORM_OVERFLOW,
        phase="clip",
        operator="x",
        parameter="head.weight",
        summary=".",
    )
    assert as_growth(norm, growth).module == "head"
    raised = replace(growth, cause="the learning rate had risen from 0.001 to 10")
    assert (as_growth(norm, raised).phase, as_growth(norm, raised).module) == ("clip", "")


def test_norms_are_taken_at_the_saved_states_and_the_session_is_put_back(session: Session):
    session.go_to(8)
    session.run_step()
    before = session.capture()
    here = parameter_norms(session)
    norms = norms_until(session, before)
    assert sorted(norms) == [0, 4, 8, 9]
    assert norms[9] == here
    assert norms[0] != norms[8]
    assert session.step_index == 9
    assert session.departure(session.run_step()) is None


def test_a_divergence_of_four_rows_is_a_growth_and_four_rows_of_noise_are_none():
    norms = [2.44, 31.1, 1.29e5, 3.5e16, np.nan]
    growth = growth_of(run_of(log([4.4, 38.6, 2.2e6, 2.7e21, np.inf], norms, 3.0)), 4, OVERFLOW)
    assert (growth.signal, growth.since_step, growth.until_step) == ("grad_l2_pre_clip", 0, 3)
    up_and_down = [2.0, 300.0, 20.0, 900.0, np.nan]
    assert growth_of(run_of(log([1.0, 1.0, 1.0, 5.0, np.inf], up_and_down)), 4, OVERFLOW) is None


def _with_teacher(name: str, group: int) -> Run:
    infos = (ParameterInfo(name="student.weight"), ParameterInfo(name=name, group=group))
    return replace(run_of(log([1.0] * 60, [2.0] * 60)), manifest=Manifest(parameters=infos))


def _product(parameter: str, largest: float) -> Origin:
    one = {"dtype": "float32", "shape": (4, 4), "nan": 0, "inf": 0, "numel": 16}
    inputs = (TensorFacts(absmax=largest, **one),)
    return Origin(
        kind=FaultKind.NAN,
        phase="forward",
        operator="aten.addmm",
        module="teacher",
        parameter=parameter,
        inputs=inputs,
    )


def test_a_tensor_that_no_optimizer_holds_is_the_root_of_a_growth():
    norms = {step: {"teacher.bias": 0.4 * 1.9**step} for step in (0, 20, 40, 60)}
    run = _with_teacher("teacher.bias", -1)
    growth = growth_of(run, 60, _product("teacher.bias", 6e19), norms)
    assert (growth.signal, growth.since_step) == ("param_l2 of teacher.bias", 0)
    assert growth.rate == pytest.approx(1.9)
    assert growth.cause.startswith("no optimizer holds it")
    assert growth_of(run, 60, _product("teacher.bias", 6.0), norms) is None


def test_a_buffer_of_the_module_is_the_root_only_where_it_grew_beyond_statistics():
    run = _with_teacher("teacher.weight", -1)
    for factor, found in ((1.9, True), (1.05, False)):
        norms = {s: {"teacher.average": factor**s, "other.x": 3.0**s} for s in (0, 20, 40, 60)}
        growth = growth_of(run, 60, _product("", 6e19), norms)
        assert (growth is not None) is found
        assert growth is None or growth.signal == "param_l2 of teacher.average"
