"""NaN and Inf: in the loss, in the gradients, in the weights, hidden by the logger."""

from __future__ import annotations

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run
from tests.corpus.assemble import any_form, run_of, sheet
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import DAMAGE, NONFINITE, SKIPS
from tests.corpus.loop import Loop, torch_policy
from tests.corpus.noise import Rng
from tests.corpus.training import Training, headroom, pretraining, training

Made = tuple[Run, Label]
FP16 = Loop("fp16", torch_policy())
GUARDED16 = Loop("fp16", torch_policy(), guard=True)
ROWS = {"200": 200, "2k": 2000, "20k": 20_000, "200k": 200_000}
APPLIED = ("nonfinite-step-applied", "nonfinite-gradient")
"""A NaN from backward that went into the weights: both ids name the same row."""


def sixteen(rng: Rng, rows: int, kind: str = "pretraining") -> Training:
    """A training whose fp16 backward has room at 2^16, so that skips are the fault's alone."""
    made = training(rng, rows, kind)
    made.limit = headroom(rng, rows, level=rng.uniform(17.5, 22))
    return made


def _forward_overflow(name: str, rows: int, low: float, high: float) -> None:
    @FAULTY_CASES.add(f"forward-overflow-{name}")
    def make(rng: Rng) -> Made:
        """fp16 forward overflows in every step from one on: the scale is halved in vain."""
        made = sixteen(rng, rows)
        start = made.at(low, high)
        made.nan_loss[start:] = True
        loop = GUARDED16 if rng.random() < 0.5 else FP16
        return run_of(made, loop, form=any_form(made)), fault(
            "nonfinite-loss", start, Expect("dead-run", start), may=SKIPS | NONFINITE
        )


_forward_overflow("200-early", ROWS["200"], 0.2, 0.3)
_forward_overflow("2k-middle", ROWS["2k"], 0.4, 0.6)
_forward_overflow("20k-late", ROWS["20k"], 0.8, 0.95)
_forward_overflow("200k-early", ROWS["200k"], 0.05, 0.2)


@FAULTY_CASES.add("forward-overflow-until-the-scale-writes-nan")
def poison_limit(rng: Rng) -> Made:
    """A streak of NaN losses halves the scale to 2^-128; the first clean step is then poisoned."""
    made = sixteen(rng, 3000)
    start = made.at(0.3, 0.6)
    made.nan_loss[start : start + 170] = True
    # Poisoned weights give NaN losses again, and the scaler skips them for ever.
    return run_of(made, GUARDED16, form=any_form(made)), fault(
        "nonfinite-loss",
        start,
        Expect("loss-scale-collapse", start, upto=start + 40),
        may=SKIPS | DAMAGE,
    )


def _bad_batch_applied(name: str, rows: int, low: float, high: float) -> None:
    @FAULTY_CASES.add(f"nan-batch-applied-{name}")
    def make(rng: Rng) -> Made:
        """One batch with a NaN, no guard, no scaler: every later step is NaN."""
        made = training(rng, rows, str(rng.choice(["pretraining", "vision", "small-batch"])))
        start = made.at(low, high)
        (made.nan_loss if rng.random() < 0.7 else made.inf_loss)[start] = True
        loop = Loop(str(rng.choice(["fp32", "bf16"])), max_norm=1.0)
        form = any_form(made, "foreign")
        return run_of(made, loop, form=form), fault(
            "nonfinite-loss",
            start,
            Expect("nonfinite-step-applied", start),
            Expect("dead-run", start),
            may=DAMAGE,
        )


_bad_batch_applied("200", 200, 0.3, 0.9)
_bad_batch_applied("2k", 2000, 0.1, 0.9)
_bad_batch_applied("200k", 200_000, 0.5, 0.99)


@FAULTY_CASES.add("nan-batch-guarded")
def nan_batch_guarded(rng: Rng) -> Made:
    """One batch with a NaN, skipped before backward; training goes on."""
    made = pretraining(rng, int(rng.choice([300, 3000])))
    start = made.at(0.2, 0.9)
    made.nan_loss[start] = True
    return run_of(made, Loop("bf16", guard=True), form="recorded"), fault("nonfinite-loss", start)


@FAULTY_CASES.add("nan-batch-scaler-skips")
def nan_batch_scaler(rng: Rng) -> Made:
    """One batch with a NaN in fp16: the scaler skips it, and halves."""
    made = sixteen(rng, 4000)
    start = made.at(0.2, 0.9)
    made.nan_loss[start] = True
    return run_of(made, FP16, form=any_form(made)), fault("nonfinite-loss", start)


@FAULTY_CASES.add("nan-batches-several")
def nan_batches(rng: Rng) -> Made:
    """A handful of bad batches at irregular steps, all skipped."""
    made = sixteen(rng, 9000)
    hits = np.sort(rng.choice(np.arange(800, 8800), 6, replace=False))
    made.nan_loss[hits] = True
    return run_of(made, GUARDED16, form=any_form(made)), fault("nonfinite-loss", int(hits[0]))


@FAULTY_CASES.add("loss-inf-then-nan")
def inf_then_nan(rng: Rng) -> Made:
    """The loss is Inf in one step, unguarded; the update makes everything NaN."""
    made = pretraining(rng, 1200)
    start = made.at(0.3, 0.8)
    made.inf_loss[start] = True
    return run_of(made, Loop(), form="canonical"), fault(
        "nonfinite-loss", start, Expect("nonfinite-step-applied", start), may=DAMAGE
    )


@FAULTY_CASES.add("first-row-nan")
def first_row(rng: Rng) -> Made:
    """Bad from the first step on: an uninitialised parameter."""
    made = pretraining(rng, int(rng.choice([20, 200, 2000])))
    made.nan_loss[:] = True
    loop = GUARDED16 if rng.random() < 0.5 else Loop()
    return run_of(made, loop, form=any_form(made)), fault(
        "nonfinite-loss", 0, Expect("dead-run", 0), may=SKIPS | NONFINITE
    )


@FAULTY_CASES.add("nan-last-row")
def last_row(rng: Rng) -> Made:
    """The loss is NaN in the last row, where the run stopped."""
    made = pretraining(rng, 700)
    made.nan_loss[-1] = True
    return run_of(made, Loop(), form=any_form(made)), fault(
        "nonfinite-loss", made.rows - 1, may=NONFINITE | {"dead-run"}
    )


@FAULTY_CASES.add("losses-alone-nan")
def losses_alone(rng: Rng) -> Made:
    """Only losses are logged; they are NaN from one step on."""
    made = pretraining(rng, 2000)
    start = made.at(0.2, 0.9)
    made.nan_loss[start:] = True
    log = sheet(made, Loop()).drop("grad_l2_pre_clip")
    return run_of(made, Loop(), log, form="bare"), fault("nonfinite-loss", start, may={"dead-run"})


def _where_trap(name: str, rows: int, low: float, high: float) -> None:
    @FAULTY_CASES.add(f"nan-gradient-applied-{name}")
    def make(rng: Rng) -> Made:
        """Finite loss, NaN gradient, applied: the next loss is NaN."""
        made = training(rng, rows, str(rng.choice(["pretraining", "vision"])))
        start = made.at(low, high)
        (made.nan_grad if rng.random() < 0.6 else made.inf_grad)[start] = True
        return run_of(made, Loop("fp32"), form=any_form(made, "foreign")), fault(
            APPLIED,
            start,
            Expect("nonfinite-step-applied", start),
            Expect("nonfinite-loss", start + 1),
            Expect("dead-run", start, upto=start + 1),
            may=DAMAGE,
        )


_where_trap("200", 200, 0.3, 0.9)
_where_trap("2k", 2000, 0.1, 0.9)
_where_trap("200k", 200_000, 0.4, 0.95)


@FAULTY_CASES.add("nan-gradient-no-skip-column")
def no_skip_column(rng: Rng) -> Made:
    """The same where the log has neither skips nor scale."""
    made = pretraining(rng, 3000)
    start = made.at(0.2, 0.9)
    made.nan_grad[start] = True
    return run_of(made, Loop(), form="bare"), fault("nonfinite-gradient", start, may=DAMAGE)


@FAULTY_CASES.add("nan-gradient-guarded")
def nan_gradient_guarded(rng: Rng) -> Made:
    """A NaN gradient now and then in fp32, skipped by a guard."""
    made = pretraining(rng, 5000)
    hits = np.sort(rng.choice(np.arange(300, 4900), int(rng.integers(1, 6)), replace=False))
    made.nan_grad[hits] = True
    return run_of(made, Loop("fp32", guard=True), form="recorded"), fault(
        "nonfinite-gradient", int(hits[0]), may={"nonfinite-parameter"}
    )


def _any_scale(name: str, rows: int, low: float, high: float) -> None:
    @FAULTY_CASES.add(f"nan-gradient-at-any-scale-{name}")
    def make(rng: Rng) -> Made:
        """Backward gives NaN in every step from one on, finite loss: no scale can help."""
        made = sixteen(rng, rows)
        start = made.at(low, high)
        made.nan_grad[start:] = True
        return run_of(made, FP16, form=any_form(made)), fault(
            "nonfinite-gradient",
            start,
            Expect("loss-scale-collapse", start, upto=start + 40),
            Expect("dead-run", start),
            may=SKIPS | NONFINITE,
        )


_any_scale("400", 400, 0.3, 0.5)
_any_scale("4k", 4000, 0.3, 0.8)
_any_scale("100k", 100_000, 0.5, 0.99)


def _masked(name: str) -> None:
    @FAULTY_CASES.add(f"masked-{name}")
    def make(rng: Rng) -> Made:
        """The logger hides what is NaN; the norms tell."""
        made = pretraining(rng, int(rng.choice([600, 6000])))
        start = made.at(0.3, 0.8)
        made.nan_grad[start] = True
        log = sheet(made, Loop())
        hidden = ~np.isfinite(np.asarray(log.values["loss"]))
        loss = np.array(log.values["loss"])
        if name == "zero":
            loss[hidden] = 0.0
        elif name == "frozen":
            loss[hidden] = loss[start]
        else:
            log.written["loss"] = ~hidden
        log.values["loss"] = loss
        return run_of(made, Loop(), log, form=any_form(made, "foreign")), fault(
            APPLIED,
            start,
            Expect("masked-nonfinite", start + 1, least=Severity.WARNING),
            may=DAMAGE | {"masked-nonfinite", "stuck-log"},
        )


for _name in ("zero", "frozen", "missing"):
    _masked(_name)


@FAULTY_CASES.add("norm-overflow-elements-finite")
def norm_overflow(rng: Rng) -> Made:
    """The norm overflows though no element is non-finite: recorded as such, step taken."""
    made = pretraining(rng, 2500)
    start = made.at(0.3, 0.8)
    log = sheet(made, Loop())
    log.values["grad_l2_pre_clip"][start] = 3.2e20
    log.values["grad_l2_post_clip"][start] = 1.0
    log.values["norm_overflow"] = np.arange(made.rows) == start
    return run_of(made, Loop(), log, form="recorded"), fault(
        ("norm-overflow", "gradient-spike"),
        start,
        Expect("norm-overflow", start),
        may={"gradient-spike"},
    )


@FAULTY_CASES.add("norm-overflow-repeated")
def norm_overflow_repeated(rng: Rng) -> Made:
    """fp16 norms overflow again and again: clip coefficient 0, steps silently lost."""
    made = pretraining(rng, 2500)
    hits = np.sort(rng.choice(np.arange(300, 2400), 25, replace=False))
    log = sheet(made, Loop())
    log.values["grad_l2_pre_clip"][hits] = np.inf
    log.values["grad_l2_post_clip"][hits] = 0.0
    log.values["norm_overflow"] = np.isin(np.arange(made.rows), hits)
    return run_of(made, Loop(), log, form="recorded"), fault("norm-overflow", int(hits[0]))


def _recurring(name: str, period: int, rows: int, loop: Loop) -> None:
    @FAULTY_CASES.add(f"recurring-sample-{name}")
    def make(rng: Rng) -> Made:
        """One bad sample in a data set that is not shuffled: NaN once an epoch."""
        made = sixteen(rng, rows)
        first = int(rng.integers(period // 3, period))
        made.nan_loss[first::period] = True
        return run_of(made, loop, form="recorded"), fault(
            ("recurring-sample", "nonfinite-loss"),
            first,
            Expect("recurring-sample", first),
            Expect("nonfinite-loss", first),
            may=SKIPS,  # one halving an epoch and no growth in between
        )


_recurring("fp32", 317, 3000, Loop("fp32", guard=True))
_recurring("fp16", 811, 8000, GUARDED16)
_recurring("short-epoch", 95, 900, Loop("bf16", guard=True))


@FAULTY_CASES.add("recurring-nan-gradient")
def recurring_gradient(rng: Rng) -> Made:
    """The same with a NaN gradient."""
    made = pretraining(rng, 5000)
    first = int(rng.integers(100, 450))
    made.nan_grad[first::453] = True
    return run_of(made, Loop("fp32", guard=True), form="recorded"), fault(
        ("recurring-sample", "nonfinite-gradient"),
        first,
        Expect("recurring-sample", first),
        may={"nonfinite-parameter"},
    )
