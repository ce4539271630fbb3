"""A few pictures as they should look: grey thumbnails, compared with some tolerance.

They guard against what no test of content sees: a panel that slid, a colour that went pale.
``pytest tests/unit/render/test_pictures.py --renew`` writes them anew; look at them then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from forensics import load_run, plot_compare, plot_params, plot_run, plot_scale
from tests.unit.render.drawn import pixels

PICTURES = Path(__file__).parent / "pictures"
PROJECT = Path(__file__).parents[3]
SAMPLES = Path("sample_runs")
"""Not absolute: pictures say where their run lies, and a checkout may lie anywhere."""
TOLERANCE = 0.02
"""Share of full black that a thumbnail may differ by on average; a missing line is above it."""
BLOCK = 20
"""Pixels of the squares in which that is judged: fonts differ by a little everywhere."""

DRAWN: dict[str, Callable[[], Figure]] = {
    "run-lr-too-high": lambda: plot_run(load_run(SAMPLES / "lr-too-high")),
    "scale-oscillation": lambda: plot_scale(load_run(SAMPLES / "scaler-oscillation")),
    "params-nan-applied": lambda: plot_params(load_run(SAMPLES / "nan-applied")),
    "compare-nan": lambda: plot_compare(
        load_run(SAMPLES / "where-trap"), load_run(SAMPLES / "nan-applied")
    ),
}


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference of two grey pictures over squares, as a share of full black."""
    rows, columns = (size // BLOCK * BLOCK for size in a.shape)
    parts = [
        p[:rows, :columns].astype(float).reshape(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        for p in (a, b)
    ]
    means = [part.mean(axis=(1, 3)) for part in parts]
    return float(np.abs(means[0] - means[1]).max() / 255)


@pytest.fixture(autouse=True)
def _in_the_project(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PROJECT)


@pytest.mark.parametrize("name", DRAWN)
def test_a_picture_looks_as_it_did(name: str, request: pytest.FixtureRequest) -> None:
    found = pixels(DRAWN[name]())
    path = PICTURES / f"{name}.png"
    if request.config.getoption("--renew"):
        PICTURES.mkdir(exist_ok=True)
        Image.fromarray(found).save(path, optimize=True)
    with Image.open(path) as image:
        kept = np.asarray(image.convert("L"))
    assert found.shape == kept.shape
    assert difference(found, kept) < TOLERANCE


def test_a_missing_line_would_be_noticed() -> None:
    with Image.open(PICTURES / "run-lr-too-high.png") as image:
        kept = np.asarray(image.convert("L"))
    figure = DRAWN["run-lr-too-high"]()
    (line,) = figure.findobj(lambda artist: artist.get_gid() == "loss")
    line.set_visible(False)
    assert difference(pixels(figure), kept) > TOLERANCE
