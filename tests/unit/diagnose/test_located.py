"""What a bisection located, in the report."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from forensics.diagnose.bisection import bisection
from forensics.diagnose.bisection_file import bisection_document
from forensics.diagnose.bisection_result import BisectionResult, BisectStatus
from forensics.diagnose.engine import diagnose
from forensics.diagnose.finding import Diagnosis, Severity, Status
from forensics.diagnose.located import RULE, finding_of
from forensics.diagnose.signals import Signals
from forensics.runlog.manifest import Manifest
from forensics.runlog.run import Run
from forensics.runlog.steps import StepTable
from tests.unit.render.sample_bisections import bad_sample, growth, healthy, silent


def log(rows: int = 60, nan_at: int | None = None) -> StepTable:
    loss = [2.0 - 0.01 * i + 0.005 * (i % 5) for i in range(rows)]
    norm = [1.0 + 0.01 * (i % 7) for i in range(rows)]
    if nan_at is not None:
        loss[nan_at] = math.nan
    return StepTable.from_arrays({"loss": loss, "grad_l2_pre_clip": norm, "lr": [0.1] * rows})


def told(steps: StepTable, result: BisectionResult, **changes: Any) -> Diagnosis:
    document = json.loads(json.dumps(bisection_document(result, steps), allow_nan=False))
    document["bisection"].update(changes)
    return diagnose(Run(path=Path("runs/x"), steps=steps, bisection=document))


def test_the_root_says_where_it_was_located_and_what_was_proven() -> None:
    steps = log(nan_at=30)
    plain = diagnose(Run(path=Path("runs/x"), steps=steps))
    found = told(steps, bad_sample())
    assert plain.verdict.root is not None
    assert found.verdict.root == plain.verdict.root
    root = found.findings[found.verdict.root]
    assert root.rule == plain.findings[plain.verdict.root].rule
    assert "Located by bisection at step 30: The batch itself holds a NaN." in root.cause
    assert "Sample 7 of its batch alone goes bad" in root.cause
    assert root.remedy == "Drop or mend sample 7 of step 30."
    assert [entry.title for entry in found.verdict.timeline][-1] == "located"
    assert plain.verdict.undecided
    assert found.verdict.undecided == ()


def test_a_step_that_the_run_took_is_not_over_and_a_sample_is_of_its_rank() -> None:
    result = replace(bad_sample(), damage_stayed=True, rank=1, bad_ranks=(1,))
    found = told(log(nan_at=30), result)
    assert found.verdict.root is not None
    cause = found.findings[found.verdict.root].cause
    assert "Sample 7 of rank 1's batch alone goes bad" in cause
    assert "it is over where the step is skipped; the run took it, and its damage stayed" in cause
    assert "over after the step" not in cause
    alone = finding_of(result)
    assert alone is not None
    assert alone.severity is Severity.CRITICAL
    both = told(log(nan_at=30), replace(result, bad_ranks=(1, 3)))
    assert both.verdict.root is not None
    assert "of the batch of each of ranks 1, 3 alone" in both.findings[both.verdict.root].cause


def test_a_fault_that_the_log_does_not_show_becomes_the_root() -> None:
    found = told(log(), silent())
    assert found.verdict.status is Status.FAULTY
    assert found.verdict.root is not None
    root = found.findings[found.verdict.root]
    assert (root.rule, root.first_step, root.severity) == (RULE, 0, Severity.CRITICAL)
    assert "threshold in force was 1.5e-5" in root.message
    assert "The line is train.py:41" in root.cause
    assert "threshold in force was 1.5e-5" in root.cause
    assert found.verdict.summary.startswith("First bad step 0, in clip: The clip saw")


def test_a_fault_after_the_one_of_the_log_stands_beside_it() -> None:
    steps = log(nan_at=10)
    late = replace(silent(), first_bad_step=50, root_step=50)
    found = told(steps, late)
    assert found.verdict.root is not None
    assert found.findings[found.verdict.root].rule == RULE
    assert any(found.findings[i].rule == "nonfinite-loss" for i in found.verdict.unrelated)


def test_the_capsule_is_run_with_the_recipe_it_needs(tmp_path: Path) -> None:
    """A recipe from a file is loaded only where the command names it."""
    steps, file = log(nan_at=30), tmp_path / "my train.py"
    document = json.loads(json.dumps(bisection_document(bad_sample(), steps), allow_nan=False))
    document["bisection"]["capsule"] = "runs/x/capsule-30"
    recipes = ({}, {"name": "mine", "file": str(file)})
    file.touch()
    plain, of_a_file = (
        diagnose(
            Run(
                path=Path("runs/x"),
                steps=steps,
                bisection=document,
                manifest=Manifest(recipe=recipe),
            )
        ).verdict.next_command
        for recipe in recipes
    )
    assert plain == "forensics capsule run runs/x/capsule-30"
    assert of_a_file == f"{plain} --recipe '{file}:mine'"


def test_nothing_located_changes_nothing() -> None:
    steps = log(nan_at=30)
    plain = diagnose(Run(path=Path("runs/x"), steps=steps))
    assert told(steps, healthy()).verdict == plain.verdict


def test_what_was_proven_is_told_though_no_operator_was_found() -> None:
    found = told(log(nan_at=30), bad_sample(), kind="?")
    assert found.verdict.root is not None
    cause = found.findings[found.verdict.root].cause
    assert "Bisected to step 30; the trace of it names no operator." in cause
    assert "Sample 7 of its batch alone goes bad" in cause


def test_a_stale_result_is_not_used_and_said() -> None:
    document = bisection_document(bad_sample(), log(nan_at=30))
    other = log(nan_at=30)
    other["loss"][3] = 7.0
    found = diagnose(Run(path=Path("runs/x"), steps=other, bisection=document))
    assert any("bisect again" in text for text in found.run.repairs)
    assert all("Located" not in finding.cause for finding in found.findings)


def test_a_strangers_file_is_checked_field_by_field() -> None:
    found = told(log(nan_at=30), bad_sample(), samples="all of them", remedy=[1, 2])
    assert any("samples should be a list" in text for text in found.run.repairs)
    assert any("remedy[0] should be text" in text for text in found.run.repairs)
    assert found.verdict.root is not None
    assert "Located" in found.findings[found.verdict.root].cause


def test_no_bisection_again_once_there_is_one() -> None:
    found = told(log(nan_at=30), bad_sample())
    assert not found.verdict.next_command.startswith("forensics bisect")


def test_the_severity_is_worst_where_the_fault_persists() -> None:
    lasting, passing = finding_of(growth()), finding_of(bad_sample())
    assert lasting is not None
    assert passing is not None
    assert (lasting.severity, passing.severity) == (Severity.CRITICAL, Severity.ERROR)
    assert finding_of(healthy()) is None
    assert finding_of(replace(growth(), status=BisectStatus.PARTIAL)) is None


def test_the_finding_can_be_had_by_itself() -> None:
    steps = log()
    document = json.loads(json.dumps(bisection_document(silent(), steps), allow_nan=False))
    run = Run(path=Path("runs/x"), steps=steps, bisection=document)
    (found,) = bisection.find(Signals(run), bisection.defaults)
    assert (bisection.id, found) == (RULE, finding_of(silent()))
    assert list(bisection.find(Signals(replace(run, bisection=None)), bisection.defaults)) == []
    stale = replace(run, steps=log(nan_at=0))
    assert list(bisection.find(Signals(stale), bisection.defaults)) == []


def test_a_step_that_raised_ended_the_run_whatever_made_its_value() -> None:
    found = finding_of(replace(bad_sample(), raised=True))
    assert found is not None
    assert "it ended the run" in found.cause
    steps = log(nan_at=30)
    root = told(steps, bad_sample(), raised=True).findings[0]
    assert "it ended the run" in root.cause
