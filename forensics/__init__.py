"""Log analysis and NaN forensics for PyTorch training runs.

Everything the command line does can be done with the names below alone::

    from forensics import diagnose_run, load_run, render_text

    print(render_text(diagnose_run(load_run("runs/x"))))

Importing the package costs next to nothing: each name is imported when it is first used, so that
reading a run never pays for torch, and never needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forensics.diagnose.comparison import Comparison
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
    from forensics.diagnose.param_facts import ParamStory
    from forensics.diagnose.param_story import param_story
    from forensics.diagnose.rule import Rule, rule, threshold
    from forensics.diagnose.rules import RULES
    from forensics.diagnose.signals import Signals
    from forensics.diagnose.survey import Choice, SurveyRow, find_runs
    from forensics.diagnose.survey_pool import survey
    from forensics.errors import ExitCode, ForensicsError, InputError, OutputError, UsageError
    from forensics.render.compare_json import render_compare_json
    from forensics.render.compare_markdown import render_compare_markdown
    from forensics.render.compare_text import render_compare_text
    from forensics.render.json_report import render_json
    from forensics.render.markdown_report import render_markdown
    from forensics.render.params_json import render_params_json
    from forensics.render.params_markdown import render_params_markdown
    from forensics.render.params_text import render_params_text
    from forensics.render.scan_json import render_scan_json
    from forensics.render.scan_markdown import render_scan_markdown
    from forensics.render.scan_text import render_scan_text
    from forensics.render.text_report import render_text
    from forensics.runlog.run import Run, load_run
    from forensics.runlog.steps import StepTable
    from forensics.settings import Settings, load_settings

# Python binds ``forensics.diagnose`` to the subpackage as soon as anything imports it, so the
# function of that name needs another one here.
_RENAMED = {
    "diagnose_run": ("forensics.diagnose.engine", "diagnose"),
    "compare_runs": ("forensics.diagnose.comparison", "compare"),
}

_HOME = {
    "forensics.diagnose.comparison": ("Comparison",),
    "forensics.diagnose.finding": (
        "Diagnosis",
        "Evidence",
        "Finding",
        "Outcome",
        "RuleOutcome",
        "RunFacts",
        "Severity",
        "Status",
        "TimelineEntry",
        "Verdict",
    ),
    "forensics.diagnose.param_facts": ("ParamStory",),
    "forensics.diagnose.param_story": ("param_story",),
    "forensics.diagnose.rule": ("Rule", "rule", "threshold"),
    "forensics.diagnose.rules": ("RULES",),
    "forensics.diagnose.signals": ("Signals",),
    "forensics.diagnose.survey": ("Choice", "SurveyRow", "find_runs"),
    "forensics.diagnose.survey_pool": ("survey",),
    "forensics.errors": ("ExitCode", "ForensicsError", "InputError", "OutputError", "UsageError"),
    "forensics.render.compare_json": ("render_compare_json",),
    "forensics.render.compare_markdown": ("render_compare_markdown",),
    "forensics.render.compare_text": ("render_compare_text",),
    "forensics.render.json_report": ("render_json",),
    "forensics.render.markdown_report": ("render_markdown",),
    "forensics.render.params_json": ("render_params_json",),
    "forensics.render.params_markdown": ("render_params_markdown",),
    "forensics.render.params_text": ("render_params_text",),
    "forensics.render.scan_json": ("render_scan_json",),
    "forensics.render.scan_markdown": ("render_scan_markdown",),
    "forensics.render.scan_text": ("render_scan_text",),
    "forensics.render.text_report": ("render_text",),
    "forensics.runlog.run": ("Run", "load_run"),
    "forensics.runlog.steps": ("StepTable",),
    "forensics.settings": ("Settings", "load_settings"),
}
_ORIGIN = {
    **{name: (module, name) for module, names in _HOME.items() for name in names},
    **_RENAMED,
}

__all__ = [
    "RULES",
    "Choice",
    "Comparison",
    "Diagnosis",
    "Evidence",
    "ExitCode",
    "Finding",
    "ForensicsError",
    "InputError",
    "Outcome",
    "OutputError",
    "ParamStory",
    "Rule",
    "RuleOutcome",
    "Run",
    "RunFacts",
    "Settings",
    "Severity",
    "Signals",
    "Status",
    "StepTable",
    "SurveyRow",
    "TimelineEntry",
    "UsageError",
    "Verdict",
    "compare_runs",
    "diagnose_run",
    "find_runs",
    "load_run",
    "load_settings",
    "param_story",
    "render_compare_json",
    "render_compare_markdown",
    "render_compare_text",
    "render_json",
    "render_markdown",
    "render_params_json",
    "render_params_markdown",
    "render_params_text",
    "render_scan_json",
    "render_scan_markdown",
    "render_scan_text",
    "render_text",
    "rule",
    "survey",
    "threshold",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("forensics")
    elif name in _ORIGIN:
        module, attribute = _ORIGIN[name]
        value = getattr(import_module(module), attribute)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
