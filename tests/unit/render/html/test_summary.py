"""What a notebook shows of a diagnosis and of a run."""

from dataclasses import replace

import pytest

import forensics
from tests.unit.render.html.pages import diagnosed, read_page, spiked_run
from tests.unit.render.sample_diagnoses import SAMPLES


@pytest.mark.parametrize("name", SAMPLES)
def test_a_diagnosis_shows_its_verdict_and_findings_and_runs_nothing(name: str) -> None:
    diagnosis = SAMPLES[name]()
    shown = diagnosis._repr_html_()
    reader = read_page(shown)
    assert {e.tag for e in reader.elements}.isdisjoint({"script", "style", "img", "b", "iframe"})
    assert not any(a.startswith("on") for e in reader.elements for a in e.attributes)
    assert f"Verdict: {diagnosis.verdict.status.value.replace('-', ' ')}." in shown
    assert len(reader.all("table")) == len(reader.all("caption"))


def test_more_findings_than_fit_are_counted() -> None:
    shown = SAMPLES["undecided"]()._repr_html_()
    assert "… and 3 more findings." in shown


def test_a_verdict_of_one_word_is_not_told_twice() -> None:
    healthy = SAMPLES["healthy"]()
    bare = replace(healthy, verdict=replace(healthy.verdict, summary="healthy."))
    assert "Verdict: healthy.</strong> Nothing was found" in bare._repr_html_()


def test_a_long_name_cannot_push_a_table_out_of_the_cell() -> None:
    diagnosis = diagnosed(spiked_run())
    first, *others = diagnosis.findings
    findings = (replace(first, message="layer." * 200), *others)
    reader = read_page(replace(diagnosis, findings=findings)._repr_html_())
    (cell,) = [e for e in reader.all("td") if "layer.layer." in e.text]
    assert "overflow-wrap:anywhere" in cell.attributes["style"]


def test_a_run_shows_what_its_diagnosis_shows() -> None:
    run = spiked_run()
    assert run._repr_html_() == diagnosed(run)._repr_html_()
    assert "runs/spiked" in run._repr_html_()


def test_the_fragment_has_a_public_name() -> None:
    diagnosis = SAMPLES["healthy"]()
    assert forensics.render_html_summary(diagnosis) == diagnosis._repr_html_()
