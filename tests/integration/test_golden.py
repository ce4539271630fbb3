"""Whole outputs against ``tests/golden``; its README says how to renew them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import forensics
from forensics.diagnose.bisection_result import BisectionResult
from forensics.diagnose.finding import Diagnosis
from forensics.render.bisect_json import render_bisect_json
from forensics.render.bisect_markdown import render_bisect_markdown
from forensics.render.bisect_text import render_bisect_text
from forensics.render.json_report import render_json
from forensics.render.markdown_report import render_markdown
from forensics.render.text_report import render_text
from tests.unit.render import sample_bisections
from tests.unit.render.sample_diagnoses import SAMPLES

GOLDEN = Path(__file__).parents[1] / "golden"

FORMS: Mapping[str, Callable[[Diagnosis], str]] = {
    "txt": render_text,
    "verbose.txt": lambda d: render_text(d, verbose=True),
    "ascii.txt": lambda d: render_text(d, ascii_only=True),
    "ansi": lambda d: render_text(d, colour=True),
    "json": lambda d: render_json([d]),
    "md": render_markdown,
}

CASES = [
    *((name, "txt") for name in SAMPLES),
    ("undecided", "verbose.txt"),
    *(("forward-overflow", form) for form in FORMS if form != "txt"),
    ("hostile", "json"),
    ("hostile", "md"),
]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_report(
    name: str, form: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forensics, "__version__", "0.0.0", raising=False)
    compare(GOLDEN / "reports" / f"{name}.{form}", FORMS[form](SAMPLES[name]()), request)


BISECTIONS: Mapping[str, Callable[[BisectionResult], str]] = {
    "txt": render_bisect_text,
    "ascii.txt": lambda r: render_bisect_text(r, ascii_only=True),
    "narrow.txt": lambda r: render_bisect_text(r, width=40),
    "ansi": lambda r: render_bisect_text(r, colour=True),
    "json": render_bisect_json,
    "md": render_bisect_markdown,
}

BISECTION_CASES = [
    *((name, "txt") for name in sample_bisections.SAMPLES),
    *(("growth", form) for form in BISECTIONS if form != "txt"),
    ("folder", "md"),
    ("hostile", "json"),
    ("hostile", "md"),
]


@pytest.mark.parametrize(("name", "form"), BISECTION_CASES)
def test_bisection(
    name: str, form: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forensics, "__version__", "0.0.0", raising=False)
    text = BISECTIONS[form](sample_bisections.SAMPLES[name]())
    compare(GOLDEN / "bisections" / f"{name}.{form}", text, request)


def compare(path: Path, text: str, request: pytest.FixtureRequest) -> None:
    """The golden file is this text, or becomes it with ``--renew``."""
    if request.config.getoption("--renew"):
        path.write_bytes(text.encode("utf-8"))
    # Bytes: a universal newline would hide a stray carriage return.
    assert path.read_bytes().decode("utf-8") == text


@pytest.mark.parametrize(("folder", "cases"), [("reports", CASES), ("bisections", BISECTION_CASES)])
def test_no_golden_file_is_left_over(folder: str, cases: list[tuple[str, str]]) -> None:
    wanted = {f"{name}.{form}" for name, form in cases}
    assert {path.name for path in (GOLDEN / folder).iterdir()} == wanted
