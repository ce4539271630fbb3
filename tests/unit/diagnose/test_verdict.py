"""The verdict over hand-made findings: who is the root, what follows, what stays open."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.diagnose.explanations import EXPLANATIONS, NEVER_ROOTS
from forensics.diagnose.finding import (
    Evidence,
    Finding,
    Severity,
    Status,
    Verdict,
)
from forensics.diagnose.rules import RULES
from forensics.diagnose.signals import Signals
from forensics.diagnose.verdict import retold, weigh
from forensics.runlog.manifest import Ended, Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

W, E, C, INFO = Severity.WARNING, Severity.ERROR, Severity.CRITICAL, Severity.INFO


def signals_of(rows: int = 1000, **columns: object) -> Signals:
    step = np.arange(rows)
    table = {
        "step": step,
        "loss": np.full(rows, 2.0),
        "grad_l2_pre_clip": np.full(rows, 1.0),
        "skipped": np.zeros(rows),
        "scaler_scale": np.ones(rows),
        **columns,
    }
    return Signals(Run(path=Path("runs/x"), steps=StepTable.from_arrays(table)))


def finding(
    rule: str, severity: Severity, first: int, last: int = 999, subject: str = "", signal: str = ""
) -> Finding:
    evidence = (Evidence(signal=signal, steps=(first,), values=(1.0,)),) if signal else ()
    return Finding(
        rule=rule,
        severity=severity,
        message=f"{rule} happened",
        first_step=first,
        last_step=last,
        subject=subject,
        evidence=evidence,
    )


def verdict_on(signals: Signals, *findings: Finding) -> tuple[Verdict, tuple[Finding, ...]]:
    ordered = tuple(sorted(findings, key=lambda f: (-f.severity, f.first_step)))
    return weigh(signals, ordered, ()), ordered


def root_of(signals: Signals, *findings: Finding) -> str | None:
    verdict, ordered = verdict_on(signals, *findings)
    return None if verdict.root is None else ordered[verdict.root].rule


def bad_from(row: int, rows: int = 1000) -> np.ndarray:
    loss = np.full(rows, 2.0)
    loss[row:] = np.nan
    return loss


def test_no_finding_is_healthy_and_says_what_was_skipped() -> None:
    skipped = np.zeros(1000)
    skipped[[3, 500]] = 1
    verdict, _ = verdict_on(signals_of(skipped=skipped))
    assert verdict.status is Status.HEALTHY
    assert "2 steps of 1,000 skipped" in verdict.summary
    assert verdict.root is None


def test_an_info_is_no_fault() -> None:
    verdict, _ = verdict_on(signals_of(), finding("loss-spike", INFO, 40, 41))
    assert verdict.status is Status.HEALTHY


def test_a_run_that_raised_is_not_called_healthy() -> None:
    signals = signals_of()
    ended = Ended(how="exception", step=1000, message="RuntimeError: out of luck")
    run = replace(signals.run, manifest=Manifest(ended=ended))
    verdict = weigh(Signals(run), (), ())
    assert verdict.status is Status.UNDECIDED
    assert "raised at step 1,000: RuntimeError: out of luck" in verdict.summary
    assert "what step 1,000 was given, its batch first" in verdict.undecided[0]


def test_what_a_run_raised_ends_in_one_full_stop() -> None:
    ended = Ended(how="exception", step=1000, message="IndexError: Target 5 is out of bounds.")
    run = replace(signals_of().run, manifest=Manifest(ended=ended))
    summary = weigh(Signals(run), (), ()).summary
    assert "Target 5 is out of bounds. Nothing in the log" in summary


def test_losses_alone_are_never_plainly_healthy() -> None:
    table = StepTable.from_arrays({"loss": np.full(500, 2.0)})
    verdict = weigh(Signals(Run(path=Path("x.csv"), steps=table)), (), ())
    assert verdict.status is Status.HEALTHY
    assert "as far as this log can tell" in verdict.summary
    assert any("gradient norms" in text for text in verdict.undecided)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("my_objective", "if my_objective is the loss, add `--map loss=my_objective`"),
        ("zap", "`--map loss=NAME` says which is the loss"),
    ],
)
def test_without_a_loss_the_columns_that_are_not_read_are_named(name: str, hint: str) -> None:
    rows = {"grad_l2_pre_clip": np.ones(500), name: np.ones(500), "acc": np.ones(500)}
    run = Run(path=Path("x.csv"), steps=StepTable.from_arrays(rows))
    gap = weigh(Signals(run), (), ()).undecided[0]
    assert f"Columns not read: {name}, acc; {hint}." in gap


@pytest.mark.parametrize("rows", [0, 1, 9])
def test_too_few_rows_are_insufficient_data(rows: int) -> None:
    verdict, _ = verdict_on(signals_of(rows))
    assert verdict.status is Status.INSUFFICIENT_DATA


def test_a_nan_loss_explains_the_skips_the_collapse_and_the_dead_run() -> None:
    signals = signals_of(loss=bad_from(500))
    verdict, ordered = verdict_on(
        signals,
        finding("nonfinite-loss", C, 500),
        finding("high-skip-rate", E, 517),
        finding("loss-scale-collapse", E, 501),
        finding("dead-run", C, 501),
        finding("clipping-frequent", INFO, 0, 499),
    )
    assert verdict.root is not None
    assert ordered[verdict.root].rule == "nonfinite-loss"
    told = [ordered[i].rule for i in verdict.consequences]
    assert told == ["dead-run", "loss-scale-collapse", "high-skip-rate"]
    assert [ordered[i].rule for i in verdict.unrelated] == ["clipping-frequent"]


def test_a_collapse_that_poisons_is_the_root_of_the_bad_weights() -> None:
    scale = np.full(1000, 2.0**-100)
    scale[500:] = 2.0**-130
    root = root_of(
        signals_of(scaler_scale=scale, loss=bad_from(502)),
        finding("loss-scale-collapse", E, 400),
        finding("nonfinite-parameter", C, 501),
        finding("nonfinite-loss", C, 502),
    )
    assert root == "loss-scale-collapse"


def test_an_applied_nan_gradient_is_the_root_of_the_nan_loss_one_step_later() -> None:
    root = root_of(
        signals_of(loss=bad_from(501)),
        finding("nonfinite-gradient", C, 500),
        finding("nonfinite-step-applied", C, 500),
        finding("nonfinite-loss", C, 501),
        finding("dead-run", C, 501),
    )
    assert root == "nonfinite-step-applied"


def test_a_nan_loss_that_was_applied_stays_the_root() -> None:
    root = root_of(
        signals_of(loss=bad_from(500)),
        finding("nonfinite-loss", C, 500),
        finding("nonfinite-step-applied", C, 500),
        finding("nonfinite-gradient", C, 500),
        finding("nonfinite-parameter", C, 500),
    )
    assert root == "nonfinite-loss"


def test_a_weight_that_is_bad_itself_explains_the_loss_of_the_same_step() -> None:
    root = root_of(
        signals_of(loss=bad_from(0)),
        finding("nonfinite-loss", C, 0),
        finding("nonfinite-parameter", C, 0, subject="bg", signal="value_nonfinite"),
    )
    assert root == "nonfinite-parameter"


def test_a_norm_that_grew_first_explains_the_divergence_and_not_the_other_way_round() -> None:
    signals = signals_of()
    grew_first = (finding("gradient-explosion", E, 400), finding("loss-divergence", E, 450))
    assert root_of(signals, *grew_first) == "gradient-explosion"
    loss_first = (finding("gradient-explosion", E, 452), finding("loss-divergence", E, 450))
    assert root_of(signals, *loss_first) == "loss-divergence"


def test_a_learning_rate_fault_explains_what_breaks_within_its_reach() -> None:
    signals = signals_of()
    lr = finding("learning-rate-fault", E, 300)
    assert root_of(signals, lr, finding("loss-divergence", C, 390)) == "learning-rate-fault"
    assert root_of(signals, lr, finding("nonfinite-loss", C, 900)) == "nonfinite-loss"


def test_a_spike_of_a_skipped_step_explains_no_later_one() -> None:
    spikes = (finding("loss-spike", W, 40, 40), finding("loss-spike", W, 95, 95))
    verdict, _ = verdict_on(signals_of(), *spikes)
    assert verdict.consequences == (1,)
    skipped = np.zeros(1000)
    skipped[40] = 1
    verdict, _ = verdict_on(signals_of(skipped=skipped), *spikes)
    assert verdict.consequences == ()


def test_symptoms_alone_leave_the_cause_undecided() -> None:
    verdict, _ = verdict_on(signals_of(), finding("masked-nonfinite", E, 100))
    assert verdict.status is Status.UNDECIDED
    assert verdict.root is None
    assert "does not show" in verdict.summary


def test_only_the_root_that_did_the_worst_damage_is_told_as_root() -> None:
    signals = signals_of(loss=bad_from(700))
    verdict, ordered = verdict_on(
        signals, finding("loss-plateau", W, 100), finding("nonfinite-loss", C, 700)
    )
    assert verdict.root is not None
    assert ordered[verdict.root].rule == "nonfinite-loss"
    assert [ordered[i].rule for i in verdict.unrelated] == ["loss-plateau"]


def test_a_calm_norm_before_a_nan_loss_leaves_batch_or_weights_open() -> None:
    verdict, _ = verdict_on(signals_of(loss=bad_from(500)), finding("nonfinite-loss", C, 500))
    assert any("A bad batch or bad weights" in text for text in verdict.undecided)
    growing = np.concatenate([np.ones(400), np.geomspace(1, 1e6, 100), np.full(500, np.nan)])
    verdict, _ = verdict_on(
        signals_of(loss=bad_from(500), grad_l2_pre_clip=growing), finding("nonfinite-loss", C, 500)
    )
    assert not any("bad batch" in text for text in verdict.undecided)
    assert any(entry.title == "lead-up" for entry in verdict.timeline)


def test_the_timeline_reads_from_the_last_healthy_step_to_the_last_consequence() -> None:
    verdict, _ = verdict_on(
        signals_of(loss=bad_from(500)),
        finding("nonfinite-loss", C, 500),
        finding("dead-run", C, 501),
    )
    titles = [entry.title for entry in verdict.timeline]
    assert titles == ["last healthy step", "nonfinite-loss", "dead-run"]
    assert verdict.timeline[0].when == "499"
    assert "loss 2" in verdict.timeline[0].detail


def test_every_rule_named_in_the_table_exists() -> None:
    known = {rule.id for rule in RULES}
    named = {r for line in EXPLANATIONS for r in (*line.roots, *line.consequences)} | NEVER_ROOTS
    assert named <= known


rules_in_table = sorted({r for line in EXPLANATIONS for r in (*line.roots, *line.consequences)})
any_finding = st.builds(
    finding,
    st.sampled_from(rules_in_table),
    st.sampled_from(list(Severity)),
    st.integers(0, 999),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(any_finding, max_size=12))
def test_any_findings_give_a_verdict_that_accounts_for_each_of_them(found: list[Finding]) -> None:
    verdict, ordered = verdict_on(signals_of(), *found)
    serious = any(f.severity >= W for f in ordered)
    assert (verdict.status is Status.HEALTHY) == (not serious)
    if verdict.status is Status.FAULTY:
        told = [verdict.root, *verdict.consequences, *verdict.unrelated]
        assert sorted(i for i in told if i is not None) == list(range(len(ordered)))
        assert verdict.root is not None
        assert ordered[verdict.root].rule not in NEVER_ROOTS


def test_a_start_between_two_snapshots_leaves_the_last_healthy_step_before_both() -> None:
    sparse = replace(finding("poisoned-state", E, 40, subject="bn.running_var"), earliest_step=31)
    validation = finding("nonfinite-validation", W, 35)
    verdict, ordered = verdict_on(signals_of(), sparse, validation)
    assert verdict.root is not None
    assert ordered[verdict.root].rule == "poisoned-state"
    assert [ordered[i].rule for i in verdict.consequences] == ["nonfinite-validation"]
    assert [(e.when, e.title) for e in verdict.timeline][:2] == [
        ("30", "last healthy step"),
        ("31–40→", "poisoned-state"),
    ]


def test_sound_steps_after_a_bad_loss_clear_the_weights() -> None:
    loss = np.full(1000, 2.0)
    loss[500] = np.nan
    verdict, _ = verdict_on(signals_of(loss=loss), finding("nonfinite-loss", W, 500, 500))
    assert not any("bad weights" in text for text in verdict.undecided)
    assert any("Which sample or which operator" in text for text in verdict.undecided)


def spiked(*after: float) -> np.ndarray:
    """A calm loss with a spike at 500 and what comes after it."""
    loss = np.full(1000, 2.0)
    loss[500] = 50.0
    loss[501 : 501 + len(after)] = after
    return loss


def test_a_spike_that_is_gone_in_the_next_step_was_the_batch() -> None:
    both = (finding("loss-spike", W, 500, 500), finding("gradient-spike", INFO, 500, 500))
    gone, _ = verdict_on(signals_of(loss=spiked()), *both)
    assert not any("jumped in the same step" in text for text in gone.undecided)
    lasting, _ = verdict_on(signals_of(loss=spiked(20.0, 9.0, 4.0)), *both)
    (text,) = (one for one in lasting.undecided if "jumped in the same step" in one)
    assert "Adam" in text
    plain = replace(
        signals_of(loss=spiked(20.0, 9.0)).run, manifest=Manifest(optimizer={"name": "sgd"})
    )
    (text,) = (one for one in verdict_on(Signals(plain), *both)[0].undecided if "jumped" in one)
    assert "Adam" not in text


def test_a_loop_that_skips_a_bad_loss_leaves_the_scale_as_a_consequence() -> None:
    loss, skipped = np.full(1000, 2.0), np.zeros(1000)
    loss[100:700:50] = np.nan
    skipped[100:700:50] = 1
    signals = signals_of(loss=loss, skipped=skipped, scaler_scale=np.full(1000, 1024.0))
    both = (finding("nonfinite-loss", E, 100, 650), finding("loss-scale-frozen", W, 100, 650))
    verdict, ordered = verdict_on(signals, *both)
    assert [ordered[i].rule for i in verdict.consequences] == ["loss-scale-frozen"]


def test_a_gradient_that_is_gone_explains_the_loss_that_jumps_with_it() -> None:
    norm, loss = np.full(1000, 1.5), np.full(1000, 2.0)
    norm[500:], loss[500:] = 0.0, 6.9
    signals = signals_of(grad_l2_pre_clip=norm, loss=loss)
    three = (
        finding("loss-divergence", E, 500),
        finding("gradient-vanishing", E, 500),
        finding("loss-spike", W, 500, 520),
    )
    assert root_of(signals, *three) == "gradient-vanishing"
    earlier = (finding("loss-divergence", E, 400), *three[1:])
    assert root_of(signals, *earlier) == "loss-divergence"


def test_a_fast_explosion_is_told_before_the_loss_that_sets_in_with_it() -> None:
    norm = np.ones(1000)
    norm[500:540] = 2.0 ** np.arange(40)
    norm[540:] = np.inf
    signals = signals_of(grad_l2_pre_clip=norm)
    together = (finding("gradient-explosion", E, 502), finding("loss-divergence", E, 500))
    assert root_of(signals, *together) == "gradient-explosion"
    after = (finding("gradient-explosion", E, 506), finding("loss-divergence", E, 500))
    assert root_of(signals, *after) == "loss-divergence"
    slow = signals_of(grad_l2_pre_clip=np.geomspace(1, 1e6, 1000))
    assert root_of(slow, *together) == "loss-divergence"


def test_the_timeline_is_in_order_of_step_though_a_consequence_is_dated_early() -> None:
    late = finding("gradient-vanishing", E, 500)
    early = finding("loss-plateau", W, 498)
    verdict, ordered = verdict_on(signals_of(), late, early)
    assert verdict.root is not None
    assert ordered[verdict.root].rule == "gradient-vanishing"
    assert [entry.title for entry in verdict.timeline] == [
        "last healthy step",
        "loss-plateau",
        "gradient-vanishing",
    ]
    assert verdict.timeline[0].when == "497"


def test_a_spike_within_a_divergence_claims_no_cause_of_its_own() -> None:
    spike = replace(finding("loss-spike", W, 520, 521), cause="a bad batch", remedy="skip it")
    verdict, ordered = verdict_on(signals_of(), finding("loss-divergence", E, 500), spike)
    told = next(f for f in retold(ordered, verdict) if f.rule == "loss-spike")
    assert told.cause == "It is part of the same trouble: loss-divergence since step 500."
    assert told.remedy == "It goes when that goes."
    alone, single = verdict_on(signals_of(), spike)
    assert retold(single, alone) == single


def test_an_info_dated_early_leaves_the_last_healthy_step_at_the_root() -> None:
    both = (finding("learning-rate-fault", W, 99), finding("loss-plateau", INFO, 52))
    verdict, _ = verdict_on(signals_of(), *both)
    assert [(entry.when, entry.title) for entry in verdict.timeline] == [
        ("52→", "loss-plateau"),
        ("98", "last healthy step"),
        ("99→", "learning-rate-fault"),
    ]
