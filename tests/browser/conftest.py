"""One headless Chromium for all tests of the page; without one they skip, and say so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from forensics.render.html.report import render_html
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.browser.page import Page
from tests.unit.render.html.pages import diagnosed, hostile_run, spiked_run

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
)
MILLION = 1_000_000


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser with a profile of its own that reaches nothing."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if browser is None or chromedriver is None:
        pytest.skip("no chromium and chromedriver here: apt-get install chromium chromium-driver")
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="no selenium: pip install -e '.[dev]'"
    )
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(chromedriver)
    started = webdriver.Chrome(options=options, service=service)
    try:
        yield started
    finally:
        started.quit()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The pages, as files: a run with a spike, a hostile one, both, and a long one."""
    folder = tmp_path_factory.mktemp("pages")
    spiked = diagnosed(spiked_run())
    hostile = diagnosed(hostile_run(tmp_path_factory.mktemp("hostile")))
    pages = {
        "spiked": [spiked],
        "hostile": [hostile],
        "both": [spiked, hostile],
        "million": [diagnosed(long_run())],
    }
    files = {}
    for name, diagnoses in pages.items():
        files[name] = folder / f"{name}.html"
        files[name].write_text(render_html(diagnoses), encoding="utf-8")
    return files


def long_run() -> Run:
    """A million rows of fp16 training, with a spike of one row and a dead end."""
    random = np.random.default_rng(0)
    step = np.arange(MILLION)
    loss = 2 + 8 * np.exp(-step / 2e5) + random.normal(0, 0.05, MILLION)
    loss[500_000] = 40.0
    loss[900_000:] = np.nan
    norm = np.exp(random.normal(0, 0.4, MILLION))
    columns = {
        "step": step,
        "lr": np.full(MILLION, 1e-3),
        "grad_l2_pre_clip": norm,
        "grad_l2_post_clip": np.minimum(norm, 1.0),
        "loss": loss,
        "skipped": (step % 2000 == 0) | (step >= 900_000),
        "scaler_scale": np.full(MILLION, 65_536.0),
    }
    return Run(path=Path("runs/million"), steps=StepTable.from_arrays(columns))


@pytest.fixture
def page(driver: Any, written: dict[str, Path]) -> Page:
    """What opens one of the pages."""
    return Page(driver, written)
