"""``forensics report`` on every sample run, held to what an engineer would say of it."""

import contextlib
import importlib
import io
import json
from pathlib import Path

import numpy as np
import pytest

from forensics.cli import main
from forensics.diagnose.finding import Severity
from forensics.diagnose.rules import RULES
from forensics.runlog.run import load_run

ROOT = Path(__file__).parents[2] / "sample_runs"
NAMES = sorted(path.parent.name for path in ROOT.glob("*/run.json"))
LARGEST_IN_ALL = 500_000


@pytest.fixture(scope="module", params=NAMES)
def told(request):
    """The report of one sample run, and what is expected of it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = main(["report", str(ROOT / request.param), "--format", "json"])
    assert code == 0
    expected = json.loads((ROOT / request.param / "expected.json").read_text())
    return json.loads(out.getvalue())["reports"][0], expected


def severity(word: str) -> Severity:
    return Severity[word.upper()]


def within(finding: dict, span: list[int]) -> bool:
    return span[0] <= finding["first_step"] <= span[1]


def test_the_status(told):
    report, expected = told
    assert report["verdict"]["status"] == expected["status"], report["verdict"]["summary"]


def test_the_root(told):
    report, expected = told
    root = report["verdict"]["root"]
    if expected["root"] is None:
        assert root is None
        return
    assert root is not None, report["verdict"]["summary"]
    finding = report["findings"][root]
    assert finding["rule"] in expected["root"]["rules"]
    assert within(finding, expected["root"]["first_step"]), finding["first_step"]


def test_the_findings_that_must_be_there(told):
    report, expected = told
    for wanted in expected["findings"]:
        alike = [f for f in report["findings"] if f["rule"] == wanted["rule"]]
        assert alike, f"no {wanted['rule']}"
        good = [f for f in alike if within(f, wanted["first_step"])]
        assert good, f"{wanted['rule']} at {[f['first_step'] for f in alike]}"
        assert max(severity(f["severity"]) for f in good) >= severity(wanted["severity"])


def test_nothing_is_worse_than_it_may_be(told):
    report, expected = told
    most = severity(expected.get("worst", "critical"))
    assert [f["rule"] for f in report["findings"] if severity(f["severity"]) > most] == []


def test_no_rule_fails(told):
    report, _ = told
    assert [r for r in report["rules"] if r["outcome"] == "failed"] == []


@pytest.fixture
def script(monkeypatch):
    """The script that records the samples."""
    monkeypatch.syspath_prepend(ROOT)
    return importlib.import_module("regenerate")


def test_every_sample_is_recorded_by_the_script_and_told_in_the_readme(script):
    assert sorted(sample.name for sample in script.SAMPLES) == NAMES
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"| `{name}` |" not in readme] == []


@pytest.mark.parametrize("name", ["inf-gradient", "bad-sample", "update-forgotten"])
def test_a_sample_is_what_its_recipe_records(name, script, tmp_path):
    (sample,) = [entry for entry in script.SAMPLES if entry.name == name]
    script.record(sample, tmp_path)
    now, then = load_run(tmp_path / name).steps, load_run(ROOT / name).steps
    assert list(now) == list(then)
    assert now["skipped"].tolist() == then["skipped"].tolist()
    # Another processor computes other last bits.
    np.testing.assert_allclose(now["loss"], then["loss"], rtol=1e-3)


def test_what_is_expected_names_rules_that_exist():
    known = {rule.id for rule in RULES}
    for name in NAMES:
        expected = json.loads((ROOT / name / "expected.json").read_text())
        named = {wanted["rule"] for wanted in expected["findings"]}
        named |= set((expected["root"] or {"rules": []})["rules"])
        assert named <= known, name


def test_the_samples_stay_small():
    files = [path for path in ROOT.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) <= LARGEST_IN_ALL


def test_the_bad_gradient_stands_between_the_finite_ones_around_it():
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main(["report", str(ROOT / "inf-gradient"), "--format", "json", "--verbose"])
    findings = json.loads(out.getvalue())["reports"][0]["findings"]
    named = next(one for one in findings if one["rule"] == "nonfinite-parameter")
    assert named["subject"] == "head.weight"
    assert "head.bias before it" in named["message"]
    assert "layers.1.bias after it" in named["message"]
