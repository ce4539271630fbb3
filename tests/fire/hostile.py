"""A run by a stranger who wants the reader's terminal, browser, spreadsheet or machine."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from forensics.diagnose.bisection_file import bisection_document
from forensics.runlog.activations import ActivationWriter
from forensics.runlog.params import ParamWriter
from forensics.runlog.run import load_run
from tests.unit.render.sample_bisections import hostile as hostile_bisection

SAMPLES = Path(__file__).parents[2] / "sample_runs"
ESCAPES = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e\x08\x7f"
"""Clear the screen, rename the window, ring, colour by a C1 control, write backwards, rub out."""
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'|`*_[l](javascript:alert(3))"
FORMULA = '=HYPERLINK("http://e",1)'
TEXT = ESCAPES + MARKUP
LINES = f"{TEXT}\r\n# head\n\n- {FORMULA}\u2028"
KEPT = frozenset({"precision", "autocast_device", "post_clip", "reason", "how", "dtype", "flavour"})
"""Fields of ``run.json`` that mean something only in their own words."""


def hostile_run(place: Path, sample: str = "nan-applied") -> Path:
    """A copy of a sample run whose every name and text is hostile; its folder's name is, too."""
    run = place / f"run{ESCAPES}<b>&'\"`|"
    shutil.copytree(SAMPLES / sample, run, ignore=shutil.ignore_patterns("expected.json", "params"))
    _spoil_manifest(run)
    _spoil_rows(run)
    _write_snapshots(run)
    _write_states(run)
    document = bisection_document(hostile_bisection(), load_run(run).steps)
    spoiled = spoil({**document, "log": {}}, lambda text: text + TEXT)
    (run / "bisect.json").write_text(json.dumps({**spoiled, "log": document["log"]}))
    (run / "ranks").mkdir()
    (run / "ranks" / "rank-00001.csv").write_text(f'step,"{_cell(TEXT)}",loss\n0,1,nan\n')
    (run / "superseded" / "1").mkdir(parents=True)
    shutil.copyfile(run / "steps.csv", run / "superseded" / "1" / "steps.csv")
    return run


def spoil(value: Any, change: Callable[[str], str], key: str = "") -> Any:
    """A JSON value with every text in it changed, but for words that are looked up."""
    if isinstance(value, str):
        return value if key in KEPT or key == "status" else change(value)
    if isinstance(value, list):
        return [spoil(item, change, key) for item in value]
    if isinstance(value, dict):
        return {name: spoil(item, change, name) for name, item in value.items()}
    return value


def _spoil_manifest(run: Path) -> None:
    path = run / "run.json"
    manifest = spoil(json.loads(path.read_text()), lambda text: text + LINES)
    manifest["ended"] = {"how": "exception", "step": 9, "message": LINES}
    manifest["missing"] = [f"params: {LINES}"]
    manifest["recipe"]["config"][TEXT] = {TEXT: [TEXT]}
    manifest[TEXT] = TEXT
    path.write_text(json.dumps(manifest))


def _cell(text: str) -> str:
    return text.replace('"', '""')


def _spoil_rows(run: Path) -> None:
    """A further column, and text where a reason stands."""
    path = run / "steps.csv"
    header, *rows = path.read_text().splitlines()
    at = header.split(",").index("skip_reason")
    lines = [f'{header},"{_cell(TEXT)}","{_cell(FORMULA)}"']
    for number, row in enumerate(rows):
        cells = row.split(",")
        if number % 7 == 3:
            reason = (f"nonfinite_grad:{TEXT}", TEXT, FORMULA)[number % 3]
            cells[at - 1], cells[at] = "1", f'"{_cell(reason)}"'
        lines.append(",".join([*cells, f'"{_cell(TEXT)}"', f'"{_cell(FORMULA)}"']))
    path.write_text("\n".join([*lines, ""]))


def _write_snapshots(run: Path) -> None:
    names = [f"layer.{i}{TEXT}" for i in range(4)]
    with ParamWriter(run / "params") as params, ActivationWriter(run / "activations") as modules:
        for step in range(0, 60, 5):
            bad = np.array([0, 0, step > 20, 0])
            norms = np.where(bad, np.nan, np.linspace(0.1, 1.0, 4) * 1.5 ** (step / 5))
            stats = {"grad_l2": norms, "grad_nonfinite": bad, "value_l2": norms}
            params.append(step, names, "param", {**stats, "value_nonfinite": bad})
            modules.append(step, names, {"std": norms, "absmax": norms, "nonfinite": bad})


def _write_states(run: Path) -> None:
    folder = run / "checkpoints"
    folder.mkdir()
    for step, value in ((0, 1.0), (20, float("nan"))):
        state = {
            "model": {TEXT: torch.full((2, 2), value), f"b.{LINES}": torch.ones(3)},
            TEXT: TEXT,
        }
        torch.save(state, folder / f"step-{step:08d}.pt")
        bad = [{"name": LINES, "kind": TEXT, "parameter": TEXT, "nan": 1, "inf": 0, "numel": 4}]
        health = {"step": step, "healthy": step == 0, "finite": step == 0, "reason": LINES}
        health |= {"bad": bad if step else [], "missing": [LINES], "extremes": {TEXT: {TEXT: TEXT}}}
        (folder / f"step-{step:08d}.health.json").write_text(json.dumps(health))
    (folder / f"step-5{ESCAPES}<b>.pt").write_bytes(b"no state")
    (folder / f"state{ESCAPES}-7.safetensors").write_bytes(b"no state")
