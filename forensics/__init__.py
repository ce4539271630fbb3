"""Log analysis and NaN forensics for PyTorch training runs.

What the command line does can be done with the names below::

    from forensics import diagnose_run, load_run, render_text

    print(render_text(diagnose_run(load_run("runs/x"))))

Importing the package costs next to nothing: each name is imported when it is first used, so that
reading a run never pays for torch, and never needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forensics.diagnose.bisection_result import BisectionResult
    from forensics.diagnose.capsule_verdict import CapsuleVerdict
    from forensics.diagnose.comparison import compare as compare_runs
    from forensics.diagnose.engine import diagnose as diagnose_run
    from forensics.diagnose.finding import (
        Diagnosis,
        Evidence,
        Finding,
        Outcome,
        RuleOutcome,
        RunFacts,
        Severity,
        Status,
        TimelineEntry,
        Verdict,
    )
    from forensics.diagnose.news import News
    from forensics.diagnose.param_story import param_story
    from forensics.diagnose.rule import Rule, rule, threshold
    from forensics.diagnose.rules import RULES
    from forensics.diagnose.signals import Signals
    from forensics.diagnose.state_health import StateHealth
    from forensics.errors import ExitCode, ForensicsError, InputError, OutputError, UsageError
    from forensics.record.config import Config
    from forensics.record.loader_batches import batches_of
    from forensics.record.null_recorder import NullRecorder
    from forensics.record.options import KeepPolicy, RecordOptions
    from forensics.record.recipe import Recipe, Training, recipe
    from forensics.record.recipe_lookup import find_recipe
    from forensics.record.recorder import Recorder
    from forensics.record.reference_loop import record_run
    from forensics.record.train_step import AmpTrainState
    from forensics.render.bisect_json import render_bisect_json
    from forensics.render.bisect_markdown import render_bisect_markdown
    from forensics.render.bisect_text import render_bisect_text
    from forensics.render.capsule_json import render_capsule_json
    from forensics.render.capsule_markdown import render_capsule_markdown
    from forensics.render.capsule_text import render_capsule_text
    from forensics.render.compare_plot import plot_compare
    from forensics.render.html.report import render_html
    from forensics.render.html.summary import render_html_summary
    from forensics.render.inspect_json import render_inspect_json
    from forensics.render.inspect_markdown import render_inspect_markdown
    from forensics.render.inspect_text import render_inspect_text
    from forensics.render.json_report import render_json
    from forensics.render.markdown_report import render_markdown
    from forensics.render.params_plot import plot_params
    from forensics.render.run_plot import plot_run
    from forensics.render.scale_plot import plot_scale
    from forensics.render.text_report import render_text
    from forensics.replay.bisect import bisect_run
    from forensics.replay.capsule import run_capsule
    from forensics.replay.checkpoint_health import examine_state
    from forensics.replay.health.health_bisection import bisect_health
    from forensics.runlog.growing import GrowingLog
    from forensics.runlog.log_facts import LogFacts
    from forensics.runlog.reading import Reading
    from forensics.runlog.run import Run, load_joined, load_run
    from forensics.runlog.steps import StepTable
    from forensics.runlog.table_csv import write_table
    from forensics.settings import Settings, load_settings

# Python binds ``forensics.diagnose`` to the subpackage as soon as anything imports it, so the
# function of that name has another one here; ``compare_runs`` keeps it company.
_ORIGIN = {
    "AmpTrainState": "forensics.record.train_step",
    "BisectionResult": "forensics.diagnose.bisection_result",
    "CapsuleVerdict": "forensics.diagnose.capsule_verdict",
    "Config": "forensics.record.config",
    "Diagnosis": "forensics.diagnose.finding",
    "Evidence": "forensics.diagnose.finding",
    "ExitCode": "forensics.errors",
    "Finding": "forensics.diagnose.finding",
    "ForensicsError": "forensics.errors",
    "GrowingLog": "forensics.runlog.growing",
    "InputError": "forensics.errors",
    "KeepPolicy": "forensics.record.options",
    "LogFacts": "forensics.runlog.log_facts",
    "News": "forensics.diagnose.news",
    "NullRecorder": "forensics.record.null_recorder",
    "Outcome": "forensics.diagnose.finding",
    "OutputError": "forensics.errors",
    "RULES": "forensics.diagnose.rules",
    "Reading": "forensics.runlog.reading",
    "Recipe": "forensics.record.recipe",
    "RecordOptions": "forensics.record.options",
    "Recorder": "forensics.record.recorder",
    "Rule": "forensics.diagnose.rule",
    "RuleOutcome": "forensics.diagnose.finding",
    "Run": "forensics.runlog.run",
    "RunFacts": "forensics.diagnose.finding",
    "Settings": "forensics.settings",
    "Severity": "forensics.diagnose.finding",
    "Signals": "forensics.diagnose.signals",
    "StateHealth": "forensics.diagnose.state_health",
    "Status": "forensics.diagnose.finding",
    "StepTable": "forensics.runlog.steps",
    "TimelineEntry": "forensics.diagnose.finding",
    "Training": "forensics.record.recipe",
    "UsageError": "forensics.errors",
    "Verdict": "forensics.diagnose.finding",
    "batches_of": "forensics.record.loader_batches",
    "bisect_health": "forensics.replay.health.health_bisection",
    "bisect_run": "forensics.replay.bisect",
    "compare_runs": "forensics.diagnose.comparison:compare",
    "diagnose_run": "forensics.diagnose.engine:diagnose",
    "examine_state": "forensics.replay.checkpoint_health",
    "find_recipe": "forensics.record.recipe_lookup",
    "load_joined": "forensics.runlog.run",
    "load_run": "forensics.runlog.run",
    "load_settings": "forensics.settings",
    "param_story": "forensics.diagnose.param_story",
    "plot_compare": "forensics.render.compare_plot",
    "plot_params": "forensics.render.params_plot",
    "plot_run": "forensics.render.run_plot",
    "plot_scale": "forensics.render.scale_plot",
    "recipe": "forensics.record.recipe",
    "record_run": "forensics.record.reference_loop",
    "render_bisect_json": "forensics.render.bisect_json",
    "render_bisect_markdown": "forensics.render.bisect_markdown",
    "render_bisect_text": "forensics.render.bisect_text",
    "render_capsule_json": "forensics.render.capsule_json",
    "render_capsule_markdown": "forensics.render.capsule_markdown",
    "render_capsule_text": "forensics.render.capsule_text",
    "render_html": "forensics.render.html.report",
    "render_html_summary": "forensics.render.html.summary",
    "render_inspect_json": "forensics.render.inspect_json",
    "render_inspect_markdown": "forensics.render.inspect_markdown",
    "render_inspect_text": "forensics.render.inspect_text",
    "render_json": "forensics.render.json_report",
    "render_markdown": "forensics.render.markdown_report",
    "render_text": "forensics.render.text_report",
    "rule": "forensics.diagnose.rule",
    "run_capsule": "forensics.replay.capsule",
    "threshold": "forensics.diagnose.rule",
    "write_table": "forensics.runlog.table_csv",
}
"""Public names by the module they come from (``module:name`` where it has another name there)."""

__all__ = [
    "RULES",
    "AmpTrainState",
    "BisectionResult",
    "CapsuleVerdict",
    "Config",
    "Diagnosis",
    "Evidence",
    "ExitCode",
    "Finding",
    "ForensicsError",
    "GrowingLog",
    "InputError",
    "KeepPolicy",
    "LogFacts",
    "News",
    "NullRecorder",
    "Outcome",
    "OutputError",
    "Reading",
    "Recipe",
    "RecordOptions",
    "Recorder",
    "Rule",
    "RuleOutcome",
    "Run",
    "RunFacts",
    "Settings",
    "Severity",
    "Signals",
    "StateHealth",
    "Status",
    "StepTable",
    "TimelineEntry",
    "Training",
    "UsageError",
    "Verdict",
    "batches_of",
    "bisect_health",
    "bisect_run",
    "compare_runs",
    "diagnose_run",
    "examine_state",
    "find_recipe",
    "load_joined",
    "load_run",
    "load_settings",
    "param_story",
    "plot_compare",
    "plot_params",
    "plot_run",
    "plot_scale",
    "recipe",
    "record_run",
    "render_bisect_json",
    "render_bisect_markdown",
    "render_bisect_text",
    "render_capsule_json",
    "render_capsule_markdown",
    "render_capsule_text",
    "render_html",
    "render_html_summary",
    "render_inspect_json",
    "render_inspect_markdown",
    "render_inspect_text",
    "render_json",
    "render_markdown",
    "render_text",
    "rule",
    "run_capsule",
    "threshold",
    "write_table",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("forensics")
    elif name in _ORIGIN:
        module, _, attribute = _ORIGIN[name].partition(":")
        value = getattr(import_module(module), attribute or name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
