"""Saved states as text, Markdown and JSON: whole outputs, and what must hold of all of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

import forensics
from forensics.diagnose.state_health import StateHealth
from forensics.render.inspect_json import render_inspect_json
from forensics.render.inspect_markdown import render_inspect_markdown
from forensics.render.inspect_phrases import size_text
from forensics.render.inspect_text import render_inspect_text
from forensics.render.safe_text import display_width
from tests.integration.test_golden import GOLDEN, compare
from tests.unit.render.sample_states import SAMPLES

FORMS: Mapping[str, Callable[[StateHealth], str]] = {
    "txt": lambda health: render_inspect_text([health]),
    "ascii.txt": lambda health: render_inspect_text([health], ascii_only=True),
    "ansi": lambda health: render_inspect_text([health], colour=True),
    "md": lambda health: render_inspect_markdown([health]),
    "json": lambda health: render_inspect_json([health]),
}
CASES = [
    *((name, "txt") for name in SAMPLES),
    *(("sick", form) for form in FORMS if form != "txt"),
    ("hostile", "md"),
    ("hostile", "json"),
]


@pytest.mark.parametrize(("name", "form"), CASES)
def test_golden(
    name: str, form: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forensics, "__version__", "0.0.0", raising=False)
    compare(GOLDEN / "inspect" / f"{name}.{form}", FORMS[form](SAMPLES[name]()), request)


def test_no_golden_file_is_left_over() -> None:
    wanted = {f"{name}.{form}" for name, form in CASES}
    assert {path.name for path in (GOLDEN / "inspect").iterdir()} == wanted


@pytest.mark.parametrize("width", [66, 80, 100])
@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_wider_than_the_page_and_none_can_act(name: str, width: int) -> None:
    text = render_inspect_text([SAMPLES[name]()], width=width)
    for line in text.splitlines():
        assert line.isprintable()
        if "forensics bisect" not in line:  # a command stays whole
            assert display_width(line) <= width


def test_nothing_acts_in_markdown() -> None:
    text = render_inspect_markdown([SAMPLES["hostile"]()])
    assert "\x1b" not in text
    assert "<b>" not in text
    assert all(line.count("|") - line.count("\\|") in (0, 7) for line in text.splitlines())


def test_json_is_strict_and_says_what_is_bad() -> None:
    told = json.loads(render_inspect_json([SAMPLES["sick"]()], errors=[{"path": "x"}]))
    (state,) = told["states"]
    assert (told["format_version"], state["finite"], state["step"]) == (1, False, 700)
    assert [bad["name"] for bad in state["bad"]] == [
        "model.embed.weight",
        "optimizer.state.1.exp_avg_sq",
        "optimizer.param_groups.0.lr",
    ]
    assert state["bad"][0]["first"] == [3, 17]
    assert "finite_names" not in state
    assert told["errors"] == [{"path": "x"}]


def test_several_states_are_told_one_after_the_other() -> None:
    states = [SAMPLES[name]() for name in ("healthy", "ruined")]
    text = render_inspect_text(states)
    head, _, text = text.partition("\n")
    assert head == "2 states, 1 of them not finite; the first is model.safetensors"
    assert text.index("ckpt_700.pt") < text.index("model.safetensors")
    assert text.count("NEXT") == 1
    assert text.count("VERDICT") == 2


def test_a_command_for_a_folder_with_blanks_can_be_pasted() -> None:
    from dataclasses import replace

    health = replace(SAMPLES["sick"](), path=Path("my runs/a.pt"))
    assert "forensics bisect --ckpt-dir 'my runs'" in render_inspect_text([health])


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (28_400, "28.4 kB"), (1.2e9, "1.2 GB")],
)
def test_sizes(size: float, text: str) -> None:
    assert size_text(int(size)) == text
