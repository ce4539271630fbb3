"""Damage to the log itself, seams of resumes, rows that repeat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from forensics.diagnose.finding import Severity
from forensics.runlog.run import Run
from tests.corpus.assemble import PATH, Sheet, as_text, manifest, run_of, sheet, through_csv
from tests.corpus.case import FAULTY_CASES, Expect, Label, fault
from tests.corpus.faulty.families import BLOW_UP
from tests.corpus.loop import Loop
from tests.corpus.noise import Rng
from tests.corpus.training import Training, pretraining

Made = tuple[Run, Label]


def _resumed(made: Training, loop: Loop, log: Sheet, step: int) -> Run:
    usual = manifest(made, loop)
    both = (usual.segments[0], replace(usual.segments[0], start_step=step, reason="resume"))
    return run_of(made, loop, log, manifest=replace(usual, segments=both))


@FAULTY_CASES.add("broken-nul-bytes")
def nul_bytes(rng: Rng) -> Made:
    """The disk was full: a block of NUL bytes in the middle of the file."""
    made = pretraining(rng, 1200)
    text = as_text(sheet(made, Loop()))
    at = made.at(0.3, 0.7)

    def damage(data: bytes) -> bytes:
        cut = sum(len(line) + 1 for line in text[: at + 1])
        return data[:cut] + b"\0" * 512 + data[cut + 512 :]

    table = through_csv(text, damage)
    return Run(PATH, table, manifest=manifest(made, Loop())), fault(
        ("broken-log", "resume-seam"), at, Expect("broken-log", None), slack=made.rows
    )


@FAULTY_CASES.add("broken-cells")
def cells(rng: Rng) -> Made:
    """Another program wrote into the log: one line in twenty does not parse."""
    made = pretraining(rng, 1500)
    text = as_text(sheet(made, Loop()))
    hits = 1 + np.flatnonzero(rng.random(1500) < 0.05)
    for hit in hits:
        text[hit] = text[hit][:6] + "WARNING: worker restarted" + text[hit][12:]
    table = through_csv(text)
    return Run(PATH, table, manifest=manifest(made, Loop())), fault(
        ("broken-log", "resume-seam"),
        int(hits[0]) - 1,
        Expect("broken-log", None, least=Severity.WARNING),
        slack=made.rows,
    )


@FAULTY_CASES.add("broken-glued-rows")
def glued(rng: Rng) -> Made:
    """A restart appended to a line that had been cut: two rows in one line."""
    made = pretraining(rng, 1000)
    text = as_text(sheet(made, Loop()))
    at = made.at(0.3, 0.8)
    text[at] = text[at][: len(text[at]) // 2] + text.pop(at + 1)
    table = through_csv(text)
    return Run(PATH, table, manifest=manifest(made, Loop())), fault(
        ("broken-log", "resume-seam"), at, Expect("broken-log", None), slack=made.rows
    )


def _hole(name: str, rows: int, missing: int) -> None:
    @FAULTY_CASES.add(f"seam-hole-{name}")
    def make(rng: Rng) -> Made:
        """Rows are missing at a resume: what was trained there is not known."""
        made = pretraining(rng, rows)
        start = made.at(0.3, 0.7)
        log = sheet(made, Loop("bf16"))
        kept = np.ones(rows, dtype=bool)
        kept[start : start + missing] = False
        return _resumed(made, Loop("bf16"), log.take(kept), start + missing), fault(
            "resume-seam", start, slack=2, upto=start + missing
        )


_hole("small", 3000, 60)
_hole("large", 20_000, 3000)


def _lost_optimizer(name: str, rows: int, height: float) -> None:
    @FAULTY_CASES.add(f"seam-lost-state-{name}")
    def make(rng: Rng) -> Made:
        """Resumed without the optimizer's state: the loss jumps and takes long to come back."""
        made = pretraining(rng, rows).clean_noise(0.01, 0.1)
        start = made.at(0.4, 0.6)
        later = (np.arange(rows) - start).astype(float)
        made.loss_factor = np.where(later >= 0, 1 + height * (1 + later.clip(0) / 300) ** -0.7, 1.0)
        log = sheet(made, Loop("bf16"))
        return _resumed(made, Loop("bf16"), log, start), fault(
            ("resume-seam", "loss-spike"), start, Expect("resume-seam", start), may=BLOW_UP
        )


_lost_optimizer("mild", 4000, 0.3)
_lost_optimizer("blatant", 4000, 1.2)


@FAULTY_CASES.add("seam-lost-schedule")
def lost_schedule(rng: Rng) -> Made:
    """Resumed without the scheduler's state: warm-up starts again."""
    made = pretraining(rng, 6000)
    start = made.at(0.4, 0.6)
    made.rate("cosine", 3e-4, 300)
    made.lr[start:] = made.lr[: 6000 - start]
    log = sheet(made, Loop("bf16"))
    return _resumed(made, Loop("bf16"), log, start), fault(
        ("resume-seam", "learning-rate-fault"), start, may={"learning-rate-fault", "resume-seam"}
    )


def _stuck(name: str, rows: int, length: int) -> None:
    @FAULTY_CASES.add(f"stuck-{name}")
    def make(rng: Rng) -> Made:
        """Rows are bit-identical in loss and norm: the same batch, or a logger that repeats."""
        made = pretraining(rng, rows)
        log = sheet(made, Loop("bf16"))
        start = made.at(0.2, 0.7)
        for column in ("loss", "grad_l2_pre_clip", "grad_l2_post_clip"):
            log.values[column][start : start + length] = log.values[column][start]
        return run_of(made, Loop("bf16"), log, form="canonical"), fault("stuck-log", start)


_stuck("short", 600, 12)
_stuck("long", 5000, 400)
_stuck("to-the-end", 2000, 2000)
