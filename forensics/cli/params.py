"""``forensics params``: the story of the parameters, from the snapshots of a run."""

from __future__ import annotations

from pathlib import Path

import click

from forensics.cli.output_options import look, output_options, put, spare_the_input
from forensics.cli.reading_options import reading_of
from forensics.diagnose.param_story import param_story
from forensics.errors import ExitCode
from forensics.render.output import choose_format
from forensics.runlog.run import load_run


@click.command(short_help="Tell which parameters are large, moved first, went bad first.")
@click.argument("run", metavar="RUN", type=click.Path())
@click.option(
    "--step",
    type=click.IntRange(min=0),
    help="Look at this step's snapshot, or the last one before it. Default: the last sound one.",
)
@click.option(
    "--param",
    "pattern",
    metavar="GLOB",
    default="",
    help="Only these parameters, such as 'blocks.11.*'; up to three are told over time.",
)
@output_options
def params(
    run: str, step: int | None, pattern: str, form: str | None, out: Path | None
) -> ExitCode:
    """Tell which parameters are large, moved first, went bad first.

    RUN is a run directory with per-parameter snapshots. Growth is against each parameter's own
    past: the median of its earlier snapshots.

    \b
    Examples:
      forensics params runs/x
      forensics params runs/x --step 8217 --param 'blocks.11.*'
      forensics params runs/x --format json --out params.json

    Exit code: 0 done, 2 a RUN without snapshots, or nothing matches.
    """
    spare_the_input(out, (run,))
    story = param_story(load_run(run, reading_of("", ())), step=step, pattern=pattern)
    chosen = choose_format(form, out)
    if chosen == "json":
        from forensics.render.params_json import render_params_json

        text = render_params_json(story)
    elif chosen == "markdown":
        from forensics.render.params_markdown import render_params_markdown

        text = render_params_markdown(story)
    else:
        from forensics.render.params_text import render_params_text

        text = render_params_text(story, **look(out))
    put(text, out)
    return ExitCode.DONE
