"""The verbs of the command line, imported one at a time: ``report`` never pays for ``record``."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from forensics.frozen import dataclass


@dataclass(frozen=True)
class Verb:
    """Where a verb's command lives, and the line that ``forensics --help`` shows for it.

    ``trains``: it runs a training, whose libraries choose their threads as they do elsewhere.
    ``stores``: it takes paths in object stores, too.
    """

    module: str
    attribute: str
    help: str
    trains: bool = False
    stores: bool = False


VERBS: Mapping[str, Verb] = {
    "report": Verb(
        "forensics.cli.report",
        "report",
        "Say what went wrong in a run, and what to do about it.",
        stores=True,
    ),
    "bisect": Verb(
        "forensics.cli.bisect",
        "bisect",
        "Find the first bad step, its operator and sample, and prove it.",
        trains=True,
    ),
    "capsule": Verb(
        "forensics.cli.capsule",
        "capsule",
        "Replay a bad step that was cut out of a run, and confirm it.",
    ),
    "rules": Verb(
        "forensics.cli.rules", "rules", "List what can be diagnosed, or explain one rule."
    ),
    "record": Verb(
        "forensics.cli.record", "record", "Train a recipe and record the run.", trains=True
    ),
    "params": Verb(
        "forensics.cli.params",
        "params",
        "Tell which parameters are large, moved first, went bad first.",
        stores=True,
    ),
    "compare": Verb(
        "forensics.cli.compare",
        "compare",
        "Say whether two runs are the same, and where they part.",
        stores=True,
    ),
    "plot": Verb(
        "forensics.cli.plot",
        "plot",
        "Draw a run on one page: loss, norms, rate, scale, skips, findings.",
        stores=True,
    ),
    "plot-scale": Verb(
        "forensics.cli.plot_scale",
        "plot_scale",
        "Draw the loss scale: growths, backoffs, skips, and its limits.",
        stores=True,
    ),
    "plot-params": Verb(
        "forensics.cli.plot_params",
        "plot_params",
        "Draw the gradient norm of every parameter as a heat map.",
        stores=True,
    ),
    "plot-compare": Verb(
        "forensics.cli.plot_compare",
        "plot_compare",
        "Draw two runs over each other, and where they part.",
        stores=True,
    ),
    "inspect": Verb(
        "forensics.cli.inspect",
        "inspect",
        "Say whether a saved state is finite, and what in it is not.",
    ),
    "convert": Verb(
        "forensics.cli.convert",
        "convert",
        "Write a log of another program as a steps.csv.",
        stores=True,
    ),
    "watch": Verb(
        "forensics.cli.watch",
        "watch",
        "Follow a run that goes on; exit 1 when something is wrong.",
        stores=True,
    ),
    "scan": Verb(
        "forensics.cli.scan",
        "scan",
        "Judge many runs: a table, worst first.",
        stores=True,
    ),
}


class VerbGroup(click.Group):
    """A group whose commands are imported when they are called, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The verbs, in the order of the table."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of one verb; None where there is no such verb."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        fresh = "numpy" not in sys.modules  # a process of ours, not one that calls us
        load = _imported_lean if fresh and not verb.trains else import_module
        command: Any = getattr(load(verb.module), verb.attribute)
        if fresh and "pyarrow" in sys.modules:
            # Its CSV reader takes SIGINT and SIGTERM for itself while it reads, and loses one that
            # comes as it ends: a watch would outlive its job.
            sys.modules["pyarrow"].enable_signal_handlers(False)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs from the table, importing none."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The verb that the first argument names; a path there is most likely a forgotten verb."""
        name = args[0]
        if name not in VERBS and not name.startswith("-"):
            raise click.UsageError(f"there is no verb {name!r}; {_hint(name)}", ctx)
        if name in VERBS and any("://" in arg for arg in args):
            _of_stores(name, args[1:])
        return super().resolve_command(ctx, args)


def _imported_lean(name: str) -> ModuleType:
    """The module of a verb that reads, imported for a process that ends soon."""
    # Reading does no linear algebra: more BLAS threads would only start, spin and stop.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A process that touches each page of its memory a few times has little from huge pages. Virtual
    # machines that give free memory back to their host give back whole ones, and have to ask for
    # every one again: ten million rows took a fifth longer.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    # What is imported stays until the end, so the collector need not go through it, nor at exit:
    # that is a tenth of a small report.
    gc.disable()
    try:
        return import_module(name)
    finally:
        gc.freeze()
        gc.enable()


def _of_stores(verb: str, args: list[str]) -> None:
    """Say of a verb that works on files of this machine that a URI is none, before it looks."""
    if VERBS[verb].stores:
        from forensics.cli.interrupting import end_in_time

        end_in_time()
        return
    from forensics.errors import UsageError
    from forensics.runlog.stores.scheme import is_uri

    for arg in filter(is_uri, args):
        what = f"{verb} works on files of this machine"
        raise UsageError(what, where=arg, hint="name one, such as a copy of the run")


def _hint(name: str) -> str:
    import shlex

    from forensics.settings import nearest

    if os.path.exists(name) or "://" in name:
        return f"did you mean `forensics report {shlex.quote(name)}`?"
    hint = nearest(name, VERBS, cutoff=0.7)  # else every short verb is like another
    return hint if hint.startswith("did") else f"verbs are {', '.join(VERBS)}"
