"""Runs for pages, and a page read back as a browser would read it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis
from forensics.runlog.manifest import Manifest, ParameterInfo
from forensics.runlog.params import ParamStore, ParamWriter
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable

HOSTILE = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    "\" onclick='window.broken=1' javascript:alert(1) {{7*7}} \u202eevil\u2028\x1b[31m\x00end"
)
"""Ends a script, opens one, an attribute and a template; turns a line around; a control or two."""
SHOWN = (
    "</script><script>window.broken=1</script><img src=x onerror=window.broken=1>"
    "\" onclick='window.broken=1' javascript:alert(1) {{7*7}} \\u202eevil\\u2028\\x1b[31m\\x00end"
)
"""The same as a reader sees it."""


def spiked_run(rows: int = 400, path: str = "runs/spiked") -> Run:
    """A run with one tall spike of the loss, a NaN at its end, and a scaler at work."""
    step = np.arange(rows)
    loss = 2.0 + np.exp(-step / rows)
    loss[rows // 2] = 90.0
    loss[-5:] = np.nan
    skipped = step % 50 == 49
    scale = np.where(step < rows // 2, 65_536.0, 32_768.0)
    columns = {
        "step": step,
        "lr": np.full(rows, 1e-3),
        "grad_l2_pre_clip": 1.0 + 0.5 * np.sin(step / 7),
        "grad_l2_post_clip": np.minimum(1.0 + 0.5 * np.sin(step / 7), 1.0),
        "loss": loss,
        "skipped": skipped,
        "scaler_scale": scale,
    }
    return Run(path=Path(path), steps=StepTable.from_arrays(columns))


def hostile_run(folder: Path) -> Run:
    """A run on disk whose every text that a stranger can set is hostile."""
    names = [f"layer.{HOSTILE}", "layer.a", "layer.b"]
    writer = ParamWriter(folder / "params")
    for step in (10, 20, 40):
        norms = [3.0, 1.0, 2.0] if step < 40 else [float("inf"), 1.0, 2.0]
        stats = {
            "grad_l2": norms,
            "grad_absmax": norms,
            "grad_nonfinite": [int(step == 40), 0, 0],
            "value_l2": [9.0, 8.0, 7.0],
            "value_nonfinite": [0, 0, 0],
            "update_l2": [0.1, 0.1, 0.1],
        }
        writer.append(step, names, "param", stats)
    writer.close()
    steps = folder / "steps.csv"
    quoted = '"' + f"nonfinite_grad_{HOSTILE}".replace('"', '""').replace("\x00", "") + '"'
    lines = ["step,lr,grad_l2_pre_clip,grad_l2_post_clip,loss,skipped,skip_reason,scaler_scale"]
    for step in range(60):
        bad = step in (30, 31)
        lines.append(
            f"{step},0.001,{'inf' if bad else 1.0},{'' if bad else 1.0},2.0,{int(bad)},"
            f"{quoted if bad else ''},{65536.0 if step < 31 else 32768.0}"
        )
    steps.write_text("\n".join(lines) + "\n", encoding="utf-8")
    from forensics.runlog.run import load_run

    run = load_run(steps)
    manifest = Manifest(
        recipe={"name": HOSTILE, "config": {HOSTILE: HOSTILE}},
        precision="fp16",
        parameters=tuple(ParameterInfo(name=name, shape=(4, 4)) for name in names),
        arrival_order=tuple(reversed(names)),
    )
    return replace(run, manifest=manifest, params=ParamStore(folder / "params"))


def diagnosed(run: Run) -> Diagnosis:
    """The run, judged by every rule."""
    return diagnose(run)


@dataclass
class Element:
    """One element of a page: its tag, attributes and the text directly and deeply in it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class PageReader(HTMLParser):
    """All elements of a page in order, with their whole text."""

    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in ("meta", "input", "br", "img"):
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1].tag == tag:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def all(self, tag: str) -> list[Element]:
        """Every element of that kind."""
        return [element for element in self.elements if element.tag == tag]


def read_page(text: str) -> PageReader:
    """A page as elements."""
    reader = PageReader()
    reader.feed(text)
    reader.close()
    return reader
