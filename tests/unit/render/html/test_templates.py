"""What makes text safe, and what keeps all scripts but our own from running."""

import base64
import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forensics.render.html.templates import (
    SCRIPTS,
    STYLES,
    asset,
    content_security_policy,
    environment,
    json_for_script,
)
from forensics.render.safe_text import visible
from tests.unit.render.html.pages import HOSTILE, SHOWN, read_page


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_comes_back_from_a_template_as_it_is_shown(text: str) -> None:
    made = environment().from_string("<p title='{{ x }}'>{{ x }}</p><b>").render(x=text)
    elements = read_page(made).elements
    assert [element.tag for element in elements] == ["p", "b"]
    assert elements[0].text == visible(text)
    assert elements[0].attributes == {"title": visible(text)}


@settings(max_examples=200, deadline=None)
@given(value=st.recursive(st.text(max_size=20), lambda inner: st.lists(inner, max_size=3)))
def test_json_in_a_script_is_the_same_value_and_cannot_end_its_element(value: object) -> None:
    text = str(json_for_script({"k": value}))
    assert text.isascii()
    assert not set("<>&") & set(text)
    assert json.loads(text) == {"k": value}


def test_json_refuses_what_a_browser_cannot_read() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        json_for_script([float("nan")])


def test_a_hostile_text_is_written_out() -> None:
    made = environment().from_string("<p>{{ x }}</p>").render(x=HOSTILE)
    assert read_page(made).elements[0].text == SHOWN
    assert not {"\u202e", "\u2028", "\x1b", "\x00"} & set(made)


def test_a_name_that_a_template_misspells_is_an_error() -> None:
    with pytest.raises(Exception, match="nothing_of_this_name"):
        environment().from_string("{{ nothing_of_this_name }}").render()


def test_the_policy_allows_the_own_scripts_and_styles_and_nothing_else() -> None:
    policy = dict(part.strip().split(" ", 1) for part in content_security_policy().split(";"))
    assert policy["default-src"] == "'none'"
    assert "unsafe" not in content_security_policy()
    for names, directive in ((SCRIPTS, "script-src"), (STYLES, "style-src")):
        allowed = policy[directive].split()
        digests = [hashlib.sha256(asset(name).encode()).digest() for name in names]
        assert allowed == [f"'sha256-{base64.b64encode(d).decode()}'" for d in digests]


def test_the_charting_library_is_the_released_one() -> None:
    digest = hashlib.sha256(asset("uplot.min.js").encode()).hexdigest()
    assert digest == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "MIT License" in asset("uplot.LICENSE")


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "uplot.min.js"])
def test_own_scripts_never_make_markup_of_text(name: str) -> None:
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in asset(name)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("run `forensics bisect`, then look", "run <code>forensics bisect</code>, then look"),
        ("`<b>` and <i>", "<code>&lt;b&gt;</code> and &lt;i&gt;"),
        ("one ` alone <x>", "one ` alone &lt;x&gt;"),
        ("\u202eturned `\x1b[31m`", "\\u202eturned <code>\\x1b[31m</code>"),
    ],
)
def test_commands_in_our_sentences_are_code_and_nothing_else_is(text: str, shown: str) -> None:
    assert environment().from_string("{{ text|commands }}").render(text=text) == shown
