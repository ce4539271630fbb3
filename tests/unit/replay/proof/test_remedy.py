"""What to do: proven before advised, never what is no cure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.bisection_result import (
    ChainLink,
    CheckpointVerdict,
    FaultKind,
    Growth,
    Origin,
    Persistence,
    TensorFacts,
    WhatIf,
)
from forensics.replay.proof.remedy import AT_MOST, remedies
from forensics.replay.proof.trial_plans import (
    BF16,
    FP32,
    FP64,
    HALF_RATE,
    SCALE_ONE,
    TENTH_RATE,
    WITHOUT_BATCH,
    WITHOUT_SAMPLES,
)
from forensics.replay.tracing.operator_advice import advice_for

GROWTH = Growth(
    signal="param_l2 of attn.q.weight",
    since_step=60,
    until_step=99,
    rate=1.004,
    first_value=1.0,
    last_value=2.0,
)


def _trial(change, finite, until=150, start=100, note="x"):
    bad = None if finite else start
    return WhatIf(
        change=change,
        from_step=start,
        until_step=until if finite else start,
        finite=finite,
        first_bad_step=bad,
        note=note,
    )


def _origin(operator="aten.bmm", kind=FaultKind.INF, phase="forward", **further):
    return Origin(kind=kind, phase=phase, operator=operator, **further)


def _states(*steps):
    return tuple(CheckpointVerdict(step=step, verdict="good") for step in steps)


def test_bf16_carries_a_growth_on_but_does_not_stop_it() -> None:
    table = (_trial(FP32, True), _trial(BF16, True), _trial(SCALE_ONE, False))
    told = remedies(
        _origin(),
        GROWTH,
        table,
        first_bad_step=100,
        persistence=Persistence.PERSISTENT,
        checkpoints=_states(0, 50, 75),
    )
    assert told[0] == (
        "bf16 carries it on: proven for 50 steps after it, but does not stop the growth."
    )
    assert any("Resume from step-50, before the growth began" in line for line in told)
    assert "not proven here" in told[-1]


@pytest.mark.parametrize(
    ("states", "whence"),
    [
        ((0, 50, 150), "Resume from step-50, the last good one; guard it."),
        ((150,), "Start anew: no saved state is from before step 100, where it began; guard it."),
        ((), "from before step 100 (the run names none); guard it."),
    ],
)
def test_a_step_whose_damage_stayed_is_undone_and_guarded(states, whence) -> None:
    trials = [_trial(BF16, True), _trial(WITHOUT_SAMPLES, True), _trial(FP64, False)]
    told = remedies(
        _origin("aten.log"),
        None,
        trials,
        first_bad_step=100,
        samples=(7,),
        reproduces=True,
        persistence=Persistence.TRANSIENT,
        guard="guard it",
        checkpoints=_states(*states),
    )
    assert told[2].endswith(whence)
    assert len(told) == AT_MOST
    assert "not proven here" in told[-1]


def test_fp32_bad_is_no_precision_problem() -> None:
    told = remedies(_origin(), None, (_trial(FP32, False),), first_bad_step=100)
    assert "It is not a precision problem: fp32 goes bad, too." in told


def test_fp64_bad_in_an_fp32_run_is_mathematics() -> None:
    trial = _trial(FP64, False, note="mathematics, not rounding")
    told = remedies(_origin("aten.log"), None, (trial,), first_bad_step=100)
    assert "It is mathematics, not rounding: fp64 goes bad, too." in told


def test_a_sample_that_comes_again_is_left_out_each_time() -> None:
    trial = replace(_trial(WITHOUT_SAMPLES, True), comes_again=(120, 140))
    told = remedies(_origin(), None, (trial,), first_bad_step=100, samples=(7,))
    whence = "Leave sample 7 out of the batch of step 100, and wherever the same comes again"
    assert told[0].startswith(f"{whence} (step 120, 140): the run stays finite, proven for 50")


def test_a_guilty_sample_is_left_out_first() -> None:
    table = (_trial(FP32, True), _trial(WITHOUT_SAMPLES, True))
    told = remedies(_origin(), None, table, first_bad_step=100, samples=(7, 9))
    assert told[0].startswith("Leave samples 7, 9 out of the batch of step 100: ")


def test_at_the_end_of_a_growth_leaving_samples_out_is_no_cure() -> None:
    table = (_trial(WITHOUT_SAMPLES, True), _trial(WITHOUT_BATCH, True))
    told = remedies(_origin(), GROWTH, table, first_bad_step=100, samples=(7,))
    assert not any("batch" in line for line in told)


def test_what_lasts_is_not_cured_by_a_trial_of_one_step() -> None:
    table = (_trial(WITHOUT_SAMPLES, True, until=100),)
    told = remedies(
        _origin(),
        None,
        table,
        first_bad_step=100,
        samples=(7,),
        persistence=Persistence.PERSISTENT,
    )
    assert not any("sample 7" in line for line in told)


def test_half_the_rate_is_proposed_only_where_it_was_finite() -> None:
    good, bad = _trial(HALF_RATE, True, start=60), _trial(HALF_RATE, False, start=60)
    assert any(
        line.startswith("Half the learning rate from step 60 on")
        for line in remedies(_origin(), GROWTH, (good,), first_bad_step=100)
    )
    assert not any(
        "learning rate from" in line
        for line in remedies(_origin(), GROWTH, (bad,), first_bad_step=100)
    )


def test_a_skipped_transient_step_has_nothing_to_undo() -> None:
    told = remedies(
        _origin(),
        None,
        (),
        first_bad_step=100,
        persistence=Persistence.TRANSIENT,
        skipped=True,
        checkpoints=_states(50),
    )
    assert told[0].startswith("Nothing has to be undone")
    assert not any("Resume" in line for line in told)


def test_no_state_before_the_root_means_to_start_anew() -> None:
    told = remedies(
        _origin(),
        GROWTH,
        (),
        first_bad_step=100,
        persistence=Persistence.PERSISTENT,
        checkpoints=_states(75, 90),
    )
    assert any(line.startswith("Start anew") for line in told)


def test_a_fault_that_no_replay_shows_is_not_cured_by_the_training() -> None:
    origin = _origin("outside", phase="outside")
    told = remedies(origin, None, (_trial(BF16, True),), first_bad_step=5, reproduces=False)
    assert "no change of the training cures it" in told[0]
    assert "memory" in told[1]
    assert not any("bf16" in line for line in told)


changes = st.sampled_from(
    [FP32, BF16, FP64, SCALE_ONE, WITHOUT_SAMPLES, WITHOUT_BATCH, HALF_RATE, "clip at 1"]
)


@given(
    st.lists(st.tuples(changes, st.sampled_from([True, False, None])), max_size=8),
    st.sampled_from([None, GROWTH]),
    st.sampled_from(list(Persistence)),
)
@settings(deadline=None, max_examples=80)
def test_never_more_than_four_and_nothing_proven_that_was_not(tried, growth, lasting) -> None:
    table = [
        WhatIf(change=c, from_step=100, until_step=120, finite=finite, note="n")
        for c, finite in dict(tried).items()
    ]
    told = remedies(_origin(), growth, table, first_bad_step=100, persistence=lasting, samples=(1,))
    assert len(told) <= AT_MOST
    finite = {trial.change for trial in table if trial.finite}
    for line in told:
        assert line.endswith(".")
        if line.startswith("bf16"):
            assert BF16 in finite
        if line.startswith("Leave"):
            assert WITHOUT_SAMPLES in finite
        if line.startswith("Half"):
            assert HALF_RATE in finite
        assert "proven" not in line or "not proven" in line or finite


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (_origin("aten.log"), "log_softmax"),
        (_origin("aten._softmax", FaultKind.NAN), "unmasked"),
        (_origin("aten.div", phase="backward", autograd_node="SqrtBackward0"), "square root"),
        (_origin("param:bg", FaultKind.NAN), "initialise it: bg"),
        (_origin("clip", FaultKind.APPLIED, "clip"), "unscale_"),
        (_origin("lr_scheduler.step", FaultKind.APPLIED, "scheduler"), "scheduler only where"),
        (_origin("aten.mm", FaultKind.APPLIED, "backward"), "GradScaler"),
        (_origin("ExpBackward0", FaultKind.APPLIED, "backward"), ".data"),
        (_origin("GradScaler.unscale_", FaultKind.EXCEPTION, "unscale"), "update()"),
        (
            _origin(
                "aten._foreach_add",
                FaultKind.NAN,
                "optimizer",
                chain=(ChainLink(phase="scheduler", what="learning rate"),),
            ),
            "schedule's formula",
        ),
        (_origin("aten.some_new_operator", FaultKind.NAN), ""),
        (_origin("aten.cumprod"), "what goes into aten.cumprod smaller"),
        (_origin("aten._ctc_loss"), "zero_infinity"),
        (_origin("GradScaler.update", FaultKind.APPLIED, "unscale"), "once for each"),
    ],
)
def test_advice_fits_the_operator(origin, words) -> None:
    advice = advice_for(origin)
    assert words in advice
    assert bool(words) == bool(advice)


@pytest.mark.parametrize(
    ("operator", "phase", "summary", "words"),
    [
        ("OneCycleLR.get_lr", "scheduler", "The specified number of total steps is 9", "as many"),
        ("aten.nll_loss_forward", "loss", "Target 5 is out of bounds.", "number of classes"),
        ("torch.linalg.cholesky", "loss", "not positive-definite", "identity"),
        ("aten.div", "forward", "it raised ValueError: mine", ""),
    ],
)
def test_advice_on_an_exception_is_of_what_was_raised(operator, phase, summary, words) -> None:
    advice = advice_for(_origin(operator, FaultKind.EXCEPTION, phase, summary=summary))
    assert words in advice
    assert bool(words) == bool(advice)


@pytest.mark.parametrize(
    ("operator", "summary", "words"),
    [
        ("clip", "the clip came after the step: x.", "before optimizer.step()"),
        ("lr_scheduler.step", "StepLR.step() was called 2 times in one step.", "once a step"),
        ("learning rate", "the learning rate is -0.1.", "at or above 0"),
        ("zero_grad", "zero_grad() is missing.", "zero_grad()"),
    ],
)
def test_advice_on_what_was_applied_is_of_that_fault(operator, summary, words) -> None:
    assert words in advice_for(_origin(operator, FaultKind.APPLIED, "clip", summary=summary))


def test_an_epsilon_is_advised_for_the_dtype_at_hand() -> None:
    def out(dtype):
        return TensorFacts(dtype=dtype, shape=(2,), absmax=0.0, nan=0, inf=1, numel=2)

    for operator in ("aten.rsqrt", "aten.addcdiv"):
        assert "fp16" in advice_for(_origin(operator, output=out("float16")))
        assert "fp16" not in advice_for(_origin(operator, output=out("float32")))


def test_a_divergence_is_cured_by_its_rate_and_a_tensor_outside_the_optimizer_by_its_loop() -> None:
    growth = replace(GROWTH, signal="grad_l2_pre_clip", cause="the learning rate was 3")
    loss = _origin("aten.mse_loss", phase="loss")
    bad = (_trial(HALF_RATE, False),)
    told = remedies(loss, growth, bad, first_bad_step=100)
    assert told[-1].startswith("Lower the learning rate by much more than half")
    told = remedies(loss, growth, (*bad, _trial(TENTH_RATE, True)), first_bad_step=100)
    assert told[0].startswith("A tenth of the learning rate from step")
    assert not any("advice" in line for line in told)
    outside = replace(GROWTH, signal="param_l2 of te.bias", cause="no optimizer holds it: the loop")
    told = remedies(_origin("aten.addmm"), outside, (), first_bad_step=100)
    assert told[-1].startswith("Mend what changes te.bias in each step")


def test_a_power_of_a_large_number_overflows_and_is_not_near_zero() -> None:
    def facts(absmax, dtype="float16"):
        return TensorFacts(dtype=dtype, shape=(2,), absmax=absmax, nan=0, inf=0, numel=2)

    large = _origin("aten.pow", inputs=(facts(266.5),), output=facts(0.0))
    small = _origin("aten.pow", FaultKind.NAN, inputs=(facts(0.0),), output=facts(0.0))
    assert "fp32" in advice_for(large)
    assert "away from 0" in advice_for(small)


def test_a_refuted_clip_is_not_advised() -> None:
    origin = _origin("aten._foreach_addcmul", phase="optimizer")
    assert "clip the gradients" in advice_for(origin)
    told = remedies(origin, None, (_trial("clip at 1", False),), first_bad_step=100)
    assert not any("lip the gradients" in line for line in told)


def test_a_scale_that_was_reset_is_to_be_saved_and_nothing_else() -> None:
    chain = (ChainLink(phase="outside", what="loss scale", name="256 -> 65,536"),)
    origin = _origin("aten._to_copy", phase="backward", chain=chain)
    table = (_trial(BF16, True), _trial(WITHOUT_BATCH, True))
    told = remedies(origin, None, table, first_bad_step=100)
    assert told == (
        "Save and load the GradScaler's state with the model's: its scale was set anew "
        "(advice, not proven here).",
    )


def test_a_later_sound_state_means_that_nothing_has_to_be_undone() -> None:
    told = remedies(
        _origin(),
        None,
        (),
        first_bad_step=100,
        persistence=Persistence.TRANSIENT,
        checkpoints=_states(90, 110, 120),
    )
    assert told[0] == "Nothing has to be undone: the saved state of step 110 is sound."


@pytest.mark.parametrize("found", [True, False])
def test_a_flipped_bit_stays_in_later_states_where_one_was_found(found: bool) -> None:
    told = remedies(
        _origin("outside", phase="outside", parameters=("head.weight",) if found else ()),
        None,
        (),
        first_bad_step=100,
        persistence=Persistence.TRANSIENT,
        reproduces=False,
        checkpoints=_states(90, 110),
    )
    carried = "; a later state carries the fault" if found else ""
    assert told[-1] == f"Resume from step-90, the last good one{carried}."


def test_a_later_state_that_is_sound_carries_nothing() -> None:
    told = remedies(
        _origin(),
        None,
        (),
        first_bad_step=100,
        persistence=Persistence.PERSISTENT,
        reproduces=True,
        checkpoints=_states(90, 110),
    )
    assert "carries" not in " ".join(told)


def test_a_step_that_raised_is_mended_before_the_run_comes_to_it_again() -> None:
    told = remedies(
        _origin("aten.div", FaultKind.NAN),
        None,
        (),
        first_bad_step=100,
        persistence=Persistence.TRANSIENT,
        reproduces=True,
        raised=True,
        checkpoints=_states(90),
    )
    assert told[0] == "Resume from step-90, once it is mended: it comes to step 100 again."


def test_underflow_is_cured_by_the_precision_that_was_tried() -> None:
    origin = _origin("aten.mm", FaultKind.APPLIED, "backward")
    told = remedies(origin, None, (_trial(BF16, True, until=103),), first_bad_step=100)
    assert told[0] == "bf16 carries it on: proven for 3 steps after it."


def test_a_run_that_raised_comes_to_the_same_step_again() -> None:
    found = remedies(
        _origin("aten.nll_loss_forward", FaultKind.EXCEPTION, "loss"),
        None,
        [],
        first_bad_step=100,
        persistence=Persistence.TRANSIENT,
        reproduces=True,
        checkpoints=_states(80),
    )
    assert "Resume from step-80, once it is mended: it comes to step 100 again." in found


@pytest.mark.parametrize(
    ("operator", "summary", "words"),
    [
        ("aten.nll_loss_forward", "it raised IndexError: Target 5 is out of bounds.", "5 classes"),
        ("aten.nll_loss_forward", "it raised IndexError: Target -1 is out of bounds.", "label -1"),
        ("torch.linalg.cholesky", "it raised _LinAlgError: not positive-definite", "identity"),
        ("torch.linalg.inv", "it raised _LinAlgError: the matrix is singular", "singular"),
        (
            "SigmoidBackward0",
            "it raised RuntimeError: one of the variables needed for gradient computation has "
            "been modified by an inplace operation: [torch.FloatTensor [2]]",
            "edit no value",
        ),
        ("torch.linalg.svd", "it raised _LinAlgError: The algorithm failed to converge", ""),
        ("aten.div", "it raised RuntimeError: sizes do not match", ""),
    ],
)
def test_advice_against_an_exception_fits_what_it_says(
    operator: str, summary: str, words: str
) -> None:
    facts = TensorFacts(dtype="float32", shape=(16, 5), absmax=1.0, nan=0, inf=0, numel=80)
    origin = _origin(operator, FaultKind.EXCEPTION, "loss", summary=summary, inputs=(facts,))
    advice = advice_for(origin)
    assert words in advice
    assert bool(words) is bool(advice)


def test_a_growth_behind_a_raised_rate_is_answered_by_the_rate() -> None:
    cause = "the learning rate had risen from 1e-12 to 10"
    grown = replace(GROWTH, signal="grad_l2_pre_clip", since_step=13, cause=cause)
    origin = _origin("aten._foreach_norm", FaultKind.GROWTH, "clip")
    found = remedies(origin, grown, [], first_bad_step=19, checkpoints=_states(0))
    assert found[0].startswith("Start anew: the growth began at step 13")
    assert cause in found[1]
