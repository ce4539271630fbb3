"""What a stranger wrote stays text: in pages, pictures, Markdown, JSON and tables."""

from __future__ import annotations

import csv
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

import forensics
from forensics.cli import main
from tests.fire.hostile import FORMULA, SAMPLES, hostile_run
from tests.fire.test_terminal import commands, unprintable


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hostile_run(tmp_path_factory.mktemp("stranger"))


class Elements(HTMLParser):
    """Every element of a page, and every attribute that could run or fetch something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.active: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.active += [
            f"{name}={value}"
            for name, value in attrs
            if name.startswith("on")
            or (name in ("href", "src", "action", "style") and "javascript" in (value or ""))
        ]


@pytest.mark.parametrize("form", ["page", "notebook"])
def test_a_page_has_only_its_own_elements(form: str, run: Path, tmp_path: Path) -> None:
    def page(path: Path) -> Elements:
        if form == "notebook":
            return Elements(forensics.load_run(path)._repr_html_())
        assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 0
        return Elements((tmp_path / "page.html").read_text(encoding="utf-8"))

    ours, theirs = page(SAMPLES / "nan-applied"), page(run)
    for tag in ("script", "img", "iframe", "object", "link", "style", "form"):
        assert theirs.tags.count(tag) == ours.tags.count(tag), tag
    assert theirs.active == ours.active == []


@pytest.mark.parametrize("verb", ["plot", "plot-scale", "plot-params", "plot-compare"])
def test_a_picture_runs_nothing(verb: str, run: Path, tmp_path: Path) -> None:
    if verb == "plot-scale":
        run = hostile_run(tmp_path, "scaler-oscillation")
    runs = [str(run), str(run)] if verb == "plot-compare" else [str(run)]
    out = tmp_path / "picture.svg"
    assert main([verb, *runs, "--out", str(out)]) == 0
    for element in ElementTree.parse(out).iter():
        assert element.tag.rpartition("}")[2] not in ("script", "foreignObject", "a")
        assert not [name for name in element.attrib if name.startswith("on")]
        links = [v for name, v in element.attrib.items() if name.endswith("href")]
        assert all(link.startswith(("#", "data:image/png;")) for link in links)


MARKDOWN = [name for name in commands(Path("run")) if name.endswith("markdown")]


@pytest.mark.parametrize("name", MARKDOWN)
def test_markdown_renders_as_text(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(commands(run)[name])
    text = capsys.readouterr().out
    assert unprintable(text) == []
    # A block of code shows what is in it as it is; its fence must not be closed by a name.
    outside = re.sub(r"(?ms)^(`{3,}).*?^\1$", "", text)
    assert "```" not in outside
    assert not re.search(r"<(script|img|b)", outside)
    assert not re.search(r"(?<!\\)\[l(?<!\\)\]\(", outside)
    assert not re.search(r"(?m)^# head", outside)
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    for row, after in itertools.pairwise(rows):
        if re.fullmatch(r"[|: -]+", after):
            width = len(re.findall(r"(?<!\\)\|", row))
        assert len(re.findall(r"(?<!\\)\|", row)) == width


JSON = [name for name in commands(Path("run")) if name.endswith("json")]


@pytest.mark.parametrize("name", JSON)
def test_json_is_json_and_ascii(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(commands(run)[name])
    text = capsys.readouterr().out
    assert text.isascii()
    assert code == 2 or json.loads(text, parse_constant=pytest.fail)


def test_a_table_computes_nothing_in_a_spreadsheet(run: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    header = '"=1+1",@x,-y,+z,=w'
    rows = [f"{i},{2 - i / 100},1,=2,-3,+a,{FORMULA!r},=cmd" for i in range(40)]
    log.write_text("\n".join([f"step,loss,{header},skip_reason", *rows, ""]).replace("'", '"'))
    for source in (log, run / "steps.csv"):
        out = tmp_path / "out.csv"
        assert main(["convert", str(source), "--out", str(out)]) == 0
        with out.open(newline="", encoding="utf-8") as file:
            table = list(csv.reader(file))
        assert len(table) > 40
        for cell in (cell for row in table for cell in row):
            assert not cell.startswith(("=", "+", "@", "\t", "\r"))
            assert not cell.startswith("-") or float(cell) < 0
            assert unprintable(cell) == []
        again = forensics.load_run(out).steps
        assert repr(again["loss"]) == repr(forensics.load_run(source).steps["loss"])
