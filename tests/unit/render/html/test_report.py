"""The page as text: its parts, its order, and that nothing in it is anyone else's."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from forensics.diagnose.bisection_result import BisectStatus
from forensics.diagnose.finding import Diagnosis, Finding, Severity
from forensics.render.html.report import render_html
from forensics.render.html.templates import SCRIPTS
from forensics.render.html.view import finding_views, run_view
from forensics.render.text_report import render_text
from tests.unit.render.html.pages import SHOWN, diagnosed, hostile_run, read_page, spiked_run
from tests.unit.render.sample_bisections import SAMPLES as BISECTIONS
from tests.unit.render.sample_diagnoses import SAMPLES


@pytest.fixture(scope="module")
def spiked() -> Diagnosis:
    return diagnosed(spiked_run())


@pytest.fixture(scope="module")
def page(spiked: Diagnosis) -> str:
    return render_html([spiked])


@pytest.mark.parametrize("name", SAMPLES)
def test_every_kind_of_diagnosis_becomes_a_page(name: str) -> None:
    diagnosis = SAMPLES[name]()
    reader = read_page(render_html([diagnosis]))
    assert len(reader.all("h1")) == 1
    ids = Counter(e.attributes["id"] for e in reader.elements if "id" in e.attributes)
    assert set(ids.values()) == {1}
    referred = {
        name
        for element in reader.elements
        for key in ("aria-labelledby", "aria-describedby", "aria-controls")
        for name in element.attributes.get(key, "").split()
    }
    targets = {e.attributes["href"].removeprefix("#") for e in reader.all("a")}
    assert referred | targets <= set(ids)


def test_it_is_the_same_bytes_for_the_same_run(spiked: Diagnosis, page: str) -> None:
    assert render_html([spiked]) == page


def test_it_loads_nothing_and_carries_no_handler(page: str) -> None:
    for element in read_page(page).elements:
        assert not {name for name in element.attributes if name.startswith("on") or name == "style"}
        assert "src" not in element.attributes
        assert element.attributes.get("href", "#").startswith("#")
    assert [e.tag for e in read_page(page).elements if e.tag in ("link", "iframe", "object")] == []


def test_the_policy_comes_before_anything_it_governs(page: str) -> None:
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script")


def test_the_sections_are_there_in_order(page: str) -> None:
    heads = [element.text.split("\n")[0].strip() for element in read_page(page).all("h2")]
    assert [head.split()[0] for head in heads] == [
        "Verdict",
        "Timeline",
        "Charts",
        "Findings",
        "Rules",
    ]


def test_landmarks_of_several_runs_have_names_of_their_own(spiked: Diagnosis) -> None:
    other = diagnosed(spiked_run(path="runs/other"))
    sections = read_page(render_html([spiked, other])).all("section")
    names = [e.attributes["aria-labelledby"] for e in sections]
    assert len(names) == len(set(names)) > 10
    assert "run-2-charts run-2-path" in names


def test_headings_never_skip_a_level(page: str, spiked: Diagnosis) -> None:
    for text in (page, render_html([spiked, spiked])):
        levels = [int(e.tag[1]) for e in read_page(text).elements if re.fullmatch(r"h\d", e.tag)]
        assert levels[0] == 1
        assert all(b - a <= 1 for a, b in pairwise(levels))


def test_every_table_has_a_caption_and_every_header_a_scope(tmp_path: Path) -> None:
    reader = read_page(render_html([diagnosed(hostile_run(tmp_path))]))
    assert len(reader.all("table")) == len(reader.all("caption")) > 0
    assert all(e.attributes.get("scope") in ("row", "col") for e in reader.all("th"))


def test_findings_have_the_numbers_and_the_order_of_the_text(spiked: Diagnosis) -> None:
    views = finding_views(spiked)
    assert [view.number for view in views] == list(range(1, len(views) + 1))
    assert [view.root for view in views] == [True, *[False] * (len(views) - 1)]
    text = render_text(spiked).split("FINDINGS")[1]
    places = [text.index(f" {view.rule} ") for view in views]
    assert places == sorted(places)


@pytest.mark.parametrize("count", [4, 5, 9])
def test_the_first_pieces_of_advice_are_shown_and_the_rest_is_folded(count: int) -> None:
    findings = tuple(
        Finding(
            rule=f"rule-{i}",
            severity=Severity.ERROR,
            message="m",
            first_step=i,
            last_step=i,
            remedy=f"advice {i}",
        )
        for i in range(count)
    )
    sample = SAMPLES["undecided"]()
    verdict = replace(sample.verdict, root=0, consequences=(), unrelated=(*range(1, count),))
    text = render_html([replace(sample, findings=findings, verdict=verdict)])
    shown, _, folded = text.split('<p class="label">Do</p>')[1].partition('<details class="more">')
    folded = folded.partition("</details>")[0]
    assert all(f"advice {i}<" in shown for i in range(4))
    assert [f"advice {i}<" in folded for i in range(count)] == [i >= 4 for i in range(count)]
    assert (f"Advice on {count - 4} more" in folded) == (count > 4)


def test_episodes_of_one_rule_are_one_finding() -> None:
    view = finding_views(SAMPLES["undecided"]())[0]
    assert view.rule == "clipping-every-step"
    assert len(view.episodes) == 11
    assert view.episodes[0][0] == "step 1,000 → 1,299"


def test_a_verdict_of_one_word_is_not_told_twice() -> None:
    healthy = SAMPLES["healthy"]()
    told = run_view(healthy, "run-1", places=50).summary
    assert told == "healthy. 9 steps of 20,000 skipped: the loss scaler at work."
    bare = replace(healthy, verdict=replace(healthy.verdict, summary="healthy."))
    assert run_view(bare, "run-1", places=50).summary.startswith("Nothing was found")


def test_evidence_is_a_table_of_places_and_values() -> None:
    loss, *_ = finding_views(SAMPLES["forward-overflow"]())[0].evidence
    assert loss.rows == (("8,216", "2.43"), ("8,217", "2.41"), ("8,218", "NaN"))
    scale = finding_views(SAMPLES["forward-overflow"]())[2].evidence[0]
    assert scale.rows[-1] == ("8,362", "2^-128")


def test_the_markdown_to_copy_is_the_markdown_report(spiked: Diagnosis, page: str) -> None:
    from forensics.render.markdown_report import render_markdown

    data = next(e for e in read_page(page).all("script") if e.attributes.get("id") == "data")
    assert data.attributes["type"] == "application/json"
    assert json.loads(data.text)["run-1"]["markdown"] == render_markdown(spiked, verbose=True)


def test_many_long_runs_share_the_rows_of_a_page() -> None:
    long = diagnosed(spiked_run(rows=40_000))
    alone, eight = (len(render_html([long] * count)) for count in (1, 8))
    assert eight < 6 * alone


def test_several_runs_have_a_section_each_and_a_list_of_them(spiked: Diagnosis) -> None:
    other = diagnosed(spiked_run(path="runs/other"))
    errors = [{"path": "gone", "message": "gone: no such file"}]
    reader = read_page(render_html([spiked, other], errors=errors))
    assert [e.text for e in reader.all("h1")] == ["2 runs"]
    titles = [e.text for e in reader.all("h2") if e.attributes.get("class") == "name"]
    assert titles == ["runs/spiked", "runs/other"]
    assert "gone: no such file" in [e.text for e in reader.all("li")]
    links = [e.attributes["href"] for e in reader.all("a")]
    assert "#run-1" in links
    assert "#run-2" in links


def test_without_its_run_a_diagnosis_is_told_without_charts(spiked: Diagnosis) -> None:
    reader = read_page(render_html([replace(spiked, source=None)]))
    assert reader.all("figure") == []
    assert "Findings" in [e.text for e in reader.all("h2")]


@pytest.mark.parametrize("name", BISECTIONS)
def test_a_bisection_is_told_with_what_was_tried(
    name: str, spiked: Diagnosis, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = BISECTIONS[name]()
    monkeypatch.setattr(
        "forensics.render.html.view.bisection_of", lambda run: (result, ("a note",))
    )
    view = run_view(spiked, "run-1", places=50).bisection
    assert view is not None
    assert view.located == (result.status is BisectStatus.LOCATED)
    assert [change for change, _, _ in view.trials] == [one.change for one in result.what_if]
    reader = read_page(render_html([spiked]))
    assert "a note" in [e.text for e in reader.all("p")]
    assert "Bisection" in [e.text for e in reader.all("h2")]
    assert all(e.text.strip() for e in reader.all("th"))


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    harmless = read_page(render_html([diagnosed(spiked_run())]))
    diagnosis = diagnosed(hostile_run(tmp_path))
    page = render_html([SAMPLES["hostile"](), diagnosis])
    reader = read_page(page)
    assert len(reader.all("script")) == len(harmless.all("script")) == 1 + len(SCRIPTS)
    assert reader.all("img") == []
    assert not {"\u202e", "\u2028", "\x1b", "\x00", "\x07"} & set(page)
    names = [e.text for e in reader.all("th") if e.attributes.get("class") == "name"]
    assert f"layer.{SHOWN}" in names
    assert all(not name.startswith("on") for e in reader.elements for name in e.attributes)
