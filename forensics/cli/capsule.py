"""``forensics capsule run``: replay a bad step that somebody cut out, and confirm it."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import click

from forensics.cli.output_options import look, output_options, put, spare_the_input
from forensics.cli.torch_start import import_torch, without_torch
from forensics.diagnose.capsule_verdict import CapsuleVerdict
from forensics.errors import ExitCode
from forensics.render.output import choose_format


@click.command(short_help="Replay a capsule: confirmed or not.")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@click.option(
    "--recipe",
    metavar="RECIPE",
    help="What trains it, such as my_train.py:my_recipe. A file is loaded only if named here.",
)
@click.option("--device", help="cpu, cuda, cuda:1 or mps. Default: as recorded.")
@output_options
def run(
    path: Path, recipe: str | None, device: str | None, form: str | None, out: Path | None
) -> ExitCode:
    """Replay a capsule: confirmed or not.

    Nothing in a capsule runs by itself: the recipe is looked up among the installed ones, and the
    copy of a user's file inside a capsule is loaded only where --recipe names it.

    \b
    Examples:
      forensics capsule run runs/x/capsule-8218
      forensics capsule run capsule --recipe my_train.py:my_recipe --format json

    Exit code: 0 confirmed, 1 not confirmed, 2 no capsule, damaged, or no recipe for it.
    """
    if find_spec("torch") is None:
        raise without_torch("replaying")
    spare_the_input(out, map(str, path.glob("*") if path.is_dir() else [path]))
    import_torch()
    from forensics.replay.capsule import run_capsule

    verdict = run_capsule(path, recipe=recipe, device=device)
    put(_rendered(verdict, choose_format(form, out), out), out)
    return ExitCode.DONE if verdict.confirmed else ExitCode.FINDINGS


@click.group(
    short_help="Replay a bad step that was cut out of a run, and confirm it.", commands=[run]
)
def capsule() -> None:
    """Replay a bad step that was cut out of a run, and confirm it.

    A capsule is the folder that `forensics bisect --capsule` writes: the state just before the bad
    step, its guilty samples, and what a replay must come to.

    \b
    Example:
      forensics capsule run runs/x/capsule-8218
    """


def _rendered(verdict: CapsuleVerdict, form: str, out: Path | None) -> str:
    if form == "json":
        from forensics.render.capsule_json import render_capsule_json

        return render_capsule_json(verdict)
    if form == "markdown":
        from forensics.render.capsule_markdown import render_capsule_markdown

        return render_capsule_markdown(verdict)
    from forensics.render.capsule_text import render_capsule_text

    return render_capsule_text(verdict, **look(out))
