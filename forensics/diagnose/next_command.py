"""The one command that brings a reader closer to the origin than the report does."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np

from forensics.diagnose.finding import Finding, Severity
from forensics.diagnose.signals import Signals
from forensics.diagnose.snapshots import MIN_PAST
from forensics.diagnose.spike_condition import spike_options
from forensics.runlog.run import Run

REPLAYED = frozenset(
    {
        "nonfinite-loss",
        "nonfinite-gradient",
        "nonfinite-parameter",
        "nonfinite-step-applied",
        "masked-nonfinite",
        "poisoned-state",
        "norm-overflow",
        "clip-before-unscale",
        "clip-contamination",
        "double-unscale",
        "repeated-update",
        "loss-scale-collapse",
        "gradient-spike",
        "gradient-explosion",
        "gradient-vanishing",
        "loss-spike",
        "loss-divergence",
        "activation-overflow-risk",
        "stale-second-moment",
        "recurring-sample",
        "rank-divergence",
    }
)
"""Roots whose operator, parameter or sample the log does not tell, and a replay does."""
FROM_THE_START = 1_000
"""Step up to which a training is made again from its first step: minutes for a small model."""
_OF_THE_LOG = (
    "broken-log",
    "resume-seam",
    "stuck-log",
    "lost-rank",
    "loop-order",
    "unbounded-loss",
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SPACINGS = (1, 2, 5, 10, 20, 50, 100)
"""Steps between checkpoints: at least three of them lie before the bad step."""


def next_command(signals: Signals, root: Finding) -> str:
    """One command line that can be pasted.

    A replay from the run's checkpoints where that names what the log cannot, or from step 0 where
    that is near and the recipe is known, or the recording that would have left checkpoints; else
    the parameters where the snapshots have something to show at that step; else what the rule says
    of itself.
    """
    run = signals.run
    replayed = root.rule in REPLAYED and not run.elsewhere  # a replay needs the run on this machine
    if replayed and has_state_before(signals, root):
        directory = run.checkpoints[0].path.parent
        own = recipe_option(run) + spike_options(run.steps, root)
        return f"forensics bisect --ckpt-dir {shlex.quote(run.named(directory))}{own}"
    if replayed and trains_from_the_start(signals, root):
        own = recipe_option(run) + spike_options(run.steps, root)
        return f"forensics bisect {shlex.quote(run.named())}{own}"
    if replayed and (again := _record_again(signals, root)):
        return again
    of_one_rank = root.rule == "rank-divergence"  # snapshots hold what all ranks share
    if (
        root.rule not in _OF_THE_LOG
        and not of_one_rank
        and _has_gradients(signals, root.first_step)
    ):
        target = run.path if run.path.is_dir() else run.path.parent
        return f"forensics params {shlex.quote(run.named(target))} --step {root.first_step}"
    return f"forensics rules {root.rule}"


def command_for_exception(signals: Signals) -> str:
    """The bisection of a run that raised, where its state is saved or it can be made again.

    Else the parameters of that step, if there are snapshots; empty where there are none either.
    """
    run = signals.run
    ended = run.manifest.ended if run.manifest is not None else None
    if ended is None or ended.how != "exception" or _bisected(run):
        return ""
    last = signals.last_step if len(signals) else 0
    step = last if ended.step is None else ended.step
    raised = Finding(
        rule="", severity=Severity.INFO, message=ended.message, first_step=step, last_step=step
    )
    if not run.elsewhere and has_state_before(signals, raised):
        directory = run.checkpoints[0].path.parent
        return (
            f"forensics bisect --ckpt-dir {shlex.quote(run.named(directory))}{recipe_option(run)}"
        )
    if not run.elsewhere and trains_from_the_start(signals, raised):
        return f"forensics bisect {shlex.quote(run.named())}{recipe_option(run)}"
    if run.path.is_dir() and _has_gradients(signals, step):
        return f"forensics params {shlex.quote(run.named())} --step {step}"
    return ""


def recipe_option(run: Run) -> str:
    """`` --recipe FILE:NAME`` where the run was recorded from a user's file that is still there."""
    recipe = run.manifest.recipe if run.manifest is not None else {}
    file = str(recipe.get("file") or "")
    name = str(recipe.get("name") or "")
    if not file or not name or not Path(file).is_file():
        return ""
    return f" --recipe {shlex.quote(f'{file}:{name}')}"


def asks_for_a_recipe(signals: Signals, root: Finding) -> str:
    """What a bisection would tell of a user's own loop, given its recipe; empty for other runs.

    It is no next command: the recipe has to be written first.
    """
    run, manifest = signals.run, signals.run.manifest
    if root.rule not in REPLAYED or run.elsewhere or not run.path.is_dir():
        return ""
    if manifest is None or manifest.recipe or _answered(run):
        return ""
    from_0 = len(signals) > 0 and signals.step_at(0) == 0 and root.first_step <= FROM_THE_START
    if not from_0 and not has_state_before(signals, root):
        return ""
    return (
        "Which operator, source line and sample it was: "
        f"`forensics bisect {shlex.quote(run.named())} --recipe FILE:NAME` finds out, given a "
        "recipe of your loop (docs/recording.md shows one; for a trainer, docs/trainers.md)."
    )


def _answered(run: Run) -> bool:
    """Has a bisection come to an answer? One that had no recipe has not."""
    answer = (run.bisection or {}).get("bisection")
    return isinstance(answer, dict) and answer.get("status") in ("located", "healthy")


def trains_from_the_start(signals: Signals, root: Finding) -> bool:
    """Can a bisection train the run again from step 0, as far as its root?"""
    run = signals.run
    recipe = run.manifest.recipe if run.manifest is not None else {}
    known = _NAME.fullmatch(str(recipe.get("name") or "")) and recipe.get("config")
    file = str(recipe.get("file") or "")
    if not known or (file and not Path(file).is_file()) or not run.path.is_dir():
        return False
    begins = len(signals) > 0 and signals.step_at(0) == 0
    return begins and root.first_step <= FROM_THE_START and not _bisected(run)


def has_state_before(signals: Signals, root: Finding) -> bool:
    """Is there a checkpoint to start from, and has nobody bisected this run already?"""
    run = signals.run
    usable = [one for one in run.checkpoints if one.healthy is not False]
    return any(one.step <= root.first_step for one in usable) and not _bisected(run)


def _bisected(run: Run) -> bool:
    """Has a bisection of this run come to its end?"""
    if run.bisection is None:
        return False
    answer = run.bisection.get("bisection")
    return not isinstance(answer, dict) or answer.get("status") != "partial"


def _record_again(signals: Signals, root: Finding) -> str:
    """The same training once more with checkpoints; empty where it is not known how to make it.

    Of a recipe of this program alone: a user's own is called by the path it was recorded from,
    which may be another directory's.
    """
    run = signals.run
    recipe = run.manifest.recipe if run.manifest is not None else {}
    name = str(recipe.get("name", ""))
    known = _NAME.fullmatch(name) and not recipe.get("file") and recipe.get("config")
    if not known or run.checkpoints or _has_gradients(signals, root.first_step):
        return ""
    every = max((n for n in _SPACINGS if 3 * n <= root.first_step), default=1)
    config = shlex.quote(run.named(run.path / "run.json"))
    out = shlex.quote(f"{run.named()}-again")
    return f"forensics record {name} --config {config} --checkpoint-every {every} --out {out}"


def _has_gradients(signals: Signals, step: int) -> bool:
    """Do the snapshots show the gradients of this step, or enough before it to tell who moved?"""
    matrix = signals.param_matrix("grad_l2")
    bad = signals.param_matrix("grad_nonfinite")
    if matrix is None:
        return False
    taken = matrix.present.any(axis=1)
    if bad is not None and np.array_equal(bad.steps, matrix.steps):
        taken |= (bad.present & (bad.values > 0)).any(axis=1)
    at = matrix.steps[taken & (matrix.steps <= step)]
    return len(at) > 0 and (int(at[-1]) == step or len(at) > MIN_PAST)
