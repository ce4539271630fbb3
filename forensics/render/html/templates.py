"""The templates of the page: whatever enters one is made visible and escaped, unasked.

Text from logs is a stranger's. Jinja's autoescape keeps it out of the markup, ``finalize`` writes
out what could turn a line around or hide (control and bidirectional characters), and a policy that
names the page's own scripts and styles by their hash keeps all others from running.
"""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from forensics.render.safe_text import visible

SCRIPTS = ("uplot.min.js", "axes.js", "places.js", "panel.js", "charts.js", "page.js")
"""In the order in which they run."""
STYLES = ("uplot.min.css", "page.css")
_IN_SCRIPT = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


@cache
def environment() -> Environment:
    """Where the templates are, and what makes text in them safe."""
    made = Environment(
        loader=PackageLoader("forensics.render.html", "assets"),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["commands"] = _commands
    return made


def _shown(value: Any) -> Any:
    """A text as it may be shown; what is markup already is ours."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _commands(text: str) -> Markup:
    """A sentence of ours with what stands between backticks as code; all of it is escaped."""
    parts = [escape(visible(part)) for part in text.split("`")]
    if len(parts) % 2 == 0:  # one backtick has no other: a log's, and shown as it is
        return Markup("`").join(parts)
    coded = (Markup("<code>{}</code>").format(p) if i % 2 else p for i, p in enumerate(parts))
    return Markup("").join(coded)


@cache
def asset(name: str) -> str:
    """A script or style that lies beside the templates.

    Raises:
        ValueError: it would end the element that it is put into.
    """
    text = (files("forensics.render.html") / "assets" / name).read_text(encoding="utf-8")
    if "</script" in text.lower() or "</style" in text.lower():
        raise ValueError(f"{name} would end its own element")
    return text


def content_security_policy() -> str:
    """Nothing from anywhere, and only these scripts and styles: by hash, so no injected one."""
    scripts = " ".join(_hash_source(asset(name)) for name in SCRIPTS)
    styles = " ".join(_hash_source(asset(name)) for name in STYLES)
    return (
        f"default-src 'none'; script-src {scripts}; style-src {styles}; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def json_for_script(value: Any) -> Markup:
    """JSON that may stand in a script element: pure ASCII, and nothing in it ends the element.

    Raises:
        ValueError: a number is NaN or Inf.
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate(_IN_SCRIPT))
