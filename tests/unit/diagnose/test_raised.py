"""What the verdict says of a run that an exception ended and in which no rule found a fault."""

from __future__ import annotations

import numpy as np
import pytest

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Status, Verdict
from forensics.diagnose.raised import KINDS, OTHER
from forensics.render.json_report import report
from forensics.render.markdown_report import render_markdown
from forensics.render.text_report import render_text
from forensics.runlog.manifest import Ended, Manifest
from tests.unit.diagnose.step_logs import calm, run_of

GIB = float(1 << 30)


def judged(message: str, step: int | None = 200, **columns: object) -> Verdict:
    manifest = Manifest(ended=Ended("exception", step, message))
    return diagnose(run_of(calm(200, **columns), manifest).run).verdict


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "fit into memory"),
        ("RuntimeError: CUDA error: device-side assert triggered", "no class"),
        ("IndexError: Target 10 is out of bounds.", "no class"),
        ("ValueError: Expected more than 1 value per channel when training", "another shape"),
        ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 5x1)", "another shape"),
        ("RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.", "NaN"),
        ("DistBackendError: NCCL communicator was aborted on rank 3", "Another process"),
        ("OSError: [Errno 28] No space left on device", "disk was full"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a.jpg'", "could not be read"),
        ("ZeroDivisionError: division by zero", "own code"),
    ],
)
def test_the_cause_fits_the_message(message: str, cause: str) -> None:
    verdict = judged(message)
    assert verdict.status is Status.UNDECIDED
    assert message.rstrip(".") in verdict.summary
    assert cause in verdict.cause
    assert verdict.remedy


def test_every_kind_has_a_cause_and_a_remedy_in_whole_sentences() -> None:
    for kind in (*KINDS, OTHER):
        assert kind.cause.endswith(".")
        assert kind.remedy.endswith(".")


def test_the_timeline_holds_the_last_step_and_the_one_that_raised() -> None:
    last, end = judged("ValueError: no").timeline
    assert (last.when, last.title) == ("199", "last healthy step")
    assert "loss" in last.detail
    assert "norm" in last.detail
    assert (end.when, end.title, end.detail) == ("200", "raised", "ValueError")


def test_a_run_that_raised_before_its_first_row_has_no_last_step() -> None:
    manifest = Manifest(ended=Ended("exception", 0, "ValueError: no"))
    verdict = diagnose(run_of(calm(0), manifest).run).verdict
    assert [entry.title for entry in verdict.timeline] == ["raised"]


def test_a_shape_that_fits_nothing_from_the_first_step_on_is_not_the_batchs_fault() -> None:
    message = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x5 and 4x4)"
    manifest = Manifest(ended=Ended("exception", 0, message))
    verdict = diagnose(run_of(calm(0), manifest).run).verdict
    assert "model, data and loss do not fit" in verdict.cause
    assert "before" not in verdict.cause


@pytest.mark.parametrize(
    ("end", "told"), [(30 * GIB, "grown ×3 to 30 GiB: something piles up"), (10 * GIB, "piled up")]
)
def test_memory_that_grew_is_told_apart_from_one_large_step(end: float, told: str) -> None:
    peak = np.linspace(10 * GIB, end, 200)
    peak[:20] = 10 * GIB
    verdict = judged("OutOfMemoryError: CUDA out of memory", peak_memory_bytes=peak)
    assert told in verdict.cause


def test_all_formats_tell_it() -> None:
    manifest = Manifest(ended=Ended("exception", 200, "OutOfMemoryError: CUDA out of memory"))
    diagnosis = diagnose(run_of(calm(200), manifest).run)
    text = " ".join(render_text(diagnosis).split())
    assert "CAUSE A batch, or what was kept" in text
    assert "DO If it is the first steps" in text
    marked = render_markdown(diagnosis)
    assert "**Cause:** A batch" in marked
    assert "### What to do" in marked
    told = report(diagnosis)["verdict"]
    assert (told["cause"], told["remedy"]) == (diagnosis.verdict.cause, diagnosis.verdict.remedy)


def test_an_interrupt_is_no_fault() -> None:
    manifest = Manifest(ended=Ended("interrupted", 200))
    verdict = diagnose(run_of(calm(200), manifest).run).verdict
    assert verdict.status is Status.HEALTHY
    assert not verdict.cause
