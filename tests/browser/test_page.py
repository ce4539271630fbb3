"""The page as its reader has it: in a browser, from a file, with mouse, keys and a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.browser.page import Page
from tests.unit.render.html.pages import SHOWN

LOSS = "figure[data-chart=loss] .u-over"
NORM = "figure[data-chart=norm] .u-over"


def legend(page: Page, chart: str) -> str:
    return " | ".join(page.texts(f"figure[data-chart={chart}] .legend li:not([hidden])"))


# -- it opens ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hostile", "both"])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_opens_from_a_file_without_a_word_on_the_console(
    page: Page, name: str, width: int
) -> None:
    page.open(name, width=width)
    assert page.js("document.documentElement.dataset.ready") is not None
    assert page.console() == []
    assert page.js("performance.getEntriesByType('resource').length") == 0
    assert page.js("document.documentElement.scrollWidth") <= width  # nothing sticks out


def test_a_million_rows_are_small_and_soon_ready(page: Page) -> None:
    assert page.written["million"].stat().st_size < 6_000_000
    page.open("million")
    assert page.console() == []
    assert float(page.js("document.documentElement.dataset.ready")) < 2_000
    assert "highest 40 at 500,000" in page.texts("#run-1-loss-summary")[0]


def test_the_rows_around_a_finding_are_there_one_by_one_in_a_million(page: Page) -> None:
    page.open("million")
    bands = page.js("JSON.parse(document.getElementById('data').textContent)['run-1'].charts.bands")
    page.click(".lane", next(i for i, b in enumerate(bands) if b["rule"] == "nonfinite-loss"))
    page.driver.execute_script(
        "const form = document.querySelector('.zoom');"
        "form.elements.from.value = 899990; form.elements.to.value = 900010;"
        "form.requestSubmit();"
    )
    page.hover(LOSS, 9 / 20)
    assert "step 899,999" in legend(page, "loss")
    assert " to " not in legend(page, "loss")  # the value of one row, and no range
    page.hover(LOSS, 10 / 20)
    assert "loss NaN" in legend(page, "loss")


def test_a_zoom_draws_one_place_a_pixel_and_loses_neither_spike_nor_gap(page: Page) -> None:
    page.open("spiked")
    found = page.js(
        "(() => { const step = [...Array(10000).keys()], values = step.map((i) => 1 + i / 1e4);"
        "values[7777] = 50; values[2222] = -50; values.fill(null, 5000, 5500);"
        "const view = new Places.View(step, 0, 9999, 300);"
        "const [low, high, middle] = ['lowest', 'highest', 'median'].map("
        "  (name) => view.gather(values, Places[name]));"
        "return {places: view.step.length, high: Math.max(...high), low: Math.min(...low),"
        "  middle: Math.max(...middle), gaps: middle.filter((v) => v == null).length,"
        "  joined: view.starts.every((s, i) => i === 0 || view.range(i - 1)[1] === s),"
        "  ends: [view.starts[0], view.end]}; })()"
    )
    assert found["places"] <= 302
    assert (found["low"], found["high"]) == (-50, 50)
    assert found["middle"] < 2
    assert 10 <= found["gaps"] <= 15
    assert found["joined"]
    assert found["ends"] == [0, 10_000]


def test_a_zoom_holds_the_places_within_it_and_one_on_either_side(page: Page) -> None:
    page.open("spiked")
    found = page.js(
        "(() => { const step = [...Array(100).keys()].map((i) => 10 * i);"
        "const view = new Places.View(step, 200, 300, 1000);"
        "return [view.starts, view.beside(25, 1), view.beside(25, -1), view.beside(31, 1),"
        "  view.beside(90, -1)]; })()"
    )
    assert found == [[*range(19, 32)], 26, 24, 32, 89]


def test_a_nan_among_the_rows_of_one_pixel_is_told(page: Page) -> None:
    page.open("million")
    page.hover(LOSS, 0.9)
    assert "NaN" in legend(page, "loss")


def test_an_injected_script_does_not_run(page: Page) -> None:
    page.open("spiked")
    page.driver.execute_script(
        "const s = document.createElement('script'); s.textContent = 'window.injected = 1';"
        "document.body.append(s);"
        "const d = document.createElement('div');"
        "d.innerHTML = '<img src=x onerror=\"window.injected = 2\">'; document.body.append(d);"
    )
    assert page.js("window.injected || 0") == 0
    assert any("Content Security Policy" in said for said in page.console())


# -- the charts ----------------------------------------------------------------------------------


def test_a_drag_across_one_chart_zooms_all(page: Page) -> None:
    page.open("spiked")
    assert page.shown == (0, 399)
    page.drag(LOSS, 0.25, 0.5)
    first, last = page.shown
    assert first == pytest.approx(100, abs=4)
    assert last == pytest.approx(200, abs=4)
    assert page.js("document.querySelector('.zoom [name=from]').value") == str(first)
    page.click("[data-zoom=all]")
    assert page.shown == (0, 399)


def test_the_lines_of_all_charts_change_with_the_zoom(page: Page) -> None:
    page.open("spiked")
    canvases = "[...document.querySelectorAll('.plot canvas')].map(c => c.toDataURL())"
    before = page.js(canvases)
    page.drag(NORM, 0.4, 0.6)
    page.js("new Promise(requestAnimationFrame)")
    after = page.js(canvases)
    assert len(before) == 5
    assert all(a != b for a, b in zip(before, after, strict=True))


def test_hovering_over_one_chart_tells_the_values_of_all(page: Page) -> None:
    page.open("spiked")
    page.hover(LOSS, 200 / 399)
    assert "step 200" in legend(page, "loss")
    assert "loss 90" in legend(page, "loss")
    assert "step 200" in legend(page, "norm")
    assert "32,768" in legend(page, "scale")
    assert "backoff" in legend(page, "scale")


def test_a_value_that_is_not_finite_is_told_by_name(page: Page) -> None:
    page.open("spiked")
    page.hover(LOSS, 397 / 399)
    assert "loss NaN" in legend(page, "loss")


def test_typed_ends_and_buttons_zoom(page: Page) -> None:
    page.open("spiked")
    page.driver.execute_script(
        "const form = document.querySelector('.zoom');"
        "form.elements.from.value = 50; form.elements.to.value = 150;"
        "form.requestSubmit();"
    )
    assert page.shown == (50, 150)
    page.click("[data-zoom=in]")
    assert page.shown == (75, 125)
    page.click("[data-zoom=right]")
    assert page.shown == (100, 150)
    page.click("[data-zoom=out]")
    assert page.shown == (75, 175)


def test_ends_beyond_the_run_are_held_within_it(page: Page) -> None:
    page.open("spiked")
    page.driver.execute_script(
        "const form = document.querySelector('.zoom');"
        "form.elements.from.value = -500; form.elements.to.value = 9999999;"
        "form.requestSubmit();"
    )
    assert page.shown == (0, 399)


def test_a_finding_zooms_to_its_steps(page: Page) -> None:
    page.open("spiked")
    spans = page.js("JSON.parse(document.getElementById('data').textContent)['run-1'].charts.bands")
    place, band = next((i, b) for i, b in enumerate(spans) if b["rule"] == "loss-spike")
    page.click(".lane", place)
    first, last = page.shown
    assert first < band["spans"][0][0] <= band["spans"][0][1] < last
    assert last - first < 60


def test_two_fingers_zoom_on_a_phone(page: Page) -> None:
    page.open("spiked", width=390, height=844)
    page.cdp("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    try:
        box = page.box(LOSS)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        for kind, apart in (("touchStart", 20), ("touchMove", 30), ("touchMove", 60)):
            points = [{"x": x - apart, "y": y, "id": 0}, {"x": x + apart, "y": y, "id": 1}]
            page.cdp("Input.dispatchTouchEvent", type=kind, touchPoints=points)
        page.cdp("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        first, last = page.shown
    finally:
        page.cdp("Emulation.setTouchEmulationEnabled", enabled=False)
    assert 100 < last - first < 250


# -- the keyboard --------------------------------------------------------------------------------


def test_every_control_is_reached_and_seen_with_the_tab_key(page: Page) -> None:
    page.open("hostile")
    controls = (
        "[...document.querySelectorAll('a, button, input, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility())"
    )
    wanted = page.js(f"{controls}.length")
    focused = (
        f"[{controls}.indexOf(document.activeElement), "
        "getComputedStyle(document.activeElement).outlineStyle]"
    )
    seen = set()
    for _ in range(wanted + 5):
        page.press("Tab", 9)
        place, outline = page.js(focused)
        if place >= 0:
            seen.add(place)
            assert outline != "none"
    assert len(seen) == wanted


def key(page: Page, name: str, shift: bool = False) -> None:
    page.js(
        "document.activeElement.dispatchEvent(new KeyboardEvent('keydown',"
        " {key: arguments[0], shiftKey: arguments[1], bubbles: true, cancelable: true}))",
        name,
        shift,
    )


def test_the_keys_move_along_a_chart_and_zoom_it(page: Page) -> None:
    page.open("spiked")
    page.js("document.querySelector('figure[data-chart=loss] .plot').focus()")
    key(page, "Home")
    key(page, "ArrowRight")
    told = page.texts(".readout output")[0]
    assert told.startswith("step 1: loss 2.9")
    assert "gradient norm (L2) before the clip 1.0" in told
    key(page, "+")
    first, last = page.shown
    assert last - first == pytest.approx(200, abs=2)
    key(page, "ArrowRight", shift=True)
    assert page.shown[0] > first
    key(page, "0")
    assert page.shown == (0, 399)


# -- the table -----------------------------------------------------------------------------------


@pytest.fixture
def table(page: Page) -> Iterator[Page]:
    page.open("hostile")
    return page


def rows(page: Page) -> list[str]:
    shown: Any = page.js(
        "[...document.querySelectorAll('.sortable tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.cells[0].textContent)"
    )
    return [name if len(name) < 20 else "hostile" for name in shown]


def test_a_click_on_a_header_sorts(table: Page) -> None:
    assert rows(table) == ["hostile", "layer.b", "layer.a"]
    table.click(".sortable thead button", 5)
    assert rows(table) == ["hostile", "layer.a", "layer.b"]
    assert table.texts(".sortable [aria-sort=descending]") == ["weight norm"]
    table.click(".sortable thead button", 5)
    assert rows(table) == ["layer.b", "layer.a", "hostile"]
    assert table.texts(".sortable [aria-sort=ascending]") == ["weight norm"]


def test_the_filter_finds_names_and_says_how_many(table: Page) -> None:
    table.one(".filter input").send_keys("Layer. B")
    assert rows(table) == ["hostile", "layer.b"]
    assert table.texts(".filter .shown") == ["2 of 3"]
    table.one(".filter input").clear()
    assert len(rows(table)) == 3
    table.one(".filter input").send_keys("nothing-like-it")
    assert rows(table) == []


# -- copying, and hostile text -------------------------------------------------------------------


def test_the_report_is_copied_as_markdown(page: Page) -> None:
    page.open("spiked")
    page.driver.execute_script(
        "navigator.clipboard.writeText = async text => { window.copied = text; }"
    )
    page.click(".copy-markdown")
    assert page.js("window.copied").startswith("## runs/spiked: faulty")
    assert page.texts("#run-1-copied") == ["Copied: paste it into an issue."]


def test_hostile_text_is_text(page: Page) -> None:
    page.open("hostile")
    assert page.js("window.broken || 0") == 0
    assert page.js("document.images.length") == 0
    assert f"layer.{SHOWN}" in page.texts(".sortable th.name")
    assert any(SHOWN[:40] in text for text in page.texts("figure[data-chart=scale] .legend li"))
    page.js("document.querySelector('figure[data-chart=scale] .plot').focus()")
    key(page, "End")
    assert page.js("window.broken || 0") == 0
    assert page.console() == []


# -- colours, phone, printer ---------------------------------------------------------------------


CONTRAST = """(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const linear = v => (v / 255 <= 0.04045 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = element => {
    for (; element; element = element.parentElement) {
      const found = parts(getComputedStyle(element).backgroundColor);
      if (found.length < 4 || found[3] === 1) return found;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll('body *')) {
    const texts = [...element.childNodes].filter(n => n.nodeType === 3 && n.textContent.trim());
    if (!element.checkVisibility() || !texts.length) continue;
    const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.className} ${ratio.toFixed(2)}`);
  }
  return poor;
})()"""
"""The elements whose text has less than 4.5 : 1 against its ground (WCAG 2.2 AA, 1.4.3)."""


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_the_contrast_that_is_asked_for(page: Page, dark: bool) -> None:
    page.open("both", dark=dark)
    page.js("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.js(CONTRAST) == []


def brightness(page: Page) -> float:
    return float(np.asarray(page.screenshot().convert("L")).mean())


def test_the_page_and_its_charts_are_dark_where_the_reader_wants_it_dark(page: Page) -> None:
    page.open("spiked")
    line = "getComputedStyle(document.documentElement).getPropertyValue('--c1').trim()"
    bright, blue = brightness(page), page.js(line)
    page.open("spiked", dark=True)
    assert bright > 200
    assert brightness(page) < 60
    assert page.js(line) != blue


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 900)])
def test_the_charts_are_drawn_within_the_page(page: Page, width: int, height: int) -> None:
    page.open("spiked", width=width, height=height)
    boxes = page.js(
        "[...document.querySelectorAll('.plot canvas')]"
        ".map(canvas => canvas.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == 5
    assert all(box["left"] >= 0 and box["right"] <= width for box in boxes)
    assert all(box["width"] > 0.8 * min(width - 60, 1000) for box in boxes)
    page.box(LOSS)
    picture = np.asarray(page.screenshot()).astype(int)
    lines = np.abs(picture - np.array([0x00, 0x72, 0xB2])).sum(axis=2) < 40
    assert lines.sum() > 200  # the first series' blue is there


def test_a_printer_gets_everything_in_ink_on_paper(page: Page) -> None:
    page.open("spiked", dark=True)
    page.driver.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert page.js("document.querySelectorAll('details:not([open])').length") == 0
    page.cdp("Emulation.setEmulatedMedia", media="print")
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.js("getComputedStyle(document.body).color") == "rgb(27, 31, 36)"
    assert page.js("document.querySelector('.copy-markdown').checkVisibility()") is False
    page.cdp("Emulation.setEmulatedMedia", media="")
    page.driver.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert page.js("document.querySelectorAll('details:not([open])').length") > 0
